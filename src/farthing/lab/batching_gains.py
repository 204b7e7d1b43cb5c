"""What continuous batching gains over static batching: over many loads, arrivals and clocks.

The two figures that are usually quoted, throughput and mean latency, depend on how requests arrive
and on when the clock starts and stops; so all of these stand beside each other here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from farthing.engine.cost import StepShape
from farthing.engine.simulate import (
    Batching,
    Clock,
    Job,
    poisson_arrivals,
    regular_arrivals,
    simulate,
    skewed_lengths,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farthing.engine.simulate import CostOfStep, Outcome

PAIR_THROUGHPUT = (1.5, 1.7)
PAIR_LATENCY = 10.0
"""The pair that is quoted of continuous batching: 1.6 times the throughput, and a mean latency more
than ten times lower."""


SLOWER = 1.1
"""By how much steps are slowed to see what that does to a load."""


@dataclass(frozen=True)
class Arrivals:
    """One request every `steps` steps in which all slots decode; all at once where that is 0.

    `poisson`: independent of each other, so many apart on average.
    """

    steps: float
    poisson: bool = False

    def times(self, count: int, step_seconds: float, seed: int) -> tuple[float, ...]:
        """When `count` requests arrive; `seed` matters where they are independent."""
        gap = self.steps * step_seconds
        if self.poisson:
            return poisson_arrivals(count, gap, seed)
        return regular_arrivals(count, gap)

    def __str__(self) -> str:
        if self.steps == 0:
            return "all at once"
        return f"{'Poisson, ' if self.poisson else ''}one every {self.steps:g} steps"


@dataclass(frozen=True)
class Gain:
    """Continuous by static throughput, and static by continuous mean latency, of one load."""

    throughput: float
    latency: Mapping[Clock, float]

    @staticmethod
    def of(static: Outcome, continuous: Outcome) -> Gain:
        """Raises `ZeroDivisionError` where requests were answered in no time."""
        return Gain(
            continuous.throughput / static.throughput,
            {clock: static.mean_latency(clock) / continuous.mean_latency(clock) for clock in Clock},
        )


@dataclass(frozen=True)
class Moves:
    """How many times as far as the machine's speed a load's figures move.

    Where requests come as they come, a machine that is a little slower may leave them waiting much
    longer: so the simulator serves the load once more with steps that take `SLOWER` as long.
    `latency` is of mean latencies, at least 1; `gain` of how far static and continuous batching
    part, with the 1 that two measurements beside each other may.
    """

    latency: Mapping[Batching, Mapping[Clock, float]]
    gain: Mapping[Clock, float]

    @staticmethod
    def of(usual: Mapping[Batching, Outcome], slower: Mapping[Batching, Outcome]) -> Moves:
        """Of one load, by the way of serving it."""
        latency = {
            batching: {clock: each.mean_latency(clock) for clock in Clock}
            for batching, each in usual.items()
        }
        later = {
            batching: {clock: each.mean_latency(clock) for clock in Clock}
            for batching, each in slower.items()
        }
        static, continuous = Batching.STATIC, Batching.CONTINUOUS
        return Moves(
            {
                batching: {
                    clock: max(1.0, _times(later[batching][clock] / value))
                    for clock, value in found.items()
                }
                for batching, found in latency.items()
            },
            {
                clock: 1.0
                + _times(
                    (later[static][clock] / later[continuous][clock])
                    / (latency[static][clock] / latency[continuous][clock])
                )
                for clock in Clock
            },
        )


@dataclass(frozen=True)
class Spread:
    """Of a figure over draws: the median, the middle nine tenths, and the extremes."""

    middle: float
    low: float
    high: float
    least: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Raises `IndexError` where there are none."""
        least, low, middle, high, most = np.quantile(list(values), [0, 0.05, 0.5, 0.95, 1]).tolist()
        return Spread(middle, low, high, least, most)


@dataclass(frozen=True)
class GainSpread:
    """Gains over draws of one kind of load. `pair` is the share of draws in which the pair that is
    quoted appears, by the clock of its latency.
    """

    draws: int
    throughput: Spread
    latency: Mapping[Clock, Spread]
    pair: Mapping[Clock, float]

    @staticmethod
    def of(gains: Sequence[Gain]) -> GainSpread:
        """What these draws have in common; raises `IndexError` where there are none."""
        low, high = PAIR_THROUGHPUT
        quoted = [gain for gain in gains if low <= gain.throughput <= high]
        return GainSpread(
            len(gains),
            Spread.of(gain.throughput for gain in gains),
            {clock: Spread.of(gain.latency[clock] for gain in gains) for clock in Clock},
            {
                clock: sum(gain.latency[clock] > PAIR_LATENCY for gain in quoted) / len(gains)
                for clock in Clock
            },
        )


def _times(ratio: float) -> float:
    return abs(log(ratio)) / log(SLOWER)


def full_step_seconds(cost: CostOfStep, slots: int, prompt: int, lengths: Sequence[int]) -> float:
    """Of the average step while all slots are taken and more requests wait.

    An output of n tokens takes n steps, of which the first feeds the prompt: so each slot feeds one
    token, and its share of the prompts on top. Contexts are those half way through an output of
    mean length.
    """
    mean = sum(lengths) / len(lengths)
    context = slots * round(prompt + mean / 2)
    more = round(slots * (prompt - 1) / mean)
    attended = context + more * prompt // 2
    return cost(StepShape(slots + more, slots, attended, context))


def draw_gains(
    seed: int,
    *,
    cost: CostOfStep,
    arrivals: Arrivals,
    slots: int,
    prompt: int,
    latency_target: float | None,
    padded: Sequence[bool] = (False, True),
) -> list[Gain]:
    """Of one draw, for static batches that are `padded` or not: in its order.

    A draw is `skewed_lengths` of its seed, with prompts of `prompt` tokens each.
    """
    lengths = skewed_lengths(seed)
    step_seconds = full_step_seconds(cost, slots, prompt, lengths)
    times = arrivals.times(len(lengths), step_seconds, seed)
    jobs = [Job(prompt, length, time) for length, time in zip(lengths, times, strict=True)]

    def outcome(batching: Batching, padded: bool = False) -> Outcome:
        return simulate(
            jobs,
            cost,
            slots=slots,
            batching=batching,
            padded=padded,
            latency_target=latency_target,
        )

    continuous = outcome(Batching.CONTINUOUS)
    return [Gain.of(outcome(Batching.STATIC, each), continuous) for each in padded]
