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
    TIERS,
    int8_codes,
    kernels,
    normal,
    round_bf16,
    same_bits,
)

ELEMENTS = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "int8": np.int8}

tiers = pytest.mark.parametrize("tier", TIERS)
cache_types = pytest.mark.parametrize("cache_type", CACHE_TYPES)


class Block:
    """A head's block: views of its parts over memory full of garbage. Elements that are multiplied
    together, pairs of them in bf16, lie side by side: keys [head_dim / 2][slot][2], values
    [slot / 2][head_dim][2].
    """

    def __init__(self, cache_type, head_dim):
        self.cache_type = CACHE_TYPES[cache_type]
        element = np.dtype(ELEMENTS[cache_type])
        size = kernels.head_block_bytes(self.cache_type, head_dim)
        self.memory = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        part = BLOCK * head_dim * element.itemsize
        step = self.step = 2 if cache_type == "bf16" else 1
        keys, values = self.memory[: 2 * part].view(element).reshape(2, -1)
        self.keys = keys.reshape(head_dim // step, BLOCK, step)
        self.values = values.reshape(BLOCK // step, head_dim, step)
        if cache_type == "int8":
            scales = self.memory[2 * part : 2 * part + 2 * BLOCK * 4].view(np.float32)
            self.key_scales, self.value_scales = scales.reshape(2, BLOCK)

    def key(self, slot):
        return self.keys[:, slot].reshape(-1)

    def value(self, slot):
        return self.values[slot // self.step, :, slot % self.step]

    def copy_token(self, slot, other):
        self.keys[:, slot] = other.keys[:, slot]
        self.value(slot)[:] = other.value(slot)

    def write(self, tier, slot, key, value):
        kernels.cache_write(tier, self.cache_type, self.memory, slot, key, value)


def elements(cache_type, x):
    if cache_type == "int8":
        return int8_codes(x)[0]
    if cache_type == "bf16":
        return (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(ELEMENTS[cache_type])


@tiers
@cache_types
@pytest.mark.parametrize("head_dim", [8, 16, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("slot", [0, 12, 13, 31])
def test_a_token_is_rounded_into_its_slot_and_nothing_else_changes(
    tier, cache_type, head_dim, slot
):
    key, value = normal(head_dim + slot, 2, head_dim)
    block, before = Block(cache_type, head_dim), Block(cache_type, head_dim)
    block.write(tier, slot, key, value)
    assert same_bits(block.key(slot), elements(cache_type, key))
    assert same_bits(block.value(slot).copy(), elements(cache_type, value))

    before.copy_token(slot, block)
    if cache_type == "int8":
        assert block.key_scales[slot] == int8_codes(key)[1]
        assert block.value_scales[slot] == int8_codes(value)[1]
        before.key_scales[slot] = block.key_scales[slot]
        before.value_scales[slot] = block.value_scales[slot]
    assert same_bits(block.memory, before.memory)


@tiers
@cache_types
@given(data=st.data())
def test_every_finite_number_is_rounded_to_nearest_even(tier, cache_type, data):
    # The processor's own bf16 rounding takes subnormal numbers for zero.
    largest = float(np.float32(3e38))
    floats = st.floats(-largest, largest, width=32, allow_subnormal=cache_type != "bf16")
    key, value = data.draw(arrays(np.float32, (2, 16), elements=floats))
    block = Block(cache_type, 16)
    block.write(tier, 7, key, value)
    assert same_bits(block.key(7), elements(cache_type, key))
    assert same_bits(block.value(7).copy(), elements(cache_type, value))


@tiers
@pytest.mark.parametrize("cache_type", ["fp16", "bf16"])
def test_halves_between_two_numbers_go_to_the_even_one(tier, cache_type):
    step = 2.0**-10 if cache_type == "fp16" else 2.0**-7
    odd_halves = (1 + step * (np.arange(16) + 0.5)).astype(np.float32)
    block = Block(cache_type, 16)
    block.write(tier, 0, odd_halves, -odd_halves)
    expected = elements(cache_type, (1 + step * 2 * np.ceil(np.arange(16) / 2)).astype(np.float32))
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
@pytest.mark.parametrize("cache_type", ["fp32", "fp16", "bf16"])
def test_infinities_stay_and_nans_stay_nans(tier, cache_type):
    key = np.array([np.inf, -np.inf, np.nan, 1] * 4, np.float32)
    block = Block(cache_type, 16)
    block.write(tier, 0, key, key)
    stored = block.value(0)
    if cache_type == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(stored.astype(np.float32), key, equal_nan=True)
