"""Measured figures: a handful of values or an interval, never one value made to look sure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot
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
    `widened`. What moves is `level`, the median where there is none: of 20 % slower, say, the 120 %
    that were measured. `paired` figures are ratios within a round, in which both sides met the same
    machine: they get their own spread again, and what such ratios move. Below `least` there is
    nothing.
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
        return max(self.median - hypot(self.median - lowest, self.moved), min(self.least, lowest))

    @property
    def high(self) -> float:
        """The interval's upper end."""
        highest = max(self.values)
        if not self.moved:
            return highest
        return self.median + hypot(highest - self.median, self.moved)

    def widened(self, drift: Drift) -> Samples:
        """With the interval that is due where the machine moves so much."""
        if not self.paired:
            return replace(self, moved=drift.of_times * self._level)
        # A few rounds that met the same machine show little of what another few would.
        spread = max(self.values) - min(self.values) if drift.known else 0.0
        return replace(self, moved=hypot(spread, drift.of_ratios * self._level))

    def scaled(self, factor: float) -> Samples:
        """Every value times `factor`, which is above 0."""
        return self._with(
            tuple(value * factor for value in self.values),
            self._level * factor,
            self.least * factor,
        )

    def shifted(self, amount: float) -> Samples:
        """Every value plus `amount`."""
        values = tuple(value + amount for value in self.values)
        return self._with(values, self._level, self.least + amount)

    def per(self, amount: float) -> Samples:
        """Amounts by value: what was done, over the seconds it took each time."""
        values = tuple(amount / value for value in self.values)
        return self._with(values, median(values) * self._level / self.median, 0.0)

    def over(self, other: Samples) -> Samples:
        """Ratios within each round, in which both met the same machine."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(value / base for value, base in pairs), paired=True)

    @property
    def _level(self) -> float:
        return abs(self.median) if self.level is None else self.level

    def _with(self, values: tuple[float, ...], level: float, least: float) -> Samples:
        return replace(self, values=values, level=level, least=least)


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
