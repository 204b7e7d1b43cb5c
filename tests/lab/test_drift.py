"""How far a machine's speed moves: on a machine whose speed, and whose clock, is a script."""

from __future__ import annotations

from functools import partial
from math import exp
from random import Random
from statistics import median

import pytest

from farthing.lab.drift import DEVIATIONS, Drift, Gauge, Reading, drift_of
from farthing.lab.report.compare import Verdict, judge
from farthing.lab.samples import Samples, interleaved
from farthing.lab.table import Column

COLUMN = Column("time", "ms", ".3f")
FIGURES = 60
GROUP = 6


class Machine:
    """Its speed wanders, slowly: by `drift` on the whole, half of it within about 20 s.

    What is done on it moves its clock. `slowed` figures take so many times as long.
    """

    def __init__(self, seed: int, drift: float, slowed: float = 1.0) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.drift = drift
        self.slowed = slowed
        self.offset = self.random.gauss(0, drift / 2**0.5)
        self.wander = self.random.gauss(0, drift / 2**0.5)

    def work(self, seconds: float) -> float:
        """What it takes at the speed of the moment, and a little noise."""
        keeps = exp(-seconds / 20)
        self.wander = keeps * self.wander + self.random.gauss(
            0, self.drift / 2**0.5 * (1 - keeps**2) ** 0.5
        )
        taken = seconds * exp(self.offset + self.wander + self.random.gauss(0, 0.002))
        self.now += taken
        return taken

    def reading(self) -> Reading:
        speeds = [0.1 / self.work(0.1) for _ in range(3)]
        return Reading(*speeds)

    def measured(self) -> tuple[list[Samples], Drift]:
        """A run: groups of figures, each measured in three rounds within seconds."""
        gauge = Gauge(1, self.reading, lambda: self.now)
        found: list[Samples] = []
        for _ in range(FIGURES // GROUP):
            gauge.look()
            tasks = {
                str(n): partial(self.work, self.slowed * (0.2 + 0.05 * n)) for n in range(GROUP)
            }
            found += interleaved(tasks, 3, lambda _: None, gauge.look).values()
            self.work(15)  # something that is not timed
        return found, drift_of([gauge.taken])


def runs(seed: int, drift: float, slowed: float = 1.0) -> list[tuple[list[Samples], Drift]]:
    return [Machine(2 * seed, drift).measured(), Machine(2 * seed + 1, drift, slowed).measured()]


def overlaps(pair: list[tuple[list[Samples], Drift]], *, widened: bool) -> float:
    """The share of figures that the two runs do not contradict each other in."""
    (ones, drift), (others, other_drift) = pair
    verdicts = [
        judge(
            one.widened(drift) if widened else one,
            other.widened(other_drift) if widened else other,
            COLUMN,
            COLUMN,
        )
        for one, other in zip(ones, others, strict=True)
    ]
    return verdicts.count(Verdict.INSIDE) / len(verdicts)


@pytest.mark.parametrize("drift", [0.01, 0.05, 0.15])
def test_two_runs_on_a_machine_that_drifts_overlap_as_often_as_it_is_said(drift: float) -> None:
    pairs = [runs(seed, drift) for seed in range(40)]
    with_drift = sum(overlaps(pair, widened=True) for pair in pairs) / len(pairs)
    without = sum(overlaps(pair, widened=False) for pair in pairs) / len(pairs)
    assert with_drift >= 0.95
    assert without < 0.6


def test_without_drift_intervals_stay_narrow() -> None:
    for seed in range(5):
        found, drift = Machine(seed, 0.0).measured()
        assert drift.largest < 0.004
        assert all(
            (each.high - each.low) / each.median < 0.03 for each in map_widened(found, drift)
        )


def map_widened(found: list[Samples], drift: Drift) -> list[Samples]:
    return [each.widened(drift) for each in found]


def test_a_kernel_that_is_slowed_on_purpose_is_outside_the_intervals() -> None:
    for seed in range(10):
        assert overlaps(runs(seed, 0.02, slowed=1.5), widened=True) == 0


# --- the numbers


def test_what_moves_is_told_for_each_kind_of_work_and_the_largest_counts() -> None:
    readings = [Reading(e, 2.0, 1.0) for e in (1.0, exp(0.2), 1.0, exp(0.2))]
    drift = drift_of([readings])
    assert drift.reading == pytest.approx(0.2 / 3**0.5)  # of four values 0.1 off their mean
    assert (drift.multiplying, drift.interpreting) == (0.0, 0.0)
    assert drift.largest == drift.reading
    assert drift.readings == 4
    assert drift.between == 0.0  # from one reading to the next: rounds show that themselves
    assert "within 28.9% reading, 0.0% multiplying, 0.0% in Python" in str(drift)


def test_how_far_one_kind_of_work_moves_over_another_is_told_without_what_differs_at_once() -> None:
    slowly = [Reading(exp(0.01 * n), 1.0, 1.0) for n in range(20)]
    at_once = [Reading(exp(0.05 * (-1) ** n), 1.0, 1.0) for n in range(20)]
    alike = [Reading(exp(0.01 * n), exp(0.01 * n), exp(0.01 * n)) for n in range(20)]
    assert drift_of([slowly]).between == pytest.approx(drift_of([slowly]).reading, rel=0.01)
    assert drift_of([at_once]).between == drift_of([alike]).between == 0.0


def test_ratios_of_two_runs_overlap_as_often_as_it_is_said() -> None:
    """Their rounds scatter; what both sides of a ratio meet is the same."""
    random = Random(1)

    def run() -> list[Samples]:
        return [
            Samples(tuple(2 * exp(random.gauss(0, 0.03)) for _ in range(3)), paired=True)
            for _ in range(400)
        ]

    steady = Drift(9, 0.1, 0.1, 0.1, 0.0)
    pair = [(run(), steady), (run(), steady)]
    assert overlaps(pair, widened=True) >= 0.95
    assert overlaps(pair, widened=False) < 0.95


def test_what_stands_beside_each_other_is_not_looked_for_between_runs() -> None:
    slow, fast = [Reading(1.0, 1.0, 1.0)] * 4, [Reading(3.0, 3.0, 3.0)] * 4
    assert drift_of([slow, fast]).between == 0.0
    assert drift_of([slow, fast]).largest > 0.5


def test_of_too_few_readings_nothing_is_concluded() -> None:
    drift = drift_of([[Reading(1.0, 1.0, 1.0)], [Reading(9.0, 9.0, 9.0)]])
    assert (drift.largest, drift.between) == (0.0, 0.0)
    assert "not known" in str(drift)


def test_readings_are_no_closer_than_two_seconds() -> None:
    now = [0.0]
    gauge = Gauge(1, lambda: Reading(1.0, 1.0, 1.0), lambda: now[0])
    for moment in (0.0, 0.5, 1.9, 2.0, 3.9, 4.5):
        now[0] = moment
        gauge.look()
    assert len(gauge.taken) == 3


def test_this_machine_has_a_speed_of_each_kind() -> None:
    gauge = Gauge(1)
    gauge.look()
    [reading] = gauge.taken
    assert reading.reading > 1e6
    assert reading.multiplying > 1e6
    assert reading.interpreting > 1e3


# --- what becomes of a figure

DRIFT = Drift(9, 0.01, 0.03, 0.02, 0.005)


def width(samples: Samples) -> tuple[float, float]:
    found = samples.widened(DRIFT)
    return found.median - found.low, found.high - found.median


def test_a_time_is_widened_by_the_drift_in_quadrature() -> None:
    below, above = width(Samples((4.0, 3.8, 4.5)))
    moved = DEVIATIONS * 0.03 * 4
    assert below == pytest.approx((0.2**2 + moved**2) ** 0.5)
    assert above == pytest.approx((0.5**2 + moved**2) ** 0.5)


def test_a_ratio_within_a_round_by_its_own_spread_and_what_one_kind_moves_over_another() -> None:
    times = Samples((4.0, 4.0)).over(Samples((2.0, 2.0)))
    assert width(times) == pytest.approx((DEVIATIONS * 0.005 * 2,) * 2)
    below, above = width(Samples((4.0, 5.0, 4.4)).over(Samples((2.0, 2.0, 2.0))))
    moved = (0.5**2 + (DEVIATIONS * 0.005 * 2.2) ** 2) ** 0.5
    assert below == pytest.approx((0.2**2 + moved**2) ** 0.5)
    assert above == pytest.approx((0.3**2 + moved**2) ** 0.5)


def test_what_is_computed_of_a_figure_keeps_its_relative_width() -> None:
    plain = Samples((4.0, 4.0, 4.0))
    share = DEVIATIONS * 0.03
    assert width(plain.scaled(10)) == pytest.approx((share * 40,) * 2)
    assert width(plain.per(8)) == pytest.approx((share * 2,) * 2)
    slower = plain.over(Samples((2.0,) * 3)).shifted(-1).scaled(100)
    assert slower.median == pytest.approx(100)
    # The level is that of the ratio, 2: a figure near 0 is moved as much.
    assert width(slower) == pytest.approx((DEVIATIONS * 0.005 * 200,) * 2)
    level = plain.over(plain).shifted(-1)
    assert level.median == 0
    assert width(level) == pytest.approx((DEVIATIONS * 0.005,) * 2)


def test_a_part_of_a_step_is_moved_by_all_of_it_but_not_below_nothing() -> None:
    part = Samples((0.1, 0.1, 0.1), level=10.0).scaled(1e3).widened(DRIFT)
    assert part.low == 0
    assert part.high == pytest.approx(100 + DEVIATIONS * 0.03 * 1e4)
    slower = Samples((1.0, 1.0)).over(Samples((1.0, 1.0))).shifted(-1)
    assert slower.widened(DRIFT).low < 0


def test_until_the_drift_is_known_the_interval_is_that_of_the_rounds() -> None:
    samples = Samples((3.0, 1.0, 2.0))
    assert (samples.low, samples.median, samples.high) == (1.0, median(samples.values), 3.0)
    nothing = samples.widened(drift_of([]))
    assert (nothing.low, nothing.high) == (1.0, 3.0)
