"""Axes: every number has its place, and what is written beside them is round."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.lab.report.scales import Scale, named, scale_for, thinned

_VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8)


@given(_VALUES, st.sampled_from(["linear", "log"]), st.booleans(), st.booleans())
def test_whatever_is_measured_gets_an_axis_that_holds_it(
    values: list[float], kind: str, zero: bool, exact: bool
) -> None:
    scale = scale_for(values, kind, 300.0, 10.0, zero=zero, exact=exact)  # type: ignore[arg-type]
    assert scale.low < scale.high
    for value in filter(scale.has, values):
        assert 9 <= scale.place(value) <= 301
    ticks = scale.ticks()
    assert len(ticks) <= 12
    assert all(9 <= scale.place(tick) <= 301 for tick in ticks)
    assert all(named(tick) for tick in ticks)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_logarithmic_axis_has_no_place_for_what_has_no_logarithm(wrong: float) -> None:
    assert not scale_for([1, 10], "log", 0, 1).has(wrong)


def test_a_linear_axis_is_even_and_a_logarithmic_one_even_in_decades() -> None:
    assert Scale("linear", 0, 10, 0, 100).place(2.5) == pytest.approx(25)
    assert Scale("log", 1, 1e4, 100, 0).place(10) == pytest.approx(75)


def test_ticks_are_round_numbers() -> None:
    assert scale_for([3, 97], "linear", 0, 1, zero=True).ticks() == [0, 20, 40, 60, 80, 100]
    assert scale_for([0.002, 700], "log", 0, 1).ticks() == [0.001, 0.01, 0.1, 1, 10, 100, 1000]
    few = scale_for([3, 40], "log", 0, 1)
    assert few.ticks() == [pytest.approx(each) for each in (2, 5, 10, 20, 50)]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "0"),
        (128_000, "128,000"),
        (0.25, "0.25"),
        (1e9, "10⁹"),
        (2e-7, "2·10⁻⁷"),
        (-1500, "-1,500"),
    ],
)
def test_a_number_beside_an_axis_is_short(value: float, name: str) -> None:
    assert named(value) == name


def test_of_many_ticks_some_are_left_out_evenly() -> None:
    assert thinned(list(range(20)), 7) == [0, 3, 6, 9, 12, 15, 18]
