"""What the sampler is made of: exp, log, sums, maxima and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farthing import _native
from farthing.engine.sampler import gumbel_noise

kernels = _native.kernels
TIERS = _native.available_tiers()

tiers = pytest.mark.parametrize("tier", TIERS)
INF = np.inf

FLOATS = st.one_of(
    st.floats(width=32), st.sampled_from([np.nan, INF, -INF, 0.0, -0.0, 1.0, 1.0, 3e38])
)
VECTORS = hnp.arrays(np.float32, st.integers(0, 200), elements=FLOATS)


def each(function, x: np.ndarray) -> np.ndarray:
    out = np.full(len(x), np.nan)
    function(x, out)
    return out


def noise(tier: str, key: tuple[int, int, int], first: int, count: int, least=-INF) -> np.ndarray:
    out = np.full(count, -INF, np.float32)
    kernels.gumbel(tier, *key, first, least, out)
    return out


def assert_close(result: np.ndarray, exact: np.ndarray, ulps: float) -> None:
    error = np.abs(result.astype(np.longdouble) - exact)
    assert np.all(error <= ulps * np.spacing(np.abs(exact).astype(np.float64)))


def test_exp_is_accurate_to_one_unit_in_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-708, 708, 100_000), rng.normal(size=100_000), [708.0, -708.0]])
    assert_close(each(kernels.exp_double, x), np.exp(x.astype(np.longdouble)), 1.0)


def test_exp_of_0_is_1_and_beyond_its_range_it_is_0():
    assert each(kernels.exp_double, np.array([0.0, -0.0])).tolist() == [1, 1]
    assert not each(kernels.exp_double, np.array([-708.1, -1e300, -INF, np.nan, 709, INF])).any()


def test_log_is_accurate_to_one_unit_in_the_last_place_near_1_too():
    rng = np.random.default_rng(1)
    near = 1 + rng.uniform(-1, 1, 50_000) * 2.0 ** -rng.integers(1, 50, 50_000)
    halves = np.sqrt(0.5) * (1 + np.arange(-50, 50) * 2.0**-53)
    wide = np.exp(rng.uniform(-700, 700, 100_000))
    x = np.concatenate([near, halves, halves * 2, wide, 2.0 ** np.arange(-1000, 1000)])
    assert_close(each(kernels.log_double, x), np.log(x.astype(np.longdouble)), 1.0)


def test_log_of_1_is_0():
    assert each(kernels.log_double, np.ones(1)).tolist() == [0]


@tiers
@given(VECTORS)
def test_argmax_is_the_first_of_the_largest_and_never_nan(tier, x):
    possible = np.flatnonzero(~np.isnan(x))
    wanted = int(possible[x[possible].argmax()]) if len(possible) else -1
    assert kernels.argmax(tier, x) == wanted


@tiers
@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 64, 65, 1000, 49_152])
def test_argmax_finds_the_largest_wherever_it_stands(tier, count):
    x = np.random.default_rng(count).normal(size=count).astype(np.float32)
    for place in {0, 1, count // 2, count - 2, count - 1} & set(range(count)):
        changed = x.copy()
        changed[place] = 99
        assert kernels.argmax(tier, changed) == place


@given(VECTORS)
def test_sum_exp_is_the_sum_and_the_same_bits_in_every_tier(x):
    numbers = x[~np.isnan(x)]
    if not len(numbers):
        return
    largest = numbers.max()
    with np.errstate(invalid="ignore"):
        below = np.where(numbers == largest, 0.0, numbers.astype(np.float64) - largest)
    sums = {kernels.sum_exp(tier, x, largest) for tier in TIERS}
    assert len(sums) == 1
    assert sums.pop() == pytest.approx(np.exp(below).sum(), rel=1e-14)


def test_sum_exp_of_a_long_row_loses_nothing():
    x = (np.random.default_rng(2).normal(size=262_144) * 3).astype(np.float32)
    exact = np.exp(x.astype(np.longdouble) - x.max()).sum()
    for tier in TIERS:
        assert kernels.sum_exp(tier, x, x.max()) == pytest.approx(float(exact), rel=1e-14)


@tiers
@given(
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**32 - 1),
    first=st.integers(0, 100_000).map(lambda tile: 4 * tile),
    count=st.integers(1, 300),
)
def test_noise_is_the_definitions(tier, seed, choice, position, first, count):
    wanted = gumbel_noise(seed, choice, position, np.arange(first, first + count))
    got = noise(tier, (seed, choice, position), first, count)
    np.testing.assert_array_max_ulp(got, wanted, 1)
    assert (got == wanted).mean() > 0.9


def test_noise_is_the_same_bits_in_every_tier():
    every = [noise(tier, (9, 8, 7), 0, 300_000) for tier in TIERS]
    assert len({values.tobytes() for values in every}) == 1


@tiers
def test_noise_that_reaches_the_least_wanted_is_never_left_out(tier):
    key = (1, 2, 3)
    whole = noise(tier, key, 0, 1 << 16)
    tiles = whole.reshape(-1, 64)
    # Each tile's own largest, and a hair's breadth around it.
    for tile, largest in enumerate(tiles.max(axis=1)[:300].tolist()):
        assert noise(tier, key, 64 * tile, 64, largest).max() == np.float32(largest)
    for least in (-5.0, -3.13, 0.0, 3.0, 6.0, 9.0):
        some = noise(tier, key, 0, 1 << 16, least)
        assert np.array_equal(some[whole >= least], whole[whole >= least])


@tiers
def test_tiles_without_the_least_wanted_are_left_out(tier):
    key = (1, 2, 3)
    whole = noise(tier, key, 0, 1 << 16).reshape(-1, 64)
    some = noise(tier, key, 0, 1 << 16, 6.0).reshape(-1, 64)
    left_out = np.isinf(some).all(axis=1)
    assert not left_out[whole.max(axis=1) >= 6.0].any()
    assert left_out[whole.max(axis=1) < 5.99].all()
