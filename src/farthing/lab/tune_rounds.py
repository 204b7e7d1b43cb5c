"""Rounds over many steps of several engines, until every median is known well or time is up.

Each round measures every step of every engine once, one engine after the other within a step, so
that what slows the machine for a while slows all of them. A step whose median is known well enough
is left out of the rounds that follow. An engine that another clearly beats at a few steps is not
measured at all the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.core import ActivationMode
    from farthing.lab.tune_journal import Journal
    from farthing.lab.tune_points import Step

LEVEL = 0.95
"""How sure the interval of a median is."""

NARROW = 0.03
"""A median is known well when its interval reaches no further than this share from it."""

LEAST_ROUNDS = 3
"""Whatever the time."""

_MOST_ROUNDS = 101
SAMPLE_SECONDS = 0.04
"""A sample is of as many steps as take so long, or of one."""

_LONG_SECONDS = 0.2
_CLEARLY = 0.9


class Engine(Protocol):
    """What is measured: an engine's steps and the ceilings of its threads."""

    def seconds(self, step: Step, times: int) -> float:
        """Of so many such steps together."""
        ...

    def ceilings(self) -> tuple[float, Mapping[ActivationMode, float]]:
        """Bytes a second, and multiply-accumulates by mode."""
        ...


@dataclass
class Samples:
    """What was measured of one engine: seconds of each step, and the ceilings, round by round."""

    seconds: dict[Step, list[float]] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    products: dict[ActivationMode, list[float]] = field(default_factory=dict)

    def well_known(self, step: Step) -> bool:
        """Whether the interval of the step's median is narrow."""
        return half_width(self.seconds.get(step, ())) <= NARROW


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most that the median of what `values` were drawn from may be.

    By order statistics, whatever the distribution: the narrowest pair, as far from the ends on both
    sides, that holds it with probability `LEVEL` (David and Nagaraja, Order Statistics, 7.1). Fewer
    than six values are not enough for that, and their range is given.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, outside = 0, 2 * 0.5**count
    while rank + 1 < (count + 1) // 2:
        outside += 2 * comb(count, rank + 1) * 0.5**count
        if outside > 1 - LEVEL:
            break
        rank += 1
    return ordered[rank], ordered[count - 1 - rank]


def half_width(values: Sequence[float]) -> float:
    """How far the interval reaches from the median at most, as a share of it; infinite for fewer
    than six values, of which there is none.
    """
    if len(values) < 6:
        return float("inf")
    middle = median(values)
    low, high = median_interval(values)
    return max(high - middle, middle - low) / middle


def uncertainty(samples: Samples) -> float:
    """Half the width of a median's interval, as a share of it, in the mean over all steps."""
    shares = []
    for values in samples.seconds.values():
        low, high = median_interval(values)
        shares.append((high - low) / 2 / median(values))
    return fmean(shares)


def spread(samples: Samples) -> tuple[float, ...]:
    """Every measured time over the median of its step's, round after round as they were measured:
    what a machine makes of equal steps, and for how long.
    """
    shares = [[each / median(values) for each in values] for values in samples.seconds.values()]
    rounds = max(map(len, shares))
    return tuple(each[at] for at in range(rounds) for each in shares if at < len(each))


class Rounds:
    """Measures steps of engines until `deadline`, on `perf_counter`'s clock.

    `samples` hold what is known already, and get what is found; so does the journal, at once.
    `progress` is told what comes next and how many seconds are left at most.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        samples: Mapping[str, Samples],
        journal: Journal,
        deadline: float,
        progress: Callable[[str, float], None],
    ) -> None:
        self._engines = engines
        self._samples = samples
        self._journal = journal
        self._deadline = deadline
        self._progress = progress
        self._times: dict[tuple[str, Step], int] = {}

    def least(self, steps: Mapping[str, Sequence[Step]]) -> None:
        """Measures each `LEAST_ROUNDS` times, whatever that takes."""
        for _ in range(LEAST_ROUNDS):
            self._round(
                [each for each in _by_step(steps) if self._count(*each) < LEAST_ROUNDS],
                whatever_the_time=True,
            )

    def until_known(self, steps: Mapping[str, Sequence[Step]]) -> bool:
        """Measures until all are well known, or time is up; returns whether they are."""
        wanted = _by_step(steps)
        for _ in range(_MOST_ROUNDS):
            pending = [(n, step) for n, step in wanted if not self._samples[n].well_known(step)]
            if not pending or perf_counter() >= self._deadline:
                break
            self._round(pending)
        return all(self._samples[name].well_known(step) for name, step in wanted)

    def _count(self, name: str, step: Step) -> int:
        return len(self._samples[name].seconds.get(step, ()))

    def _round(
        self, pending: Sequence[tuple[str, Step]], *, whatever_the_time: bool = False
    ) -> None:
        """Each once, and the ceilings of every engine before."""
        for name in dict.fromkeys(name for name, _ in pending):
            self._progress("ceilings", self._deadline - perf_counter())
            self._measure_ceilings(name)
        for name, step in pending:
            left = self._deadline - perf_counter()
            if left <= 0 and not whatever_the_time:
                return
            self._progress(f"{step.label}, round {self._count(name, step) + 1}", left)
            self._add(name, step, self._sample(name, step))

    def _sample(self, name: str, step: Step) -> float:
        engine, key = self._engines[name], (name, step)
        if key not in self._times:
            # The first one finds nothing in the processor's caches, which a long one hardly feels.
            alone = engine.seconds(step, 1)
            self._times[key] = max(1, round(SAMPLE_SECONDS / alone))
            if alone >= _LONG_SECONDS:
                return alone
        return engine.seconds(step, self._times[key]) / self._times[key]

    def _add(self, name: str, step: Step, seconds: float) -> None:
        self._samples[name].seconds.setdefault(step, []).append(seconds)
        self._journal.add_step(name, step, seconds)

    def _measure_ceilings(self, name: str) -> None:
        samples = self._samples[name]
        read, products = self._engines[name].ceilings()
        samples.reads.append(read)
        for mode, rate in products.items():
            samples.products.setdefault(mode, []).append(rate)
        self._journal.add_ceilings(name, read, products)


def _by_step(steps: Mapping[str, Sequence[Step]]) -> list[tuple[str, Step]]:
    """Every engine's steps, one engine after the other within a step."""
    order = sorted({step for each in steps.values() for step in each})
    return [(name, step) for step in order for name in steps if step in steps[name]]


def beaten(
    samples: Mapping[str, Samples], probes: Sequence[Step], slots: Mapping[str, int]
) -> set[str]:
    """Who need not be measured any further: another is faster at every one of the `probes`, by a
    tenth on the whole, and has memory for as many `slots`. The fastest sample counts: whatever else
    the machine does only adds to it.
    """

    def beats(other: str, one: str) -> bool:
        pairs = [
            (min(samples[other].seconds[step]), min(samples[one].seconds[step])) for step in probes
        ]
        return (
            slots[other] >= slots[one]
            and all(theirs <= mine for theirs, mine in pairs)
            and fmean(theirs / mine for theirs, mine in pairs) < _CLEARLY
        )

    known = [name for name, each in samples.items() if all(step in each.seconds for step in probes)]
    return {one for one in known if any(beats(other, one) for other in known)}
