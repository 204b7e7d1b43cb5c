"""Packed bytes read in numpy as native/formats.h states the layout: they are the stored weights."""

from __future__ import annotations

import numpy as np
import pytest

from farthing.quant.iq4 import IQ4_NL_LEVELS
from farthing.quant.nf4 import NF4_LEVELS
from matrix_kernels import (
    FLOAT_FORMATS,
    FORMATS,
    GROUP,
    TIERS,
    TILE,
    Packed,
    dequantised,
    source_rows,
)

# Bits in the vectors, upper bits, code of zero.
CODES = {
    "Q8_0": (8, 0, 128), "Q4_0": (4, 0, 8), "Q4_1": (4, 0, 0), "Q5_0": (4, 1, 16),
    "Q5_1": (4, 1, 0), "Q4_K": (4, 0, 0), "Q5_K": (4, 1, 0), "Q6_K": (4, 2, 32),
    "Q2_K": (2, 0, 0), "Q3_K": (2, 1, 4), "IQ4_NL": (4, 0, 0), "INT8": (8, 0, 128),
    "INT4": (4, 0, 8), "INT4_ASYM": (4, 0, 0), "NF4": (4, 0, 0),
}  # fmt: skip
SPAN_BYTES = {
    "Q4_1": 64, "Q5_1": 64, "Q4_K": 64, "Q5_K": 64, "Q2_K": 64, "INT8": 64, "INT4_ASYM": 48,
}  # fmt: skip
SUPER_BLOCKS = ("Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K")


def vectors(data, bits):
    """[groups, vectors, 64 bytes] -> [groups, 32 inputs, 16 outputs]."""
    quads = [data >> np.uint8(bits * i) & np.uint8(2**bits - 1) for i in range(8 // bits)]
    by_quad = np.stack(quads, axis=2).reshape(len(data), 8, TILE, 4)
    return by_quad.transpose(0, 1, 3, 2).reshape(len(data), GROUP, TILE)


def codes_of(data, bits, upper_bits):
    """The code bytes of a tile, [groups, bytes] -> [groups, 32, 16] int."""
    lower_bytes = 64 * bits
    codes = vectors(data[:, :lower_bytes].reshape(len(data), -1, 64), bits).astype(int)
    upper = data[:, lower_bytes:]
    if upper_bits == 1:
        masks = np.unpackbits(upper.reshape(len(data), 8, 8), axis=-1, bitorder="little")
        spread = masks.reshape(len(data), 8, TILE, 4).transpose(0, 1, 3, 2)
        codes |= spread.reshape(codes.shape).astype(int) << bits
    if upper_bits == 2:
        codes |= vectors(upper.reshape(len(data), 2, 64), 2).astype(int) << bits
    return codes


def halves_at(spans, first):
    """[spans, 16] float32 of the fp16 numbers from byte `first` on."""
    return spans[:, first : first + 32].copy().view(np.float16).astype(np.float32)


def scales_of(name, spans, parts, groups):
    """Scales and minima, [groups, 32, 16] float32 (or 0), from one tile's spans and parts."""
    if name == "INT8":
        return spans[:, None, :].view(np.float32), np.float32(0)
    per_span = -(-groups // len(spans))
    scales, minima = halves_at(spans, 0), np.float32(0)
    scales = np.repeat(scales, per_span, axis=0)[:groups, None]
    if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"):
        minima = np.repeat(halves_at(spans, 32), per_span, axis=0)[:groups, None]
    if parts.size:
        first, second = parts[:, None, :16], parts[:, None, 16:]
        if name in ("Q4_K", "Q5_K"):
            return scales * first.astype(np.float32), minima * second.astype(np.float32)
        both = np.repeat(np.concatenate([first, second], axis=1), 16, axis=1)
        if name == "Q2_K":
            return scales * (both & 15).astype(np.float32), minima * (both >> 4).astype(np.float32)
        return scales * both.view(np.int8).astype(np.float32), minima
    return scales, minima


def read_tile(format_name, tile, inputs, group):
    """[16, inputs] float32 from a tile's bytes."""
    name = format_name if format_name in CODES else format_name.removesuffix("_EXACT")
    if name not in CODES:
        name = "INT4_ASYM" if name.endswith("ASYM") else name.split("_")[0]
    bits, upper_bits, zero = CODES[name]
    groups = -(-inputs // GROUP)
    span = 256 if name in SUPER_BLOCKS else inputs if name == "INT8" else group or 32
    code_bytes, span_bytes = 64 * (bits + upper_bits), SPAN_BYTES.get(name, 32)
    spans_at = groups * code_bytes
    parts_at = spans_at + -(-inputs // span) * span_bytes
    codes = codes_of(tile[:spans_at].reshape(groups, -1), bits, upper_bits)
    spans = tile[spans_at:parts_at].reshape(-1, span_bytes)
    parts = tile[parts_at : parts_at + groups * 32] if name in SUPER_BLOCKS else tile[:0]
    scales, minima = scales_of(name, spans, parts.reshape(-1, 32), groups)
    if name == "IQ4_NL":
        values = IQ4_NL_LEVELS[codes]
    elif name == "NF4":
        values = NF4_LEVELS[codes]
    elif name == "INT4_ASYM":
        per_span = -(-groups // len(spans))
        values = codes - np.repeat(spans[:, 32:].astype(int), per_span, axis=0)[:groups, None]
    else:
        values = codes - zero
    weights = scales * values.astype(np.float32) + minima
    return weights.reshape(-1, TILE).T[:, :inputs]


@pytest.mark.parametrize("format_name", [f for f in FORMATS if f not in FLOAT_FORMATS])
@pytest.mark.parametrize("inputs", [256, 768])
def test_the_layout_is_the_one_that_the_header_states(format_name, inputs):
    source = source_rows(format_name, 2 * TILE, inputs, np.random.default_rng(7))
    packed = Packed.of(TIERS[0], format_name, source, inputs)
    tiles = packed.data.reshape(2, -1)
    weights = np.concatenate([read_tile(format_name, t, inputs, packed.kind[1]) for t in tiles])
    assert np.array_equal(weights, dequantised(format_name, source, inputs))


@pytest.mark.parametrize("format_name", ["INT4_G64", "INT4_G128_ASYM", "NF4_B64", "INT4_ROW"])
def test_a_short_last_group_has_a_scale_of_its_own(format_name):
    inputs = 300
    source = source_rows(format_name, TILE, inputs, np.random.default_rng(8))
    packed = Packed.of(TIERS[0], format_name, source, inputs)
    weights = read_tile(format_name, packed.data, inputs, packed.kind[1])
    assert np.array_equal(weights, dequantised(format_name, source, inputs))


@pytest.mark.parametrize("format_name", FLOAT_FORMATS)
def test_numbers_lie_input_by_input(format_name):
    inputs = 64
    source = source_rows(format_name, TILE, inputs, np.random.default_rng(9))
    data = Packed.of(TIERS[0], format_name, source, inputs).data
    if format_name == "F32":
        weights = data.view(np.float32).reshape(inputs, TILE).T
    elif format_name == "F16":
        weights = data.view(np.float16).astype(np.float32).reshape(inputs, TILE).T
    else:
        pairs = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        weights = pairs.reshape(inputs // 2, TILE, 2).transpose(1, 0, 2).reshape(TILE, inputs)
    assert np.array_equal(weights, dequantised(format_name, source, inputs))
