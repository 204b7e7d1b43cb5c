"""How far a machine's speed moves: on a machine whose speed, and whose clock, is a script."""

from __future__ import annotations

from functools import partial
from math import exp, hypot, log
from random import Random
from statistics import NormalDist, median

import pytest

from farthing.lab.drift import DEVIATIONS, READINGS, Drift, Gauge, Look, Reading, drift_of
from farthing.lab.report.compare import Verdict, judge
from farthing.lab.samples import Samples, interleaved
from farthing.lab.table import Column

COLUMN = Column("time", "ms", ".3f")
FIGURES = 60
GROUP = 6


class Machine:
    """Its speed wanders, slowly: by `drift` on the whole, half of it within about 20 s.

    What is done on it moves its clock. `slowed` figures take so many times as long. Readings
    scatter by `scatter` on top, each on its own.
    """

    def __init__(self, seed: int, drift: float, slowed: float = 1.0, scatter: float = 0.0) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.drift = drift
        self.slowed = slowed
        self.scatter = scatter
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
        """Small pieces of work scatter more than a figure, which takes longer, does."""
        speeds = [0.1 / self.work(0.1) * exp(self.random.gauss(0, self.scatter)) for _ in range(3)]
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
        return found, drift_of(gauge.taken)


def runs(
    seed: int, drift: float, slowed: float = 1.0, scatter: float = 0.0
) -> list[tuple[list[Samples], Drift]]:
    return [
        Machine(2 * seed, drift, scatter=scatter).measured(),
        Machine(2 * seed + 1, drift, slowed, scatter).measured(),
    ]


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


@pytest.mark.parametrize(
    ("drift", "scatter"), [(0.01, 0.0), (0.05, 0.0), (0.15, 0.0), (0.05, 0.1), (0.15, 0.2)]
)
def test_two_runs_on_a_machine_that_drifts_overlap_as_often_as_it_is_said(
    drift: float, scatter: float
) -> None:
    pairs = [runs(seed, drift, scatter=scatter) for seed in range(40)]
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


@pytest.mark.parametrize(("drift", "scatter"), [(0.02, 0.02), (0.05, 0.1), (0.1, 0.2), (0.2, 0.1)])
def test_what_small_pieces_of_work_scatter_is_no_drift(drift: float, scatter: float) -> None:
    """Else a machine on which others work a little would have intervals as wide as its noise."""
    random = Random(3)

    def look() -> Look:
        level = random.gauss(0, drift)
        return tuple(
            Reading(exp(level + random.gauss(0, scatter)), 1.0, 1.0) for _ in range(READINGS)
        )

    assert drift_of([look() for _ in range(400)]).largest == pytest.approx(drift, rel=0.2)


def test_a_short_while_of_anothers_work_is_no_drift_of_the_whole_run() -> None:
    steady, slow = (Reading(1.0, 1.0, 1.0),) * 2, (Reading(0.3, 0.3, 0.3),) * 2
    looks = [steady] * 95 + [slow] * 5
    assert drift_of(looks).largest == 0.0
    assert drift_of([steady] * 80 + [slow] * 20).largest == pytest.approx(
        log(1 / 0.3) / 2.563, 0.01
    )


def map_widened(found: list[Samples], drift: Drift) -> list[Samples]:
    return [each.widened(drift) for each in found]


def test_a_kernel_that_is_slowed_on_purpose_is_outside_the_intervals() -> None:
    for seed in range(10):
        assert overlaps(runs(seed, 0.02, slowed=1.5), widened=True) == 0


# --- the numbers


def looks_of(readings: list[Reading]) -> list[Look]:
    return [(each, each) for each in readings]


def test_what_moves_is_told_for_each_kind_of_work_and_the_largest_counts() -> None:
    normal = [NormalDist().inv_cdf(n / 100) for n in range(1, 100)]
    drift = drift_of(looks_of([Reading(exp(0.1 * each), 2.0, 1.0) for each in normal]))
    assert drift.reading == pytest.approx(0.1, rel=0.01)
    assert (drift.multiplying, drift.interpreting) == (0.0, 0.0)
    assert drift.largest == drift.reading == pytest.approx(drift.between, rel=1e-3)
    assert drift.looks == 99
    assert "within 25.0% reading, 0.0% multiplying, 0.0% in Python" in str(drift)


def test_how_far_one_kind_of_work_moves_over_another_is_told_without_what_differs_at_once() -> None:
    slowly = looks_of([Reading(exp(0.01 * n), 1.0, 1.0) for n in range(20)])
    at_once = [(Reading(exp(0.05), 1.0, 1.0), Reading(exp(-0.05), 1.0, 1.0))] * 20
    alike = looks_of([Reading(*(exp(0.01 * n),) * 3) for n in range(20)])
    assert drift_of(slowly).between == pytest.approx(drift_of(slowly).reading)
    assert drift_of(at_once).between == drift_of(at_once).reading == 0.0
    to_and_fro = looks_of([Reading(exp(0.05 * (-1) ** n), 1.0, 1.0) for n in range(20)])
    assert drift_of(to_and_fro).between == 0.0  # rounds show that themselves
    assert drift_of(to_and_fro).reading > 0.03
    assert drift_of(alike).between == pytest.approx(0.0, abs=1e-9)
    assert drift_of(alike).reading == pytest.approx(drift_of(slowly).reading)


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


def test_of_too_few_looks_nothing_is_concluded() -> None:
    drift = drift_of(looks_of([Reading(1.0, 1.0, 1.0), Reading(9.0, 9.0, 9.0)]))
    assert (drift.largest, drift.between) == (0.0, 0.0)
    assert "not known" in str(drift)


def test_after_the_first_few_looks_are_no_closer_than_three_seconds() -> None:
    now = [0.0]
    gauge = Gauge(1, lambda: Reading(1.0, 1.0, 1.0), lambda: now[0])
    found = []
    for moment in (0.0, 0.4, 0.5, 1.0, 1.4, 1.5, 2.0, 2.5, 4.9, 5.0, 7.9, 8.5):
        now[0] = moment
        before = len(gauge.taken)
        gauge.look()
        if len(gauge.taken) > before:
            found.append(moment)
    assert found == [0.0, 0.5, 1.0, 1.5, 2.0, 5.0, 8.5]
    assert [len(look) for look in gauge.taken] == [READINGS] * len(found)


def test_this_machine_has_a_speed_of_each_kind() -> None:
    gauge = Gauge(1)
    gauge.look()
    [look] = gauge.taken
    for reading in look:
        assert reading.reading > 1e6
        assert reading.multiplying > 1e6
        assert reading.interpreting > 1e3


# --- what becomes of a figure

DRIFT = Drift(9, 0.01, 0.03, 0.02, 0.005)


def width(samples: Samples) -> tuple[float, float]:
    """How far its interval goes, in shares of the median."""
    found = samples.widened(DRIFT)
    return found.median / found.low, found.high / found.median


def test_a_time_is_widened_by_the_drift_in_quadrature() -> None:
    below, above = width(Samples((4.0, 3.8, 4.5)))
    moved = DEVIATIONS * 0.03
    assert log(below) == pytest.approx(hypot(log(4.0 / 3.8), moved))
    assert log(above) == pytest.approx(hypot(log(4.5 / 4.0), moved))


def test_a_ratio_within_a_round_by_its_own_spread_and_what_one_kind_moves_over_another() -> None:
    times = Samples((4.0, 4.0)).over(Samples((2.0, 2.0)))
    assert width(times) == pytest.approx((exp(DEVIATIONS * 0.005),) * 2)
    below, above = width(Samples((4.0, 5.0, 4.4)).over(Samples((2.0, 2.0, 2.0))))
    moved = hypot(log(5 / 4), DEVIATIONS * 0.005)
    assert log(below) == pytest.approx(hypot(log(4.4 / 4), moved))
    assert log(above) == pytest.approx(hypot(log(5 / 4.4), moved))


def test_however_far_the_machine_moves_a_time_and_its_speed_have_one_interval_above_nothing() -> (
    None
):
    time = Samples((3.0, 4.0, 5.0))
    far = Drift(9, 0.9, 0.9, 0.9, 0.9)
    spent, speed = time.widened(far), time.per(8).widened(far)
    assert 0 < spent.low < 1
    assert (speed.low, speed.high) == pytest.approx((8 / spent.high, 8 / spent.low))


def test_what_is_computed_of_a_figure_keeps_its_relative_width() -> None:
    plain = Samples((4.0, 4.0, 4.0))
    share = DEVIATIONS * 0.03
    assert width(plain.scaled(10)) == pytest.approx((exp(share),) * 2)
    assert width(plain.per(8)) == pytest.approx((exp(share),) * 2)
    slower = plain.over(Samples((2.0,) * 3)).shifted(-1).scaled(100).widened(DRIFT)
    assert slower.median == pytest.approx(100)
    # The level is that of the ratio, 2: a figure near 0 is moved as much.
    assert slower.high - 100 == pytest.approx(DEVIATIONS * 0.005 * 200)
    level = plain.over(plain).shifted(-1).widened(DRIFT)
    assert level.median == 0
    assert (-level.low, level.high) == pytest.approx((DEVIATIONS * 0.005,) * 2)


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
