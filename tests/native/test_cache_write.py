"""A token's key and value in its slot of a block of the cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attention_oracle import (
    BLOCK,
    CACHE_TYPES,
    CODED,
    TIERS,
    head_size,
    int4_codes,
    int8_codes,
    kernels,
    normal,
    rotated,
    round_bf16,
    same_bits,
)
from covering import covering

KEYS = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": np.uint16,
    "int8": np.int8,
    "int4-keys": np.uint8,
}
VALUES = {**KEYS, "int4-keys": np.int8}

tiers = pytest.mark.parametrize("tier", TIERS)
cache_types = pytest.mark.parametrize("cache_type", CACHE_TYPES)


class Block:
    """A head's block: views of its parts over memory full of garbage. Elements that are multiplied
    together, pairs of them in bf16, lie side by side: keys [head_dim / 2][slot][2], values
    [slot / 2][head_dim][2]. Of int4 keys a byte holds two: [head_dim / 2][slot].
    """

    def __init__(self, cache_type, head_dim):
        self.cache_type = CACHE_TYPES[cache_type]
        size = kernels.head_block_bytes(self.cache_type, head_dim)
        self.memory = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        self.taken = 0
        step = self.step = 2 if cache_type == "bf16" else 1
        rows = head_dim // (2 if cache_type in ("bf16", "int4-keys") else 1)
        self.keys = self.take(KEYS[cache_type], rows, BLOCK, step)
        self.values = self.take(VALUES[cache_type], BLOCK // step, head_dim, step)
        self.scaled = cache_type in CODED
        if self.scaled:
            self.key_scales = self.take(np.float32 if cache_type == "int8" else np.float16, BLOCK)
            self.value_scales = self.take(np.float32, BLOCK)
        assert size == -(-self.taken // 64) * 64

    def take(self, dtype, *shape):
        start, count = self.taken, int(np.prod(shape))
        self.taken += count * np.dtype(dtype).itemsize
        return self.memory[start : self.taken].view(dtype).reshape(shape)

    def key(self, slot):
        return self.keys[:, slot].reshape(-1)

    def value(self, slot):
        return self.values[slot // self.step, :, slot % self.step]

    def copy_token(self, slot, other):
        self.keys[:, slot] = other.keys[:, slot]
        self.value(slot)[:] = other.value(slot)
        if self.scaled:
            self.key_scales[slot] = other.key_scales[slot]
            self.value_scales[slot] = other.value_scales[slot]

    def write(self, tier, slot, key, value):
        kernels.cache_write(tier, self.cache_type, self.memory, slot, key, value)


def value_elements(cache_type, x):
    if cache_type in CODED:
        return int8_codes(x)[0]
    if cache_type == "bf16":
        return (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(VALUES[cache_type])


def key_elements(cache_type, x):
    if cache_type != "int4-keys":
        return value_elements(cache_type, x)
    codes = int4_codes(rotated(x))[0]
    return codes[0::2] | codes[1::2] << 4


def key_scale(cache_type, x):
    return int8_codes(x)[1] if cache_type == "int8" else int4_codes(rotated(x))[1]


@tiers
@pytest.mark.parametrize(
    ("head_dim", "cache_type", "slot"),
    covering([8, 16, 40, 64, 80, 96, 128, 256], CACHE_TYPES, [0, 12, 13, 31]),
)
def test_a_token_is_rounded_into_its_slot_and_nothing_else_changes(
    tier, cache_type, head_dim, slot
):
    head_dim = head_size(cache_type, head_dim)
    key, value = normal(head_dim + slot, 2, head_dim)
    block, before = Block(cache_type, head_dim), Block(cache_type, head_dim)
    block.write(tier, slot, key, value)
    assert same_bits(block.key(slot), key_elements(cache_type, key))
    assert same_bits(block.value(slot).copy(), value_elements(cache_type, value))

    before.copy_token(slot, block)
    if cache_type in CODED:
        assert block.key_scales[slot] == key_scale(cache_type, key)
        assert block.value_scales[slot] == int8_codes(value)[1]
    assert same_bits(block.memory, before.memory)


@tiers
@cache_types
@given(data=st.data())
def test_every_finite_number_is_rounded_to_nearest_even(tier, cache_type, data):
    # The processor's own bf16 rounding takes subnormal numbers for zero.
    # A rotated key's sums may be four times as large, and its scale is fp16.
    largest = float(np.float32(1e5 if cache_type == "int4-keys" else 3e38))
    floats = st.floats(-largest, largest, width=32, allow_subnormal=cache_type != "bf16")
    key, value = data.draw(arrays(np.float32, (2, 16), elements=floats))
    block = Block(cache_type, 16)
    block.write(tier, 7, key, value)
    assert same_bits(block.key(7), key_elements(cache_type, key))
    assert same_bits(block.value(7).copy(), value_elements(cache_type, value))


@tiers
@pytest.mark.parametrize("cache_type", ["fp16", "bf16"])
def test_halves_between_two_numbers_go_to_the_even_one(tier, cache_type):
    step = 2.0**-10 if cache_type == "fp16" else 2.0**-7
    odd_halves = (1 + step * (np.arange(16) + 0.5)).astype(np.float32)
    block = Block(cache_type, 16)
    block.write(tier, 0, odd_halves, -odd_halves)
    even = (1 + step * 2 * np.ceil(np.arange(16) / 2)).astype(np.float32)
    expected = value_elements(cache_type, even)
    assert same_bits(block.key(0), expected)
    assert np.all(block.value(0).copy().view(np.uint16) == expected.view(np.uint16) | 0x8000)


@tiers
def test_an_int8_vector_of_zeros_has_scale_zero_and_codes_zero(tier):
    block = Block("int8", 64)
    block.write(tier, 5, np.zeros(64, np.float32), -np.zeros(64, np.float32))
    assert block.key_scales[5] == 0
    assert block.value_scales[5] == 0
    assert not block.key(5).any()
    assert not block.value(5).any()


@tiers
def test_int8_codes_stay_within_127_where_the_scale_is_too_small_to_be_exact(tier):
    step = np.float32(2.0**-149)
    key = np.arange(189, 189 - 16, -1).astype(np.float32) * step  # 189 / 127 rounds to one step
    block = Block("int8", 16)
    block.write(tier, 2, key, -key / 3)
    assert block.key_scales[2] == step
    assert block.value_scales[2] == 0
    assert (block.key(2) == 127).all()
    assert not block.value(2).any()


@tiers
def test_int8_scales_belong_to_key_and_value_apart(tier):
    key, value = normal(3, 2, 64)
    block = Block("int8", 64)
    block.write(tier, 9, key, 1000 * value)
    assert block.key_scales[9] == np.abs(key).max() / np.float32(127)
    assert block.value_scales[9] == np.abs(1000 * value).max() / np.float32(127)
    assert np.abs(block.key(9)).max() == 127
    assert np.abs(block.value(9)).max() == 127


@tiers
def test_an_int4_key_of_zeros_has_scale_zero(tier):
    block = Block("int4-keys", 64)
    block.write(tier, 5, np.zeros(64, np.float32), np.ones(64, np.float32))
    assert block.key_scales[5] == 0
    assert block.value_scales[5] > 0


@tiers
def test_int4_steps_cover_all_that_lies_within_the_largest_magnitude(tier):
    """No rotated number is further than half a step from what its code stands for."""
    keys = normal(7, 32, 128)
    block = Block("int4-keys", 128)
    for slot, key in enumerate(keys):
        block.write(tier, slot, key, key)
    codes = np.stack([block.keys[..., 0] & 15, block.keys[..., 0] >> 4], 1).reshape(128, 32).T
    assert (codes.min(), codes.max()) == (0, 15)
    scale = block.key_scales.astype(np.float64)[:, None]
    error = np.abs((codes - 7.5) * scale - rotated(keys))
    assert (error <= scale * (0.5 + 8 * 2.0**-11)).all()


@pytest.mark.parametrize("head_dim", [2, 8, 16, 64, 1024])
def test_rotation_is_the_normalised_hadamard_matrix(head_dim):
    """Sylvester's: H of twice the size is [[H, H], [H, -H]]."""
    matrix = np.ones((1, 1))
    while len(matrix) < head_dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = normal(head_dim, 3, head_dim)
    expected = x.astype(np.float64) @ matrix / np.sqrt(head_dim)
    np.testing.assert_allclose(rotated(x), expected, rtol=1e-5, atol=1e-5)


@tiers
@pytest.mark.parametrize("cache_type", ["fp32", "fp16", "bf16"])
def test_infinities_stay_and_nans_stay_nans(tier, cache_type):
    key = np.array([np.inf, -np.inf, np.nan, 1] * 4, np.float32)
    block = Block(cache_type, 16)
    block.write(tier, 0, key, key)
    stored = block.value(0)
    if cache_type == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(stored.astype(np.float32), key, equal_nan=True)
