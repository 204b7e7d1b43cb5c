"""Measured figures: a handful of values or an interval, never one value made to look sure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Samples:
    """One figure, measured several times. `values` are in the order of the rounds."""

    values: tuple[float, ...]

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
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    def scaled(self, factor: float) -> Samples:
        """Every value times `factor`."""
        return Samples(tuple(value * factor for value in self.values))

    def shifted(self, amount: float) -> Samples:
        """Every value plus `amount`."""
        return Samples(tuple(value + amount for value in self.values))

    def per(self, amount: float) -> Samples:
        """Amounts by value: what was done, over the seconds it took each time."""
        return Samples(tuple(amount / value for value in self.values))

    def over(self, other: Samples) -> Samples:
        """Ratios within each round, in which both met the same machine."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(value / base for value, base in pairs))


@dataclass(frozen=True)
class Interval:
    """A figure with an interval around it; what kind of interval, its table says."""

    middle: float
    low: float
    high: float


def interleaved(
    tasks: Mapping[str, Callable[[], float]], rounds: int, progress: Callable[[str], None]
) -> dict[str, Samples]:
    """Each task's figure in each of `rounds` rounds, all tasks once a round.

    So what slows the machine for a while slows them all. `progress` is told what comes next.
    """
    values: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(1, rounds + 1):
        for name, task in tasks.items():
            progress(f"{name}, round {number} of {rounds}")
            values[name].append(task())
    return {name: Samples(tuple(each)) for name, each in values.items()}
