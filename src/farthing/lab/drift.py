"""How much the machine's own speed moves while the laboratory measures.

Rounds that are taken within seconds agree better with each other than with those of another run: a
neighbour, a clock or the heat change a machine's speed over minutes. So the same small pieces of
work, which no model has a part in, are timed from the beginning of a run to its end, and every
figure that is timed gets the spread of these on top of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from math import log, sqrt
from statistics import fmean, geometric_mean, median, stdev, variance
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.plan.machine import available_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEVIATIONS = 2.5
"""So many standard deviations are added to either side: two runs then still agree in 19 of 20
figures where the machine moves as much between them again as within them."""

FEWEST_READINGS = 3
"""Of fewer nothing is concluded."""

_SECONDS_APART = 2.0
_REPEATS = 3
_BUFFER_BYTES = 64 << 20
_COUNTED = 100_000


@dataclass(frozen=True)
class Reading:
    """The machine's speed at one moment: bytes read, products, and Python's additions a second."""

    reading: float
    multiplying: float
    interpreting: float


@dataclass(frozen=True)
class Drift:
    """Standard deviations of logarithms, which are shares while they are small.

    `reading`, `multiplying` and `interpreting` are each kind of work's over the whole run.
    `between` is that of one kind of work over another, of which the largest: how far a ratio within
    a round moves over minutes. What differs from one reading to the next already is no part of it,
    since rounds show that themselves.
    """

    readings: int
    reading: float
    multiplying: float
    interpreting: float
    between: float

    @property
    def known(self) -> bool:
        """Whether there are enough readings to conclude from."""
        return self.readings >= FEWEST_READINGS

    @property
    def largest(self) -> float:
        """Of the kinds of work: what is added to a time, of which they are parts unknown."""
        return max(self.reading, self.multiplying, self.interpreting)

    @property
    def of_times(self) -> float:
        """The share of a time that is added to either side of its interval."""
        return DEVIATIONS * self.largest

    @property
    def of_ratios(self) -> float:
        """The same of a ratio within a round."""
        return DEVIATIONS * self.between

    def __str__(self) -> str:
        if not self.known:
            return "not known: too little was timed"
        return (
            f"within {DEVIATIONS * self.reading:.1%} reading, {DEVIATIONS * self.multiplying:.1%} "
            f"multiplying, {DEVIATIONS * self.interpreting:.1%} in Python"
        )


def drift_of(runs: Sequence[Sequence[Reading]]) -> Drift:
    """What all readings say; those of one run follow upon each other, runs do not."""
    names = [field.name for field in fields(Reading)]
    everything = [each for run in runs for each in run]
    if len(everything) < FEWEST_READINGS:
        return Drift(len(everything), 0.0, 0.0, 0.0, 0.0)
    own = {name: stdev(log(getattr(each, name)) for each in everything) for name in names}
    between = 0.0
    if sum(max(0, len(run) - 1) for run in runs) >= FEWEST_READINGS:
        between = max(
            _slow(
                [[log(getattr(each, one) / getattr(each, other)) for each in run] for run in runs]
            )
            for one, other in combinations(names, 2)
        )
    return Drift(len(everything), between=between, **own)


def _slow(runs: Sequence[Sequence[float]]) -> float:
    """The standard deviation that is left without what differs from one value to the next.

    Half the mean square of successive differences is the variance of what does (von Neumann 1941).
    """
    everything = [each for run in runs for each in run]
    steps = [(later - sooner) ** 2 for run in runs for sooner, later in pairwise(run)]
    return sqrt(max(0.0, variance(everything) - fmean(steps) / 2))


class Gauge:
    """Takes readings, of which `taken` has all; none sooner than 2 s after the last.

    `measure` gives one: by default, what `threads` threads reach on this machine.
    """

    def __init__(
        self,
        threads: int,
        measure: Callable[[], Reading] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.taken: list[Reading] = []
        self._threads = threads
        self._measure = measure
        self._clock = clock
        self._last: float | None = None

    def look(self) -> None:
        """Takes a reading, if it is time: while nothing else is being timed."""
        if self._last is not None and self._clock() - self._last < _SECONDS_APART:
            return
        if self._measure is None:
            self._measure = _machine(self._threads)
        self.taken.append(self._measure())
        self._last = self._clock()


def _machine(threads: int) -> Callable[[], Reading]:
    """Times the machine itself, each kind of work so often that a pause does not count."""
    from farthing.backends.ceilings import Ceilings

    ceilings = Ceilings(threads, min(_BUFFER_BYTES, available_memory() // 16))

    def measure() -> Reading:
        return Reading(
            median(max(ceilings.read().values()) for _ in range(_REPEATS)),
            median(geometric_mean(ceilings.multiply().values()) for _ in range(_REPEATS)),
            median(_interpreted() for _ in range(_REPEATS)),
        )

    measure()  # the first touches what was not touched before
    return measure


def _interpreted() -> float:
    started = perf_counter()
    total = 0
    for number in range(_COUNTED):
        total += number
    return _COUNTED / (perf_counter() - started)
