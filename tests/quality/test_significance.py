"""Paired tests: scipy's p-values, and Holm's against the closed testing that it stands for."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from farthing.quality.significance import EXACT_WINDOWS, holm, mcnemar_test, sign_flip_test


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemars_exact_test_is_the_binomial_test_of_the_changes(lost: int, gained: int) -> None:
    expected = stats.binomtest(lost, lost + gained, 0.5).pvalue if lost + gained else 1.0
    assert mcnemar_test(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_mcnemars_test_takes_more_changes_than_a_float_has_exponents() -> None:
    assert mcnemar_test(1000, 1000) == 1.0
    assert mcnemar_test(5000, 0) == 0.0
    assert 0 < mcnemar_test(900, 1100) < 1e-4


@pytest.mark.parametrize("count", [2, 5, 11])
def test_changes_of_sign_are_counted_exactly_for_few_windows(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.4, 1.0, count)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue
    assert sign_flip_test(differences) == pytest.approx(expected)


def test_changes_of_sign_are_sampled_for_many_windows() -> None:
    differences = np.random.default_rng(3).normal(0.3, 1.0, 40)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=200_000, rng=1
    ).pvalue
    assert sign_flip_test(differences) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("count", [4, EXACT_WINDOWS, EXACT_WINDOWS + 8])
def test_where_nothing_differs_the_p_value_is_one_and_a_clear_difference_is_rare(
    count: int,
) -> None:
    assert sign_flip_test(np.zeros(count)) == 1.0
    clear = sign_flip_test(np.full(count, 0.1) + np.linspace(0, 0.01, count))
    assert clear == pytest.approx(2 / 2**count if count <= EXACT_WINDOWS else 1.5e-5, rel=0.1)


def test_the_p_value_of_no_difference_is_uniform() -> None:
    generator = np.random.default_rng(0)
    found = [sign_flip_test(generator.normal(size=8)) for _ in range(400)]
    assert stats.kstest(found, "uniform").pvalue > 0.001


def closed_testing(p_values: list[float]) -> list[float]:
    """A hypothesis' p-value is the largest Bonferroni p-value of all intersections with it."""
    indices = range(len(p_values))
    return [
        max(
            min(1.0, size * min(p_values[each] for each in subset))
            for size in range(1, len(p_values) + 1)
            for subset in combinations(indices, size)
            if one in subset
        )
        for one in indices
    ]


@given(st.lists(st.floats(0, 1), max_size=7))
def test_holms_correction_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(closed_testing(p_values))


def test_holms_correction_of_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
