"""Intervals: scipy's, wide enough for few windows, and the same at every call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from farthing.core import RequestError
from farthing.quality.intervals import _expanded_tail, estimate, student_cdf, student_quantile


@pytest.mark.parametrize("count", [8, 24])
def test_it_is_scipys_percentile_interval_at_the_expanded_level(count: int) -> None:
    windows = np.random.default_rng(count).gamma(2.0, 1.0, count)
    level = 1 - 2 * _expanded_tail(0.025, count)
    expected = stats.bootstrap(
        (windows,), np.mean, confidence_level=level, n_resamples=100_000, method="percentile", rng=1
    ).confidence_interval
    found = estimate(windows, draws=100_000)
    assert found.value == pytest.approx(windows.mean())
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.02 * width)
    assert found.high == pytest.approx(expected.high, abs=0.02 * width)


def test_a_ratio_of_sums_is_scipys_too() -> None:
    generator = np.random.default_rng(5)
    bits, sizes = generator.gamma(2.0, 1.0, 30), generator.integers(50, 150, 30) + 0.0
    level = 1 - 2 * _expanded_tail(0.025, 30)
    expected = stats.bootstrap(
        (bits, sizes),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        confidence_level=level,
        n_resamples=100_000,
        method="percentile",
        rng=1,
    ).confidence_interval
    found = estimate(bits, per=sizes, draws=100_000)
    assert found.value == pytest.approx(bits.sum() / sizes.sum())
    assert found.low == pytest.approx(expected.low, rel=0.01)
    assert found.high == pytest.approx(expected.high, rel=0.01)


@pytest.mark.parametrize("count", [8, 24])
def test_it_holds_the_truth_as_often_as_it_says(count: int) -> None:
    generator = np.random.default_rng(count)
    held = 0
    for _ in range(1500):
        found = estimate(generator.normal(3.0, 1.0, count), draws=1000)
        held += found.low <= 3.0 <= found.high
    assert 0.93 < held / 1500 < 0.97


def test_a_monotone_transform_takes_value_and_interval_along() -> None:
    windows = np.random.default_rng(0).normal(3.0, 0.2, 24)
    plain, grown = estimate(windows), estimate(windows, np.exp)
    assert grown.value == pytest.approx(np.exp(plain.value))
    assert grown.low == pytest.approx(np.exp(plain.low), rel=1e-3)
    assert grown.high == pytest.approx(np.exp(plain.high), rel=1e-3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_the_value_lies_in_the_interval_and_every_call_gives_the_same(values: list[float]) -> None:
    windows = np.array(values)
    found = estimate(windows, draws=200)
    assert found.low <= found.value <= found.high
    assert found == estimate(windows, draws=200)


def test_windows_that_are_all_alike_have_no_width() -> None:
    found = estimate(np.full(24, 0.95))
    assert found.high - found.low < 1e-12


def test_one_window_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 2 windows"):
        estimate(np.array([1.0]))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 8, 23, 24, 99, 1000])
def test_students_distribution_is_scipys(degrees: int) -> None:
    points = np.linspace(-8, 8, 41)
    found = [student_cdf(float(t), degrees) for t in points]
    assert np.allclose(found, stats.t.cdf(points, degrees), rtol=1e-9, atol=1e-12)
    for probability in (0.001, 0.025, 0.3, 0.5, 0.9, 0.999):
        wanted = stats.t.ppf(probability, degrees)
        assert student_quantile(probability, degrees) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
