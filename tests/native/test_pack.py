"""Packing against what stored rows stand for, by the gguf package and by quant/."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stored_rows
from covering import covering
from farthing.quant.formats import FORMATS as READABLE
from matrix_kernels import (
    FORMATS,
    TIERS,
    Packed,
    Prepared,
    dequantised,
    group_of,
    guarded,
    kernels,
    linear,
    mode_of,
    source_rows,
    whole_inputs,
)

tiers = pytest.mark.parametrize("tier", TIERS)
every_format = pytest.mark.parametrize("format_name", FORMATS)


def same_bits(a, b):
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_every_stored_format_is_tested_here():
    # Double-quantised NF4 is packed as the NF4 that it decodes to.
    assert {kind.stored for kind in FORMATS.values()} == set(READABLE) - {"NF4_B64_DOUBLE"}


@pytest.mark.parametrize(
    ("tier", "format_name", "shape"),
    covering(TIERS, FORMATS, [(1, 32), (16, 64), (17, 96), (48, 576), (40, 2080)]),
)
def test_an_unpacked_row_has_the_bits_of_the_stored_weights(tier, format_name, shape):
    outputs, inputs = shape[0], whole_inputs(format_name, shape[1])
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(1))
    packed = Packed.of(tier, format_name, source, inputs)
    assert same_bits(packed.unpack(), dequantised(format_name, source, inputs))


@tiers
@pytest.mark.parametrize("format_name", [*stored_rows.FLOAT_FORMATS, *stored_rows.OWN_FORMATS])
@settings(max_examples=20, deadline=None)
@given(outputs=st.integers(1, 40), inputs=st.integers(1, 300))
def test_rows_of_any_length_survive_packing(tier, format_name, outputs, inputs):
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(inputs))
    packed = Packed.of(tier, format_name, source, inputs)
    assert same_bits(packed.unpack(), dequantised(format_name, source, inputs))


def scaled_by(format_name, halves):
    """16 rows whose fp16 scales and minima are `halves`, repeated as needed; and their length."""
    block = stored_rows.BLOCKS.get(format_name)
    length = block.length if block else group_of(format_name, 128)
    inputs = -(-len(halves) // (16 * (block.halves if block else 1))) * length
    source = source_rows(format_name, 16, inputs, np.random.default_rng(2))
    count = stored_rows.scale_bytes(format_name, source, inputs).nbytes // 2
    return stored_rows.with_scales(format_name, source, inputs, np.resize(halves, count)), inputs


def assert_unpacks(tier, format_name, source, inputs):
    values = Packed.of(tier, format_name, source, inputs).unpack()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = dequantised(format_name, source, inputs)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(values), nan)
    assert same_bits(values[~nan], expected[~nan])


@tiers
def test_every_half_is_decoded_exactly_as_a_scale(tier):
    """Subnormal, infinite, NaN and both zeros: all 65,536."""
    source, inputs = scaled_by("Q4_0", np.arange(65536, dtype=np.uint16).view(np.float16))
    assert_unpacks(tier, "Q4_0", source, inputs)


HALF_SCALED = [
    name
    for name in (*stored_rows.BLOCKS, *stored_rows.OWN_FORMATS)
    if FORMATS[name].group is not None and not name.startswith("INT8")
]


@tiers
@pytest.mark.parametrize("format_name", HALF_SCALED)
def test_scales_and_minima_of_every_kind_are_decoded_exactly(tier, format_name):
    halves = np.arange(0, 65536, 37, dtype=np.uint16)
    special = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00]
    halves = np.concatenate([halves, np.array(special, np.uint16)]).view(np.float16)
    assert_unpacks(tier, format_name, *scaled_by(format_name, halves))


@every_format
def test_every_tier_packs_the_same_bytes(format_name):
    inputs = whole_inputs(format_name, 160)
    source = source_rows(format_name, 37, inputs, np.random.default_rng(3))
    first, *others = [Packed.of(tier, format_name, source, inputs).data for tier in TIERS]
    assert all(np.array_equal(first, other) for other in others)


@tiers
@every_format
def test_packing_in_pieces_writes_each_tile_and_nothing_else(tier, format_name):
    outputs, inputs = 61, whole_inputs(format_name, 96)
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(4))
    whole = Packed.of(tier, format_name, source, inputs)
    tile_bytes = len(whole.data) // whole.tiles
    for tile in range(whole.tiles):
        with guarded(len(whole.data), np.uint8) as data:
            data[:] = 0x5A
            kernels.pack(
                tier, *whole.kind, source.reshape(-1), outputs, inputs, tile, tile + 1, data
            )
        own = slice(tile * tile_bytes, (tile + 1) * tile_bytes)
        assert np.array_equal(data[own], whole.data[own])
        data[own] = 0x5A
        assert np.all(data == 0x5A)


@tiers
@every_format
def test_padded_outputs_are_zero_for_any_activations(tier, format_name):
    inputs = whole_inputs(format_name, 64)
    source = source_rows(format_name, 5, inputs, np.random.default_rng(5))
    packed = Packed.of(tier, format_name, source, inputs)
    x = np.random.default_rng(6).normal(0, 1, (7, inputs)).astype(np.float32)
    out = linear(packed, Prepared.of(tier, mode_of(format_name), x))
    assert np.all(out[:, 5:] == 0)
    assert np.all(out[:, :5] != 0)


@pytest.mark.parametrize(("format_name", "group"), [("Q4_0", 32), ("INT4_G64", 0), ("NF4_B64", 48)])
def test_a_group_that_the_format_does_not_know_is_refused(format_name, group):
    source = source_rows(format_name, 16, 256, np.random.default_rng(8))
    packed = Packed.of(TIERS[0], format_name, source, 256)
    row = np.empty(256, np.float32)
    with pytest.raises(ValueError, match="group"):
        kernels.unpack_row(
            TIERS[0], FORMATS[format_name].number, group, packed.data, 16, 256, 0, row
        )
