"""The sizes that the plan states are the ones the native core computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing import _native
from farthing.core import ActivationMode, KVDtype
from farthing.plan import arena, packed
from farthing.plan.packed import PACKED_FORMATS, packed_format

COUNTS = st.integers(1, 5000)
MODES = (ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8)
CACHE_TYPES = (KVDtype.FP32, KVDtype.FP16, KVDtype.BF16, KVDtype.INT8)


@given(st.sampled_from(PACKED_FORMATS), COUNTS, COUNTS)
def test_matrix_sizes_agree(name: str, outputs: int, inputs: int) -> None:
    index = PACKED_FORMATS.index(name)
    assert packed.matrix_bytes(name, outputs, inputs) == _native.sizes.matrix_bytes(
        index, outputs, inputs
    )


@given(st.sampled_from(MODES), COUNTS, COUNTS)
def test_prepared_sizes_agree(mode: ActivationMode, rows: int, inputs: int) -> None:
    native = _native.sizes.prepared_bytes(MODES.index(mode), rows, inputs)
    assert packed.prepared_bytes(mode, rows, inputs) == native


@given(st.sampled_from(CACHE_TYPES), st.integers(1, 512))
def test_block_sizes_agree(kv_dtype: KVDtype, head_dim: int) -> None:
    native = _native.sizes.head_block_bytes(CACHE_TYPES.index(kv_dtype), head_dim)
    assert packed.head_block_bytes(kv_dtype, head_dim) == native
    assert packed.partial_floats(head_dim) == _native.sizes.partial_floats(head_dim)


@given(st.integers(1, 300_000))
def test_sampler_sizes_agree(vocabulary: int) -> None:
    native = _native.sizes.sample_scratch_bytes(vocabulary)
    assert packed.sampling_scratch_bytes(vocabulary) == native


def test_the_arenas_constants_are_the_native_ones() -> None:
    stated = (arena.ROW_BLOCK, arena.PRIVATE_ROWS, arena.SPLIT_ITEMS, arena.QUERY_TILE)
    native = _native.sizes
    assert stated == (
        native.row_block,
        native.private_rows,
        native.split_items,
        native.query_tile,
    )


@pytest.mark.parametrize(
    ("stored", "activations", "name", "mode", "lossless"),
    [
        ("Q4_1", None, "Q4_1", ActivationMode.INT8, True),
        ("Q8_0", ActivationMode.INT8, "Q8_0", ActivationMode.INT8, True),
        ("Q8_0", ActivationMode.BF16, "BF16", ActivationMode.BF16, False),
        ("Q5_0", ActivationMode.FP32, "F32", ActivationMode.FP32, True),
        ("BF16", None, "BF16", ActivationMode.BF16, True),
        ("BF16", ActivationMode.FP32, "F32", ActivationMode.FP32, True),
        ("F16", None, "F16", ActivationMode.FP32, True),
        ("F32", ActivationMode.INT8, "F32", ActivationMode.FP32, True),
        ("Q4_K", None, "BF16", ActivationMode.BF16, False),
        ("Q6_K", ActivationMode.FP32, "F32", ActivationMode.FP32, True),
    ],
)
def test_each_stored_format_runs_as_stated(
    stored: str,
    activations: ActivationMode | None,
    name: str,
    mode: ActivationMode,
    lossless: bool,
) -> None:
    chosen = packed_format(stored, activations)
    assert (chosen.name, chosen.mode, chosen.lossless) == (name, mode, lossless)


def test_a_token_of_the_half_billion_model_takes_the_published_bytes() -> None:
    """24 layers, 2 KV heads of 64: 12,288 bytes in fp16; with 14 KV heads seven times that."""
    assert 24 * packed.token_bytes(KVDtype.FP16, 2, 64) == 12_288
    assert 24 * packed.token_bytes(KVDtype.FP16, 14, 64) == 86_016
    assert 32 * packed.token_bytes(KVDtype.FP16, 8, 128) == 131_072
    # Whole blocks: 295 tokens take 10 blocks of 32.
    assert 10 * 24 * 2 * packed.head_block_bytes(KVDtype.FP16, 64) == 3_932_160
