"""The kernels that work on one row, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farthing import _native
from matrix_kernels import TIERS, guarded, kernels

tiers = pytest.mark.parametrize("tier", TIERS)
lengths = pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 63, 64, 65, 576, 1000])
PAIRS = {"add": kernels.add, "swiglu": kernels.swiglu, "geglu": kernels.geglu}
pairs = pytest.mark.parametrize("name", PAIRS)


def row(count, seed=0, spread=3.0):
    return np.random.default_rng(seed).normal(0, spread, count).astype(np.float32)


def call(kernel, tier, *arguments):
    """The kernel's output, as long as its first argument."""
    with guarded(len(arguments[0]), np.float32) as out:
        kernel(tier, *arguments, out)
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def expected(name, a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return {"add": lambda: a + b, "swiglu": lambda: silu(a) * b, "geglu": lambda: gelu(a) * b}[
        name
    ]()


@tiers
@lengths
def test_rmsnorm_divides_by_the_root_of_the_mean_square(tier, count):
    x, gain = row(count), row(count, 1)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt(np.mean(wide**2) + 1e-5) * gain
    np.testing.assert_allclose(call(kernels.rmsnorm, tier, x, gain, 1e-5), exact, rtol=1e-6)


@tiers
def test_rmsnorm_of_zeros_is_zero(tier):
    zeros = np.zeros(100, np.float32)
    assert np.array_equal(call(kernels.rmsnorm, tier, zeros, row(100), 1e-6), zeros)


@tiers
@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 300), offset=st.integers(0, 20))
def test_rmsnorm_is_a_function_of_the_row_alone(tier, count, offset):
    """Neither the address of the row nor what stands around it changes a bit."""
    x, gain = row(count), row(count, 1)
    around = np.full(count + 60, np.nan, np.float32)
    around[offset : offset + count] = x
    moved = around[offset : offset + count]
    first = call(kernels.rmsnorm, tier, x, gain, 1e-6)
    second = call(kernels.rmsnorm, tier, moved, gain, 1e-6)
    assert np.array_equal(first.view(np.uint32), second.view(np.uint32))


@tiers
@lengths
@pytest.mark.parametrize("factor", [0.0, -2.5, 1e-30])
def test_scale_multiplies(tier, count, factor):
    x = row(count)
    assert np.array_equal(call(kernels.scale, tier, x, factor), x * np.float32(factor))


@tiers
@lengths
@pairs
def test_pairs_of_rows_are_right_to_float32(tier, count, name):
    a, b = row(count), row(count, 1)
    out = call(PAIRS[name], tier, a, b)
    np.testing.assert_allclose(out, expected(name, a, b), rtol=3e-6, atol=1e-9)


@tiers
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
@pytest.mark.parametrize("sign", [1, -1])
def test_gates_are_right_from_the_smallest_numbers_to_the_largest(tier, name, sign):
    """Relative to the result down to its underflow, where it is at most 1e-30 away."""
    a = (sign * np.logspace(-30, 4, 2000)).astype(np.float32)
    ones = np.ones_like(a)
    wide = a.astype(np.float64)
    with np.errstate(over="ignore"):
        # The logistic form: 1 + tanh loses every digit where tanh is close to -1.
        slope = wide if name == "swiglu" else 1.5957691216057308 * (wide + 0.044715 * wide**3)
        exact = wide / (1 + np.exp(-slope))
    # An exponent e^t carries t's own rounding: about |t| units in the last place.
    size = 1e-6 + 2.0**-22 * np.minimum(np.abs(slope), 100)
    assert np.all(np.abs(call(PAIRS[name], tier, a, ones) - exact) <= size * np.abs(exact) + 1e-30)


@tiers
@pairs
def test_out_may_be_an_input(tier, name):
    a, b = row(77), row(77, 1)
    separate = call(PAIRS[name], tier, a, b)
    into_first, into_second = a.copy(), b.copy()
    PAIRS[name](tier, into_first, b, into_first)
    PAIRS[name](tier, a, into_second, into_second)
    assert np.array_equal(into_first, separate)
    assert np.array_equal(into_second, separate)


@tiers
def test_rmsnorm_in_place_gives_the_same(tier):
    x, gain = row(77), row(77, 1)
    separate = call(kernels.rmsnorm, tier, x, gain, 1e-6)
    kernels.rmsnorm(tier, x, gain, 1e-6, x)
    assert np.array_equal(x, separate)


@tiers
@pairs
def test_a_nan_stays_in_its_place(tier, name):
    a, b = row(50), row(50, 1)
    good = call(PAIRS[name], tier, a, b)
    a[20] = np.nan
    out = call(PAIRS[name], tier, a, b)
    assert np.isnan(out[20])
    assert np.array_equal(np.delete(out, 20), np.delete(good, 20))


@tiers
def test_a_nan_spoils_a_normalised_row(tier):
    x = row(50)
    x[20] = np.nan
    assert np.all(np.isnan(call(kernels.rmsnorm, tier, x, row(50, 1), 1e-6)))


@pytest.mark.skipif(
    not {"avx2", "avx512"} <= set(_native.available_tiers()), reason="this machine lacks a tier"
)
def test_the_tiers_that_round_alike_give_the_same_bits():
    a, b = row(1001), row(1001, 1)
    for kernel, arguments in [
        (kernels.rmsnorm, (a, b, 1e-6)),
        *[(kernel, (a, b)) for kernel in PAIRS.values()],
    ]:
        first, second = [call(kernel, tier, *arguments) for tier in ("avx2", "avx512")]
        assert np.array_equal(first.view(np.uint32), second.view(np.uint32))
