"""Activations rounded to what a product takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from matrix_kernels import GROUP, TIERS, Prepared
from stored_rows import round_bf16

tiers = pytest.mark.parametrize("tier", TIERS)
ordinary = st.floats(-(2.0**100), 2.0**100, width=32)


def groups_of(x, padded):
    """[rows, groups, 32], zeros after the row's end."""
    whole = np.zeros((len(x), padded), np.float32)
    whole[:, : x.shape[1]] = x
    return whole.reshape(len(x), -1, GROUP)


@tiers
@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 130)), elements=ordinary))
def test_int8_codes_are_the_nearest_and_their_sums_exact(tier, x):
    prepared = Prepared.of(tier, "INT8", x)
    values = groups_of(x, prepared.padded)
    codes = prepared.values.reshape(values.shape)
    largest = np.abs(values).max(axis=-1)
    counts = largest >= 2.0**-120  # smaller groups count as zeros
    assert np.array_equal(prepared.scale, np.where(counts, largest / np.float32(127), 0))
    scale = prepared.scale.astype(np.float64)[..., None]
    error = np.abs(codes * scale - np.where(counts[..., None], values, 0))
    assert np.all(error <= scale * (0.5 + 1e-5))
    assert np.all(np.abs(codes).max(axis=-1)[counts] == 127)
    sums = codes.astype(np.int32).sum(axis=-1)
    assert np.array_equal(prepared.negative_sum, -sums)
    halves = codes.astype(np.int32).reshape(*sums.shape, 2, GROUP // 2).sum(axis=-1)
    assert np.array_equal(prepared.negative_half_sum, -halves)
    assert np.array_equal(prepared.scaled_sum, prepared.scale * sums.astype(np.float32))


@tiers
def test_halves_round_to_even_codes(tier):
    x = np.zeros((1, GROUP), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    assert Prepared.of(tier, "INT8", x).values[0, :7].tolist() == [127, 0, 2, 2, 0, -2, -2]


@tiers
@pytest.mark.parametrize("mode", ["FP32", "BF16", "INT8"])
@pytest.mark.parametrize("rows", [3, 21])
def test_preparing_rows_in_pieces_gives_the_same_bytes(tier, mode, rows):
    """Twenty-one rows of 64 columns are more than two batches of groups, the last one not full."""
    x = np.random.default_rng(0).normal(0, 1, (rows, 200)).astype(np.float32)
    whole = Prepared.of(tier, mode, x)
    pieces = Prepared.of(tier, mode, x, columns=[32, 128, 192], row_cuts=[1, 2])
    assert np.array_equal(whole.values, pieces.values)
    if mode == "INT8":
        assert np.array_equal(whole.scale, pieces.scale)
        assert np.array_equal(whole.scaled_sum, pieces.scaled_sum)
        assert np.array_equal(whole.negative_sum, pieces.negative_sum)
        assert np.array_equal(whole.negative_half_sum, pieces.negative_half_sum)


@tiers
@pytest.mark.parametrize("mode", ["FP32", "BF16", "INT8"])
@pytest.mark.parametrize("inputs", [1, 15, 16, 17, 31, 33, 100])
def test_the_padding_of_a_row_is_zero(tier, mode, inputs):
    x = np.random.default_rng(1).normal(0, 1, (4, inputs)).astype(np.float32)
    prepared = Prepared.of(tier, mode, x)
    assert np.all(prepared.values[:, inputs:] == 0)
    assert np.all(prepared.values[:, 0] != 0) or mode == "INT8"


@tiers
def test_fp32_rows_are_copied_bit_for_bit(tier):
    bits = np.random.default_rng(2).integers(0, 2**32, (2, 96), dtype=np.uint32)
    x = bits.view(np.float32)
    assert np.array_equal(Prepared.of(tier, "FP32", x).values.view(np.uint32), bits)


@tiers
@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float32, (1, 64), elements=st.floats(-(2.0**126), 2.0**126, width=32)))
def test_bf16_rows_are_rounded_to_the_nearest_even(tier, x):
    normal = np.where(np.abs(x) < 2.0**-126, np.float32(0), x)  # subnormals become zero
    assert np.array_equal(Prepared.of(tier, "BF16", normal).values, round_bf16(normal))


@tiers
def test_bf16_keeps_what_is_not_a_finite_number(tier):
    x = np.array([[np.inf, -np.inf, np.nan, 3.4e38, 1e-40, -1e-40]], np.float32)
    values = (Prepared.of(tier, "BF16", x).values.astype(np.uint32) << 16).view(np.float32)[0]
    assert values[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(values[2])
    assert values[3] == np.inf  # beyond the largest bf16
    assert np.all(values[4:6] == 0)


@tiers
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("inputs", [128, 1024])
def test_a_bad_number_shows_in_its_group_and_no_other(tier, bad, inputs):
    x = np.random.default_rng(3).normal(0, 1, (1, inputs)).astype(np.float32)
    good = Prepared.of(tier, "INT8", x)
    x[0, 40] = bad
    prepared = Prepared.of(tier, "INT8", x)
    assert not np.isfinite(prepared.scale[0, 1])
    assert np.all(np.abs(prepared.values.astype(int)) <= 127)
    others = [0, *range(2, inputs // GROUP)]
    assert np.array_equal(
        prepared.values.reshape(-1, GROUP)[others], good.values.reshape(-1, GROUP)[others]
    )
    assert np.array_equal(prepared.scale[0, others], good.scale[0, others])
    assert np.array_equal(prepared.negative_sum[0, others], good.negative_sum[0, others])


def test_every_tier_prepares_the_same_bytes():
    x = np.random.default_rng(4).normal(0, 3, (5, 333)).astype(np.float32)
    for mode in ("BF16", "INT8"):
        first, *others = [Prepared.of(tier, mode, x) for tier in TIERS]
        for other in others:
            assert np.array_equal(first.values, other.values)
            if mode == "INT8":
                assert np.array_equal(first.scale, other.scale)
                assert np.array_equal(first.negative_sum, other.negative_sum)
                assert np.array_equal(first.negative_half_sum, other.negative_half_sum)


# --- one scale for all groups


@tiers
@settings(max_examples=60, deadline=None)
@given(
    x=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 130)), elements=ordinary),
    scale=st.floats(2.0**-20, 2.0**20, width=32),
)
def test_codes_of_a_fixed_scale_are_the_quotients_rounded_and_clamped(tier, x, scale):
    prepared = Prepared.of(tier, "INT8", x, fixed_scale=scale)
    codes = np.clip(np.rint(x / np.float32(scale)), -127, 127).astype(np.int8)
    assert np.array_equal(prepared.values[:, : x.shape[1]], codes)
    assert np.all(prepared.values[:, x.shape[1] :] == 0)
    assert np.all(prepared.scale == np.float32(scale))
    sums = groups_of(codes, prepared.padded).sum(axis=-1).astype(np.int32)
    assert np.array_equal(prepared.negative_sum, -sums)
    halves = prepared.values.reshape(*sums.shape, 2, GROUP // 2).astype(np.int32).sum(axis=-1)
    assert np.array_equal(prepared.negative_half_sum, -halves)
    assert np.array_equal(prepared.scaled_sum, np.float32(scale) * sums.astype(np.float32))


@tiers
@pytest.mark.parametrize("rows", [3, 21])
def test_a_fixed_scale_gives_the_same_bytes_in_pieces(tier, rows):
    x = np.random.default_rng(0).normal(0, 1, (rows, 200)).astype(np.float32)
    whole = Prepared.of(tier, "INT8", x, fixed_scale=0.01)
    pieces = Prepared.of(tier, "INT8", x, [32, 128, 192], [1, 2], fixed_scale=0.01)
    assert np.array_equal(whole.values, pieces.values)
    assert np.array_equal(whole.scaled_sum, pieces.scaled_sum)
    assert np.array_equal(whole.negative_half_sum, pieces.negative_half_sum)


@tiers
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_shows_under_a_fixed_scale_and_changes_no_neighbour(tier, bad):
    x = np.random.default_rng(3).normal(0, 1, (1, 256)).astype(np.float32)
    x[0, 70] = 1e38  # its quotient is infinite
    good = Prepared.of(tier, "INT8", x, fixed_scale=1e-3)
    x[0, 40] = bad
    prepared = Prepared.of(tier, "INT8", x, fixed_scale=1e-3)
    assert not np.isfinite(prepared.scale[0, 1])
    good.scale[0, 1] = good.values[0, 40] = 0
    prepared.scale[0, 1] = 0
    assert good.values[0, 70] == 127
    assert np.array_equal(prepared.values, good.values)
    assert np.array_equal(prepared.scale, good.scale)


def test_every_tier_prepares_the_same_bytes_under_a_fixed_scale():
    x = np.random.default_rng(4).normal(0, 3, (5, 333)).astype(np.float32)
    first, *others = [Prepared.of(tier, "INT8", x, fixed_scale=0.02) for tier in TIERS]
    for other in others:
        assert np.array_equal(first.memory, other.memory)
