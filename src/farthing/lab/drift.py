"""How much the machine's own speed moves while the laboratory measures.

Rounds that are taken within seconds agree better with each other than with those of another run: a
neighbour, a clock or the heat change a machine's speed over minutes. So the same small pieces of
work, which no model has a part in, are timed from the beginning of a run to its end, and every
figure that is timed gets the spread of these on top of its own. They are done several times on end:
what differs within such a look is a small piece's own scatter, and is taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from math import log, sqrt
from statistics import NormalDist, fmean, geometric_mean, quantiles, variance
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from farthing.plan.machine import available_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEVIATIONS = 2.5
"""So many standard deviations are added to either side: two runs then still agree in 19 of 20
figures where the machine moves as much between them again as within them."""

FEWEST_LOOKS = 5
"""Of fewer nothing is concluded."""

READINGS = 4
"""Of one look."""

_SECONDS_APART = 3.0
_FIRST_SECONDS_APART = 0.5
"""Until there are enough to conclude from: a short section has no time for more."""

_BUFFER_BYTES = 64 << 20
_COUNTED = 100_000

_TENTHS = NormalDist().inv_cdf(0.9) - NormalDist().inv_cdf(0.1)
"""From the first tenth of a normal distribution to the last, in standard deviations."""


@dataclass(frozen=True)
class Reading:
    """The machine's speed at one moment: bytes read, products, and Python's additions a second."""

    reading: float
    multiplying: float
    interpreting: float


Look: TypeAlias = "tuple[Reading, ...]"
"""Readings that follow upon each other at once."""


@dataclass(frozen=True)
class Drift:
    """Standard deviations of logarithms, which are shares while they are small.

    `reading`, `multiplying` and `interpreting` are each kind of work's from one of the `looks` to
    the others, without what the scatter within looks makes of their means (analysis of variance).
    `between` is that of one kind of work over another, of which the largest: how far a ratio within
    a round moves over minutes. What differs from one look to the next already is no part of it,
    since rounds show that themselves.
    """

    looks: int
    reading: float
    multiplying: float
    interpreting: float
    between: float

    @property
    def known(self) -> bool:
        """Whether there were enough looks to conclude from."""
        return self.looks >= FEWEST_LOOKS

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


def drift_of(looks: Sequence[Look]) -> Drift:
    """What all looks say, in their order."""
    names = [field.name for field in fields(Reading)]
    if len(looks) < FEWEST_LOOKS:
        return Drift(len(looks), 0.0, 0.0, 0.0, 0.0)
    logs = {name: [[log(getattr(each, name)) for each in look] for look in looks] for name in names}
    means = {name: [fmean(each) for each in logs[name]] for name in names}
    between = max(
        _slowly([over - under for over, under in zip(means[one], means[other], strict=True)])
        for one, other in combinations(names, 2)
    )
    own = {
        name: fmean(variance(look) / len(look) if len(look) > 1 else 0.0 for look in logs[name])
        for name in names
    }
    return Drift(
        len(looks),
        between=between,
        **{name: _without(_spread(means[name]), own[name]) for name in names},
    )


def _spread(values: Sequence[float]) -> float:
    """The standard deviation of a normal distribution with the same middle eight tenths: a few
    moments of another's work do not count for the whole run.
    """
    tenths = quantiles(values, n=10)
    return (tenths[-1] - tenths[0]) / _TENTHS


def _slowly(means: Sequence[float]) -> float:
    """The standard deviation that is left without what differs from one look to the next.

    Half the variance of successive differences is that of what does (von Neumann 1941).
    """
    steps = [later - sooner for sooner, later in pairwise(means)]
    return _without(_spread(means), _spread(steps) ** 2 / 2)


def _without(deviation: float, own: float) -> float:
    return sqrt(max(0.0, deviation**2 - own))


class Gauge:
    """Takes looks, of which `taken` has all; none sooner than 3 s after the last, or, of the first
    few, 0.5 s.

    `measure` gives a reading: by default, what `threads` threads reach on this machine.
    """

    def __init__(
        self,
        threads: int,
        measure: Callable[[], Reading] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.taken: list[Look] = []
        self._threads = threads
        self._measure = measure
        self._clock = clock
        self._last: float | None = None

    def look(self) -> None:
        """Takes a look, if it is time: while nothing else is being timed."""
        apart = _FIRST_SECONDS_APART if len(self.taken) < FEWEST_LOOKS else _SECONDS_APART
        if self._last is not None and self._clock() - self._last < apart:
            return
        if self._measure is None:
            self._measure = _machine(self._threads)
        measure = self._measure
        self.taken.append(tuple(measure() for _ in range(READINGS)))
        self._last = self._clock()


def _machine(threads: int) -> Callable[[], Reading]:
    """Times the machine itself, each kind of work once."""
    from farthing.backends.ceilings import Ceilings

    ceilings = Ceilings(threads, min(_BUFFER_BYTES, available_memory() // 16))

    def measure() -> Reading:
        return Reading(
            max(ceilings.read().values()),
            geometric_mean(ceilings.multiply().values()),
            _interpreted(),
        )

    measure()  # the first touches what was not touched before
    return measure


def _interpreted() -> float:
    started = perf_counter()
    total = 0
    for number in range(_COUNTED):
        total += number
    return _COUNTED / (perf_counter() - started)
