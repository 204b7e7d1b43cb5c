"""The curve of a batch: what each doubling gains, where that ends and why, and what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Literal

from farthing.engine.cost import StepShape
from farthing.lab.bench_shapes import gains, knee_index, possible_knees
from farthing.lab.tune_rounds import NARROW, median_interval
from farthing.plan.cost import decode_costs, total
from farthing.plan.price import prices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.engine.simulate import CostOfStep
    from farthing.lab.tune_cost import Overhead
    from farthing.lab.tune_points import Load
    from farthing.lab.tune_rounds import Samples
    from farthing.models.program import Program
    from farthing.plan.memory import MemoryPlan
    from farthing.plan.price import Prices

Cause = Literal["memory", "arithmetic", "overhead"]

_PROMPT_TOKENS = 128
"""Of a prompt, read in one step; half of it where it has fewer than two of these."""


@dataclass(frozen=True)
class BatchPoint:
    """`batch` texts that each gain a token: seconds of such a step, Python included, with the
    interval of the measured median.

    `gain` is what the next doubling adds to the throughput, None at the end. The shares are of the
    step: reading at the memory ceiling, multiplying at that of the products, and Python.
    """

    batch: int
    seconds: float
    low: float
    high: float
    gain: float | None
    memory_share: float
    arithmetic_share: float
    overhead_share: float
    prices: Prices | None

    @property
    def tokens_per_second(self) -> float:
        """Of all of them."""
        return self.batch / self.seconds

    @property
    def cause(self) -> Cause:
        """What most of the step is, as far as it is known."""
        shares: dict[Cause, float] = {
            "memory": self.memory_share,
            "arithmetic": self.arithmetic_share,
            "overhead": self.overhead_share,
        }
        return max(shares, key=shares.__getitem__)


@dataclass(frozen=True)
class Curve:
    """The points in rising order, all at one context. `knee` is the batch from which on no doubling
    pays, None where the last one still does; `cause` is why, at the first batch past it.

    Where that is not known both are None, and `knee_within` are the least and the most that the
    knee may be by the measured intervals, None for past the end; `contradictions` say in words what
    cannot be of the figures.
    """

    context: int
    points: tuple[BatchPoint, ...]
    knee: int | None
    cause: Cause | None
    knee_within: tuple[int | None, int | None]
    contradictions: tuple[str, ...]


def make_curve(
    samples: Samples,
    overhead: Overhead,
    cost: CostOfStep,
    program: Program,
    plan: MemoryPlan,
    load: Load,
    price_per_hour: float | None,
) -> Curve:
    """Of the measured steps in which texts of the load's usual context decode."""
    steps = sorted(
        step
        for step in samples.seconds
        if step.chunk == 0 and step.context == load.context and step.decoding
    )
    read = median(samples.reads)
    products = {mode: median(rates) for mode, rates in samples.products.items()}
    found = []
    for step in steps:
        values, python = samples.seconds[step], overhead.seconds(step.decoding)
        seconds = median(values) + python
        low, high = median_interval(values)
        work = total(decode_costs(program, plan, [load.context] * step.decoding))
        found.append(
            BatchPoint(
                step.decoding,
                seconds,
                low + python,
                high + python,
                None,
                work.memory_seconds(read) / seconds,
                work.arithmetic_seconds(products) / seconds,
                python / seconds,
                None
                if price_per_hour is None
                else prices_at(cost, load, step.decoding, price_per_hour),
            )
        )
    return curve_of(found, load.context)


def curve_of(points: Sequence[BatchPoint], context: int) -> Curve:
    """With the gains of each; the knee and its cause, as far as the figures say them."""
    each = gains([point.batch for point in points], [point.tokens_per_second for point in points])
    index = knee_index(each) if each else None
    gained = tuple(
        replace(point, gain=gain) for point, gain in zip(points, (*each, None), strict=True)
    )
    past = points[-1] if index is None else points[index + 1]
    within = possible_knees(
        [point.batch for point in points],
        [point.low for point in points],
        [point.high for point in points],
    )
    least, most = (None if at is None else points[at].batch for at in within)
    wrong = tuple(_contradictions(points))
    known = least == most and not wrong
    knee = points[index].batch if known and index is not None else None
    return Curve(context, gained, knee, past.cause if known else None, (least, most), wrong)


def _contradictions(points: Sequence[BatchPoint]) -> Iterator[str]:
    """What cannot be if all figures are of one machine at one speed: the worst of each kind."""
    for what, name in (("reading its memory", "memory"), ("its arithmetic", "arithmetic")):
        shares = [(getattr(point, f"{name}_share"), point.batch) for point in points]
        share, batch = max(shares)
        if share > 1 + NARROW:
            yield f"{what} alone would take a batch of {batch:,} {share:.0%} of its time"
    falls = [
        (after.seconds / before.seconds, before, after)
        for before, after in combinations(points, 2)
        if after.seconds < before.seconds * (1 - NARROW)
    ]
    if falls:
        _, before, after = min(falls, key=lambda fall: fall[0])
        yield (
            f"a batch of {after.batch:,} took {1e3 * after.seconds:,.2f} ms and a smaller one of "
            f"{before.batch:,} took {1e3 * before.seconds:,.2f}"
        )


def prices_at(cost: CostOfStep, load: Load, batch: int, per_hour: float) -> Prices:
    """Of tokens while `batch` texts write, one of which is read now and again.

    A token of a prompt takes what it adds to a step of the others, a cached one what attending to
    it adds to that, a generated one its share of a step.
    """
    positions = batch * load.context
    writing = StepShape(batch, batch, positions, positions)
    count = min(_PROMPT_TOKENS, -(-load.prompt // 2))
    alone = cost(writing)
    behind = max(1, load.prompt - count)
    read = cost(writing.joined(0, count, 1))
    read_behind = cost(writing.joined(behind, count, 1))
    return prices(
        per_hour,
        max(0.0, read - alone) / count,
        max(0.0, read_behind - read) / behind,
        alone / batch,
    )
