"""Angles and rotations of the rotary position embedding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_oracle import TIERS, kernels, normal, same_bits

tiers = pytest.mark.parametrize("tier", TIERS)


def angles(tier, position, frequencies):
    cosine, sine = np.full((2, len(frequencies)), np.nan, np.float32)
    kernels.angles(tier, position, frequencies, cosine, sine)
    return cosine, sine


def frequencies(theta, head_dim):
    return theta ** (-np.arange(0, head_dim, 2) / head_dim)


def assert_rounded(result, exact):
    """Half a unit in the last place, and what float64 itself may be off by."""
    error = np.abs(result.astype(np.longdouble) - exact)
    half = np.spacing(np.abs(exact).astype(np.float32)).astype(np.longdouble) / 2
    assert np.all(error <= half * 1.00001 + 2e-16)


@tiers
@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_angles_are_the_rounded_float64_ones_up_to_a_million(tier, theta):
    table = frequencies(theta, 128)
    rng = np.random.default_rng(0)
    positions = [0, 1, 2, 3, 255, 2047, 131071, 10**6, *rng.integers(0, 10**6, 300).tolist()]
    for position in positions:
        cosine, sine = angles(tier, position, table)
        exact = (position * table).astype(np.longdouble)
        assert_rounded(cosine, np.cos(exact))
        assert_rounded(sine, np.sin(exact))


@tiers
def test_angles_hold_where_an_angle_meets_a_multiple_of_half_pi(tier):
    # Integers uncommonly near k pi / 2: numerators of the continued fraction of pi / 2.
    for position in (11, 22, 333, 355, 51819, 52174, 103993, 260515, 312689, 573204, 833719):
        cosine, sine = angles(tier, position, np.ones(1))
        exact = np.array([position], np.longdouble)
        assert_rounded(cosine, np.cos(exact))
        assert_rounded(sine, np.sin(exact))


@tiers
@given(count=st.integers(1, 130), seed=st.integers(0, 1000))
def test_rotation_is_the_plain_float32_formula_for_every_count(tier, count, seed):
    x = normal(seed, 2 * count)
    cosine, sine = angles(tier, seed, frequencies(1e4, 2 * count))
    low, high = x[:count], x[count:]
    expected = np.concatenate([low * cosine - high * sine, high * cosine + low * sine])
    kernels.rope(tier, x, cosine, sine)
    assert same_bits(x, expected)


@tiers
@pytest.mark.parametrize("count", [8, 16, 32, 40, 64, 128])
def test_rotation_agrees_with_complex_float64(tier, count):
    x = normal(count, 2 * count)
    table = frequencies(1e4, 2 * count)
    cosine, sine = angles(tier, 977, table)
    rotated = (x[:count] + 1j * x[count:]) * np.exp(1j * 977 * table)
    kernels.rope(tier, x, cosine, sine)
    tolerance = 3e-7 * np.abs(rotated)
    assert np.all(np.abs(x[:count] - rotated.real) < tolerance)
    assert np.all(np.abs(x[count:] - rotated.imag) < tolerance)


@tiers
def test_position_zero_rotates_nothing(tier):
    x = normal(1, 64)
    before = x.copy()
    kernels.rope(tier, x, *angles(tier, 0, frequencies(1e4, 64)))
    assert np.array_equal(x, before)
