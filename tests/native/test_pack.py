"""Packing against the gguf package and the layout that native/kernels.h states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_kernels import (
    FLOAT_FORMATS,
    FORMATS,
    GROUP,
    HALVES,
    QUANTISED,
    TIERS,
    TILE,
    Packed,
    Prepared,
    dequantised,
    guarded,
    kernels,
    linear,
    mode_of,
    source_rows,
)

tiers = pytest.mark.parametrize("tier", TIERS)
every_format = pytest.mark.parametrize("format_name", FORMATS)
quantised = pytest.mark.parametrize("format_name", QUANTISED)


def same_bits(a, b):
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@tiers
@every_format
@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (17, 96), (48, 576), (40, 2080)])
def test_an_unpacked_row_has_the_bits_that_the_gguf_package_gives(tier, format_name, shape):
    outputs, inputs = shape
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(1))
    packed = Packed.of(tier, format_name, source, inputs)
    assert same_bits(packed.unpack(), dequantised(format_name, source))


@tiers
@pytest.mark.parametrize("format_name", FLOAT_FORMATS)
@settings(max_examples=20, deadline=None)
@given(outputs=st.integers(1, 40), inputs=st.integers(1, 130))
def test_rows_of_any_length_survive_packing(tier, format_name, outputs, inputs):
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(inputs))
    packed = Packed.of(tier, format_name, source, inputs)
    assert same_bits(packed.unpack(), dequantised(format_name, source))


@tiers
@quantised
def test_scales_of_every_kind_are_decoded_exactly(tier, format_name):
    """Subnormal, infinite, NaN and both zeros: all 65,536 halves."""
    rng = np.random.default_rng(2)
    source = source_rows(format_name, 256, 256 * GROUP, rng).reshape(256, 256, -1).copy()
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    source[..., :2] = every.view(np.uint8)
    source = source.reshape(256, -1)
    values = Packed.of(tier, format_name, source, 256 * GROUP).unpack()
    with np.errstate(invalid="ignore"):
        expected = dequantised(format_name, source)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(values), nan)
    assert same_bits(values[~nan], expected[~nan])


@every_format
def test_every_tier_packs_the_same_bytes(format_name):
    source = source_rows(format_name, 37, 160, np.random.default_rng(3))
    first, *others = [Packed.of(tier, format_name, source, 160).data for tier in TIERS]
    assert all(np.array_equal(first, other) for other in others)


@tiers
@every_format
def test_packing_in_pieces_writes_each_tile_and_nothing_else(tier, format_name):
    outputs, inputs = 61, 96
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(4))
    whole = Packed.of(tier, format_name, source, inputs)
    tile_bytes = len(whole.data) // whole.tiles
    for tile in range(whole.tiles):
        with guarded(len(whole.data), np.uint8) as data:
            data[:] = 0x5A
            kernels.pack(
                tier, FORMATS[format_name], source.reshape(-1), outputs, inputs, tile, tile + 1,
                data,
            )  # fmt: skip
        own = slice(tile * tile_bytes, (tile + 1) * tile_bytes)
        assert np.array_equal(data[own], whole.data[own])
        data[own] = 0x5A
        assert np.all(data == 0x5A)


@tiers
@every_format
def test_padded_outputs_are_zero_for_any_activations(tier, format_name):
    source = source_rows(format_name, 5, 64, np.random.default_rng(5))
    packed = Packed.of(tier, format_name, source, 64)
    x = np.random.default_rng(6).normal(0, 1, (7, 64)).astype(np.float32)
    out = linear(packed, Prepared.of(tier, mode_of(format_name), x))
    assert np.all(out[:, 5:] == 0)
    assert np.all(out[:, :5] != 0)


@quantised
def test_the_layout_is_the_one_that_the_header_states(format_name):
    outputs, groups = 16, 3
    source = source_rows(format_name, outputs, groups * GROUP, np.random.default_rng(7))
    data = Packed.of(TIERS[0], format_name, source, groups * GROUP).data
    blocks = source.reshape(outputs, groups, -1)
    halves = HALVES[format_name]
    if format_name == "Q8_0":
        codes = blocks[..., 2:].view(np.int8).astype(int) + 128
    else:
        low, high = blocks[..., -16:] & 15, blocks[..., -16:] >> 4
        codes = np.concatenate([low, high], axis=-1).astype(int)
    fifth = format_name.startswith("Q5")
    code_bytes = 512 if format_name == "Q8_0" else 256 + 64 * fifth
    for g in range(groups):
        group = data[g * code_bytes : (g + 1) * code_bytes]
        for n in range(TILE):
            for k in range(GROUP):
                if format_name == "Q8_0":
                    code = group[k // 4 * 64 + n * 4 + k % 4]
                else:
                    byte = group[k % 16 // 4 * 64 + n * 4 + k % 4]
                    code = byte & 15 if k < 16 else byte >> 4
                assert code == codes[n, g, k]
                if fifth:
                    masks = group[256:].view(np.uint64)
                    mask = int(masks[k % 16 // 4 * 2 + k // 16])
                    bits = blocks[n, g, 2 * halves : 2 * halves + 4].view(np.uint32)
                    assert mask >> (n * 4 + k % 4) & 1 == int(bits[0]) >> k & 1
    planes = data[groups * code_bytes :][: halves * groups * TILE * 2].view(np.uint16)
    expected = blocks[..., : 2 * halves].copy().view(np.uint16).transpose(2, 1, 0)
    assert np.array_equal(planes.reshape(halves, groups, TILE), expected)
