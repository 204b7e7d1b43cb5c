"""The shapes of two sweeps: the knee of a batch, and how decoding slows with the context."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log2
from statistics import median
from typing import TYPE_CHECKING

from farthing.lab.tune_rounds import median_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.core import ActivationMode
    from farthing.lab.bench_points import Measured

GAIN = 0.25
"""Throughput that a doubling must add to be worth it."""

DEFINITION = (
    f"the smallest number of sequences from which on no doubling adds {GAIN:.0%} throughput or more"
)


@dataclass(frozen=True)
class Knee:
    """Where the knee is and why.

    `within` are the least and the most sequences that it may be at by the intervals of the medians,
    None for past the last point. Where they are one, that is `sequences`, and `cause` the ceiling
    that the first step past the knee (without one, the last) comes nearer to: "memory" or
    "arithmetic"; else both are None. `gain` is what a doubling adds after the knee, or, where none
    is known, at the end. `predicted` is where the ceilings alone put it: the number of sequences
    whose products take as long as reading the weights and the sequences' caches; None where the
    caches take longer than the products.
    """

    sequences: int | None
    gain: float
    cause: str | None
    predicted: float | None
    within: tuple[int | None, int | None]

    @property
    def known(self) -> bool:
        """Whether the intervals leave one place for it, or none."""
        return self.within[0] == self.within[1]


@dataclass(frozen=True)
class Slowdown:
    """How much longer a step takes at `context` than it would with an empty one, as a share.

    `predicted` is bytes of cache over bytes of weights: all that differs is what must be read.
    `measured` takes the smallest context at its prediction, there being no step without any.
    """

    context: int
    predicted: float
    measured: float


def gains(sequences: Sequence[int], rates: Sequence[float]) -> list[float]:
    """What a doubling adds between neighbouring points, as a share of the throughput before it.

    Between points further apart than that, each doubling is taken to add the same.
    """
    return [
        (rate_after / rate) ** (1 / log2(after / before)) - 1
        for (before, rate), (after, rate_after) in pairwise(zip(sequences, rates, strict=True))
    ]


def gains_by_round(batch: Sequence[Measured]) -> list[tuple[float, ...]]:
    """`gains`, of each round, in which neighbours met the same machine."""
    points = [each.point for each in batch]
    rounds = zip(*([each.tokens / spent for spent in each.seconds] for each in batch), strict=True)
    return list(zip(*(gains(points, rates) for rates in rounds), strict=True))


def middle_gains(batch: Sequence[Measured]) -> list[float]:
    """The medians of `gains_by_round`."""
    return [median(each) for each in gains_by_round(batch)]


def knee_index(gains: Sequence[float]) -> int | None:
    """The index of the first point from which on no gain reaches `GAIN`; None where the last does.

    Gain i lies between points i and i + 1.
    """
    paying = [index for index, gain in enumerate(gains) if gain >= GAIN]
    knee = paying[-1] + 1 if paying else 0
    return knee if knee < len(gains) else None


def possible_knees(
    sequences: Sequence[int], low: Sequence[float], high: Sequence[float]
) -> tuple[int | None, int | None]:
    """`knee_index` where every doubling adds the least that seconds from `low` to `high` allow, and
    where each adds the most. They are one where the intervals leave no doubt.
    """

    def index(before: Sequence[float], after: Sequence[float]) -> int | None:
        rates = [
            (size / longer, larger / shorter)
            for (size, longer), (larger, shorter) in zip(
                zip(sequences[:-1], before[:-1], strict=True),
                zip(sequences[1:], after[1:], strict=True),
                strict=True,
            )
        ]
        steps = zip(pairwise(sequences), rates, strict=True)
        return knee_index([gains(pair, rate)[0] for pair, rate in steps])

    return index(low, high), index(high, low)


def find_knee(
    batch: Sequence[Measured],
    bytes_per_second: float,
    products_per_second: Mapping[ActivationMode, float],
) -> Knee | None:
    """The knee of a sweep over rising numbers of sequences; None for fewer than two points.

    What a doubling adds is its `middle_gains`, and within what bounds, the rounds say.
    """
    if len(batch) < 2:
        return None
    points = [each.point for each in batch]
    intervals = [median_interval(each) for each in gains_by_round(batch)]
    possible = [knee_index(bound) for bound in zip(*intervals, strict=True)]
    least, most = (None if at is None else points[at] for at in possible)
    found = middle_gains(batch)
    index = knee_index(found) if least == most else None
    after = batch[-1] if index is None else batch[index + 1]
    weights = after.cost.weight_bytes / bytes_per_second
    cache = after.cost.cache_bytes / bytes_per_second
    spare = (after.cost.arithmetic_seconds(products_per_second) - cache) / after.point
    nearer = "memory" if after.memory_share > after.arithmetic_share else "arithmetic"
    return Knee(
        least if least == most else None,
        found[-1] if index is None else found[index],
        nearer if least == most else None,
        weights / spare if spare > 0 else None,
        (least, most),
    )


def knee_place(within: tuple[int | None, int | None], last: int) -> str:
    """For people: where the knee of a sweep up to `last` sequences is, or may be."""
    least, most = within
    if least is None:
        return f"not reached up to a batch of {last:,}"
    if least == most:
        return f"a batch of {least:,}"
    until = f"more than {last:,}" if most is None else f"one of {most:,}"
    return f"between a batch of {least:,} and {until}: the measured intervals leave it open"


def knee_words(knee: Knee, last: int) -> str:
    """`knee_place`, with the cause and what the next doubling adds as far as they are known."""
    place = knee_place(knee.within, last)
    if not knee.known:
        return place
    if knee.sequences is None:
        return (
            f"{place}: the last doubling still adds {knee.gain:.0%}; {knee.cause} is the nearer "
            "ceiling there"
        )
    return f"{place}, because of {knee.cause}: the next doubling adds {knee.gain:.0%}"


def slowdowns(decode: Sequence[Measured]) -> list[Slowdown]:
    """One for each point of a sweep over rising contexts."""
    if not decode:
        return []
    first = decode[0]
    empty = first.step_seconds / (1 + first.cost.cache_bytes / first.cost.weight_bytes)
    return [
        Slowdown(
            each.point,
            each.cost.cache_bytes / each.cost.weight_bytes,
            each.step_seconds / empty - 1,
        )
        for each in decode
    ]
