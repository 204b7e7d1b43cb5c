"""Tensors in pieces: the same bytes as at once, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from farthing.core import StoredTensor
from farthing.forge import pieces
from farthing.forge.pieces import copied, encoded, in_order
from farthing.quant.formats import WRITABLE_FORMATS, decode, encode


def bf16_tensor(outputs: int, inputs: int) -> StoredTensor:
    weights = np.random.default_rng(1).standard_normal((outputs, inputs), np.float32)
    return StoredTensor("w", "BF16", (outputs, inputs), encode(weights, "BF16"))


def made(tensor: StoredTensor, format_name: str) -> list[np.ndarray]:
    listed = copied(tensor) if format_name == tensor.format else encoded(tensor, format_name)
    return list(in_order(listed, 2))


@pytest.mark.parametrize("format_name", WRITABLE_FORMATS)
def test_pieces_together_are_the_encoding_of_the_whole(
    format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = bf16_tensor(50, 256)
    monkeypatch.setattr(pieces, "PIECE_WEIGHTS", 1000)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    found = made(tensor, format_name)
    assert len(found) > 8
    np.testing.assert_array_equal(np.concatenate(found), encode(decode(tensor), format_name))


def test_a_row_longer_than_a_piece_is_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_WEIGHTS", 10)
    assert len(made(bf16_tensor(3, 160), "INT4_G64")) == 3


@pytest.mark.parametrize("format_name", ["Q4_0", "INT4_TENSOR", "NF4_B64", "BF16"])
def test_memory_does_not_grow_with_the_tensor(format_name: str) -> None:
    tensor = bf16_tensor(8192, 4096)  # 134 MB in float32
    listed = copied(tensor) if format_name == "BF16" else encoded(tensor, format_name)
    tracemalloc.start()
    try:
        for piece in in_order(listed, 2):
            assert piece.nbytes <= 16 << 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60e6


def test_results_come_in_order_and_few_wait() -> None:
    begun: list[int] = []

    def task(number: int) -> np.ndarray:
        begun.append(number)
        return np.full(1, number, np.uint8)

    results = in_order((lambda n=number: task(n) for number in range(100)), 3)
    for number in range(100):
        assert next(results)[0] == number
        assert len(begun) <= number + 6


def test_what_a_task_raises_reaches_the_caller_and_ends_the_rest() -> None:
    begun: list[int] = []

    def task(number: int) -> np.ndarray:
        begun.append(number)
        if number == 5:
            raise KeyError(number)
        return np.zeros(1, np.uint8)

    results = in_order((lambda n=number: task(n) for number in range(100)), 2)
    with pytest.raises(KeyError):
        list(results)
    assert len(begun) <= 10
