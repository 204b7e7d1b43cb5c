"""The formula of speculation, and the figures that are quoted of it."""

from __future__ import annotations

import numpy as np
import pytest

from farthing.core import RequestError
from farthing.lab.speculation_formula import (
    REFERENCES,
    acceptance_bounds,
    best_length,
    speed_up,
    table,
    tokens_per_pass,
)


@pytest.mark.parametrize("each", REFERENCES, ids=str)
def test_the_quoted_gains_follow_from_the_formula(each: object) -> None:
    found = speed_up(each.acceptance, each.guesses, each.draft_cost)
    assert round(found, 2) == each.gain


def test_the_quoted_pass_keeps_fewer_tokens_than_it_costs() -> None:
    assert round(tokens_per_pass(0.3, 4), 1) == 1.4
    assert pytest.approx(1.8) == 1 + 4 * 0.2


@pytest.mark.parametrize(("acceptance", "guesses"), [(0.9, 8), (0.3, 4), (0.0, 5), (1.0, 7)])
def test_tokens_a_pass_are_what_counting_gives(acceptance: float, guesses: int) -> None:
    right = np.random.default_rng(3).random((40_000, guesses)) < acceptance
    counted = 1 + np.cumprod(right, axis=1).sum(axis=1).mean()
    assert tokens_per_pass(acceptance, guesses) == pytest.approx(counted, rel=0.02)
    if acceptance < 1:
        closed = (1 - acceptance ** (guesses + 1)) / (1 - acceptance)
        assert tokens_per_pass(acceptance, guesses) == pytest.approx(closed)


def test_nothing_guessed_is_plain_decoding() -> None:
    assert speed_up(0.7, 0, 0.3) == 1.0
    assert table([0.5, 0.9], [0, 1], 0.0) == [[1.0, 1.5], [1.0, pytest.approx(1.9)]]


@pytest.mark.parametrize(
    ("acceptance", "cost", "slope"), [(0.9, 0.1, 0.0), (0.3, 0.2, 0.0), (0.6, 0.0, 0.1), (0, 0, 0)]
)
def test_the_best_length_is_the_best_of_all(acceptance: float, cost: float, slope: float) -> None:
    best = best_length(acceptance, cost, 16, slope)
    gains = [speed_up(acceptance, n, cost, 1 + n * slope) for n in range(17)]
    assert gains[best] == max(gains)
    assert best == gains.index(max(gains))
    assert max(gains) >= 1.0


def test_the_best_length_is_none_where_guesses_lose() -> None:
    assert best_length(0.2, 0.3, 16) == 0


def test_the_bounds_of_acceptance_meet_where_the_distributions_do() -> None:
    assert acceptance_bounds(0.0) == (1.0, 1.0)
    assert acceptance_bounds(1.0) == (0.0, 0.0)
    assert acceptance_bounds(0.5) == pytest.approx((1 / 3, 0.5))


@pytest.mark.parametrize("wrong", [(1.1, 2, 0.1), (-0.1, 2, 0.1), (0.5, -1, 0.1), (0.5, 2, -1.0)])
def test_what_is_no_acceptance_length_or_cost_is_refused(wrong: tuple[float, int, float]) -> None:
    with pytest.raises(RequestError, match="not"):
        speed_up(*wrong)
