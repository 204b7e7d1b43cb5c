"""The sizes that the plan states are the ones the native core computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing import _native
from farthing.core import ActivationMode, KVDtype
from farthing.plan import arena, packed
from farthing.plan.packed import PACKED_FORMATS, PackedFormat, packed_format
from farthing.quant.formats import FORMATS

COUNTS = st.integers(1, 5000)
MODES = (ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8)
CACHE_TYPES = (KVDtype.FP32, KVDtype.FP16, KVDtype.BF16, KVDtype.INT8, KVDtype.INT4_KEYS)


GROUPED = ("INT4", "INT4_ASYM", "NF4", "NF4_EXACT")


@given(st.sampled_from(PACKED_FORMATS), COUNTS, COUNTS, st.sampled_from([32, 64, 128, 5024]))
def test_matrix_sizes_agree(name: str, outputs: int, inputs: int, group: int) -> None:
    group = group if name in GROUPED else 0
    chosen = PackedFormat(name, ActivationMode.INT8, lossless=True, group=group)
    assert packed.matrix_bytes(chosen, outputs, inputs) == _native.sizes.matrix_bytes(
        PACKED_FORMATS.index(name), group, outputs, inputs
    )


@given(st.sampled_from(MODES), COUNTS, COUNTS)
def test_prepared_sizes_agree(mode: ActivationMode, rows: int, inputs: int) -> None:
    native = _native.sizes.prepared_bytes(MODES.index(mode), rows, inputs)
    assert packed.prepared_bytes(mode, rows, inputs) == native


@given(st.sampled_from(CACHE_TYPES), st.integers(1, 512).map(lambda n: 2 * n))
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


INT8, BF16, FP32 = ActivationMode.INT8, ActivationMode.BF16, ActivationMode.FP32


@pytest.mark.parametrize(
    ("stored", "activations", "expected"),
    [
        ("Q4_1", None, PackedFormat("Q4_1", INT8, lossless=True)),
        ("Q8_0", INT8, PackedFormat("Q8_0", INT8, lossless=True)),
        ("Q8_0", BF16, PackedFormat("BF16", BF16, lossless=False, expanded=True)),
        ("Q5_0", FP32, PackedFormat("F32", FP32, lossless=True, expanded=True)),
        ("BF16", None, PackedFormat("BF16", BF16, lossless=True)),
        ("BF16", INT8, PackedFormat("BF16", BF16, lossless=True)),
        ("BF16", FP32, PackedFormat("F32", FP32, lossless=True, expanded=True)),
        ("F16", None, PackedFormat("F16", FP32, lossless=True)),
        ("F16", BF16, PackedFormat("BF16", BF16, lossless=False, expanded=True)),
        ("F32", INT8, PackedFormat("F32", FP32, lossless=True)),
        ("Q4_K", None, PackedFormat("Q4_K", INT8, lossless=True)),
        ("Q6_K", FP32, PackedFormat("F32", FP32, lossless=True, expanded=True)),
        ("INT8_TENSOR", None, PackedFormat("INT8", INT8, lossless=True)),
        ("INT4_TENSOR", None, PackedFormat("INT4", INT8, lossless=True, group=608)),
        ("INT4_ROW", None, PackedFormat("INT4", INT8, lossless=True, group=608)),
        ("INT4_G64", None, PackedFormat("INT4", INT8, lossless=True, group=64)),
        ("INT4_G128_ASYM", None, PackedFormat("INT4_ASYM", INT8, lossless=True, group=128)),
        ("INT4_G32_ASYM", BF16, PackedFormat("BF16", BF16, lossless=False, expanded=True)),
        ("NF4_B64", None, PackedFormat("NF4", INT8, lossless=False, group=64)),
        ("NF4_B128", FP32, PackedFormat("NF4_EXACT", FP32, lossless=True, group=128)),
        ("NF4_B64", BF16, PackedFormat("BF16", BF16, lossless=False, expanded=True)),
    ],
)
def test_each_stored_format_runs_as_stated(
    stored: str, activations: ActivationMode | None, expected: PackedFormat
) -> None:
    assert packed_format(stored, activations, inputs=600) == expected


@pytest.mark.parametrize("stored", FORMATS)
def test_no_format_is_expanded_unless_wider_activations_are_asked_for(stored: str) -> None:
    for activations in (None, ActivationMode.INT8):
        assert not packed_format(stored, activations, inputs=512).expanded


BITS = {  # for one weight, of a row of 2,048
    "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q4_K": 4.625, "Q5_K": 5.625,
    "Q6_K": 6.5625, "Q2_K": 2.625, "Q3_K": 3.5625, "IQ4_NL": 4.5, "INT8_ROW": 8 + 1 / 64,
    "INT4_ROW": 4 + 1 / 64, "INT4_G32": 4.5, "INT4_G64": 4.25, "INT4_G128": 4.125,
    "INT4_G32_ASYM": 4.75, "INT4_G64_ASYM": 4.375, "INT4_G128_ASYM": 4.1875, "NF4_B64": 4.25,
    "NF4_B128": 4.125,
}  # fmt: skip


@pytest.mark.parametrize("stored", BITS)
def test_a_packed_weight_takes_as_many_bits_as_stated(stored: str) -> None:
    size = packed.matrix_bytes(packed_format(stored, None, inputs=2048), 64, 2048)
    assert 8 * size / (64 * 2048) == pytest.approx(BITS[stored], abs=0.01)


def test_a_token_of_the_half_billion_model_takes_the_published_bytes() -> None:
    """24 layers, 2 KV heads of 64: 12,288 bytes in fp16; with 14 KV heads seven times that."""
    assert 24 * packed.token_bytes(KVDtype.FP16, 2, 64) == 12_288
    # Bits a number: 8 and an fp32 scale, 4 and an fp16 one.
    assert 8 * packed.token_bytes(KVDtype.INT8, 1, 64) == 2 * 64 * 8.5
    assert 8 * packed.token_bytes(KVDtype.INT4_KEYS, 1, 64) == 64 * (4.25 + 8.5)
    assert 24 * packed.token_bytes(KVDtype.FP16, 14, 64) == 86_016
    assert 32 * packed.token_bytes(KVDtype.FP16, 8, 128) == 131_072
    # Whole blocks: 295 tokens take 10 blocks of 32.
    assert 10 * 24 * 2 * packed.head_block_bytes(KVDtype.FP16, 64) == 3_932_160
