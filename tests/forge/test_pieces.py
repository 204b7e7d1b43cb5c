"""Tensors in pieces: the same bytes as at once, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from farthing.core import StoredTensor
from farthing.files.formats import stored_bytes
from farthing.files.writing import TensorPlan
from farthing.forge import pieces
from farthing.forge.pieces import EncodedPieces
from farthing.quant.formats import WRITABLE_FORMATS, decode, encode


def bf16_tensor(outputs: int, inputs: int) -> StoredTensor:
    weights = np.random.default_rng(1).standard_normal((outputs, inputs), np.float32)
    return StoredTensor("w", "BF16", (outputs, inputs), encode(weights, "BF16"))


def plan(tensor: StoredTensor, format_name: str) -> TensorPlan:
    return TensorPlan("w", format_name, tensor.shape, stored_bytes(format_name, tensor.shape))


@pytest.mark.parametrize("format_name", WRITABLE_FORMATS)
def test_pieces_together_are_the_encoding_of_the_whole(
    format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = bf16_tensor(50, 160)
    monkeypatch.setattr(pieces, "PIECE_WEIGHTS", 1000)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    found = list(EncodedPieces({"w": tensor}, None)(plan(tensor, format_name)))
    assert len(found) > 8
    np.testing.assert_array_equal(np.concatenate(found), encode(decode(tensor), format_name))


def test_a_row_longer_than_a_piece_is_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = bf16_tensor(3, 160)
    monkeypatch.setattr(pieces, "PIECE_WEIGHTS", 10)
    assert len(list(EncodedPieces({"w": tensor}, None)(plan(tensor, "INT4_G64")))) == 3


@pytest.mark.parametrize("format_name", ["Q4_0", "INT4_TENSOR", "NF4_B64", "BF16"])
def test_memory_does_not_grow_with_the_tensor(format_name: str) -> None:
    tensor = bf16_tensor(8192, 4096)  # 134 MB in float32
    tracemalloc.start()
    try:
        for piece in EncodedPieces({"w": tensor}, None)(plan(tensor, format_name)):
            assert piece.nbytes <= 16 << 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60e6
