"""Measured figures: a handful of values or an interval, never one value made to look sure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, inf, log
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from farthing.lab.drift import Drift


@dataclass(frozen=True)
class Samples:
    """One figure, measured several times. `values` are in the order of the rounds.

    Its interval goes from the least value to the largest, and further by what the machine moves
    beyond that: both distances from the median are added in quadrature to `moved`, which is 0 until
    `widened`. A figure above 0 moves by a factor, and distances are of logarithms: so a time and
    the speed that it means have the same interval. Where another thing moves than the figure, it is
    the `level`: of 20 % slower, say, the 120 % that were measured. `paired` figures are ratios
    within a round, in which both sides met the same machine: they get their own spread again, and
    what such ratios move. Below `least` there is nothing.
    """

    values: tuple[float, ...]
    level: float | None = None
    paired: bool = False
    least: float = 0.0
    moved: float = 0.0

    @property
    def count(self) -> int:
        """How many times it was measured."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The interval's lower end."""
        lowest = min(self.values)
        if not self.moved:
            return lowest
        distance = hypot(self._distance(lowest, self.median), self.moved)
        if self._by_factor:
            return self.median / _factor(distance)
        return max(self.median - distance, min(self.least, lowest))

    @property
    def high(self) -> float:
        """The interval's upper end."""
        highest = max(self.values)
        if not self.moved:
            return highest
        distance = hypot(self._distance(self.median, highest), self.moved)
        return self.median * _factor(distance) if self._by_factor else self.median + distance

    def widened(self, drift: Drift) -> Samples:
        """With the interval that is due where the machine moves so much."""
        level = 1.0 if self._by_factor else abs(self.median) if self.level is None else self.level
        if not self.paired:
            return replace(self, moved=drift.of_times * level)
        # A few rounds that met the same machine show little of what another few would.
        spread = self._distance(min(self.values), max(self.values)) if drift.known else 0.0
        return replace(self, moved=hypot(spread, drift.of_ratios * level))

    def scaled(self, factor: float) -> Samples:
        """Every value times `factor`, which is above 0."""
        return replace(
            self,
            values=tuple(value * factor for value in self.values),
            level=None if self.level is None else self.level * factor,
            least=self.least * factor,
        )

    def shifted(self, amount: float) -> Samples:
        """Every value plus `amount`."""
        return replace(
            self,
            values=tuple(value + amount for value in self.values),
            level=abs(self.median) if self.level is None else self.level,
            least=self.least + amount,
        )

    def per(self, amount: float) -> Samples:
        """Amounts by value: what was done, over the seconds it took each time."""
        values = tuple(amount / value for value in self.values)
        level = None if self.level is None else median(values) * self.level / self.median
        return replace(self, values=values, level=level, least=0.0)

    def over(self, other: Samples) -> Samples:
        """Ratios within each round, in which both met the same machine."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(value / base for value, base in pairs), paired=True)

    @property
    def _by_factor(self) -> bool:
        return self.level is None and min(self.values) > 0

    def _distance(self, low: float, high: float) -> float:
        # Not of their quotient, which may be 0 for what somebody has written into a report.
        return log(high) - log(low) if self._by_factor else high - low


def _factor(distance: float) -> float:
    try:
        return exp(distance)
    except OverflowError:
        return inf


@dataclass(frozen=True)
class Interval:
    """A figure with an interval around it; what kind of interval, its table says."""

    middle: float
    low: float
    high: float


def interleaved(
    tasks: Mapping[str, Callable[[], float]],
    rounds: int,
    progress: Callable[[str], None],
    look: Callable[[], None],
) -> dict[str, Samples]:
    """Each task's figure in each of `rounds` rounds, all tasks once a round.

    So what slows the machine for a while slows them all, and a task's rounds are as far apart as
    they can be. `progress` is told what comes next; `look` is called before each.
    """
    values: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(1, rounds + 1):
        for name, task in tasks.items():
            progress(f"{name}, round {number} of {rounds}")
            look()
            values[name].append(task())
    return {name: Samples(tuple(each)) for name, each in values.items()}
