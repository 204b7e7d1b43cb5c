"""What a benchmark measures, and what it finds at each point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.engine.kv import blocks_for

if TYPE_CHECKING:
    from farthing.plan.cost import Cost

BATCH_CONTEXT = 128
"""The context of every sequence of a batch."""

MOST_SEQUENCES = 512
"""A step's tokens: in a batch each sequence has one."""

_PREFILL = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_DECODE = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BATCH = (1, 2, 4, 8, 16, 32, 64)
_CROSS = ((2, 1024), (4, 4096), (8, 1024), (16, 256), (16, 2048), (32, 1024), (64, 512))
"""Many sequences over long contexts: what a profile needs besides, to tell what either costs."""


@dataclass(frozen=True)
class Points:
    """What is measured: lengths of prompts, contexts to decode at, numbers of sequences at once.

    `cross` are numbers of sequences, each with the context of all of them. `skipped` says in words
    what would have been measured too, and why it is not.
    """

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    batch: tuple[int, ...]
    skipped: tuple[str, ...] = ()
    cross: tuple[tuple[int, int], ...] = ()

    def without_cross(self, why: str) -> Points:
        """Less, and less memory."""
        skipped = f"batches over long contexts: {why}"
        return replace(self, cross=(), skipped=(*self.skipped, skipped))

    def needs(self, context_length: int) -> tuple[int, int]:
        """The context, and how many of that length, that hold the cache of every point."""
        batch_context = min(BATCH_CONTEXT, context_length)
        crossed = [context for _, context in self.cross]
        context = max(*self.prefill, *self.decode, *crossed, batch_context, 0)
        batch = blocks_for(batch_context) * max(self.batch, default=1)
        most = max(batch, *(count * blocks_for(each) for count, each in self.cross), 0)
        return context, -(-most // blocks_for(context))


def choose_points(
    context_length: int,
    prefill: tuple[int, ...] | None = None,
    decode: tuple[int, ...] | None = None,
    batch: tuple[int, ...] | None = None,
) -> Points:
    """The points wanted, in rising order; None stands for a usual sweep as far as the context goes.

    Where both decoding and batches are the usual ones, batches over long contexts are added.

    Raises `RequestError` for a wanted point that a model of this context cannot have.
    """
    chosen: dict[str, tuple[int, ...]] = {}
    skipped: list[str] = []
    for name, wanted, usual in (
        ("prefill", prefill, _PREFILL),
        ("decode", decode, _DECODE),
        ("batch", batch, _BATCH),
    ):
        most = MOST_SEQUENCES if name == "batch" else context_length
        points = sorted(set(usual if wanted is None else wanted))
        too_long = [each for each in points if each > most]
        if too_long and wanted is not None:
            what = "the most it measures" if name == "batch" else "this model's context"
            raise RequestError(f"--{name} {too_long[0]} is more than {most}, {what}: take less")
        if too_long:
            listed = ", ".join(f"{each:,}" for each in too_long)
            skipped.append(f"{name} {listed}: this model's context is {context_length:,}")
        chosen[name] = tuple(each for each in points if each <= most)
    crossed = _CROSS if decode is None and batch is None else ()
    cross = tuple((count, context) for count, context in crossed if context <= context_length)
    points_chosen = Points(**chosen, skipped=tuple(skipped), cross=cross)
    if not any(chosen.values()):
        raise RequestError("nothing is left to measure: give --prefill, --decode or --batch points")
    return points_chosen


@dataclass(frozen=True)
class Measured:
    """One point. Seconds are of one prompt or one step of `tokens` tokens, one entry a round.

    `memory_seconds` and `arithmetic_seconds` are what the ceilings of that round alone would need.
    """

    point: int
    tokens: int
    cost: Cost
    seconds: tuple[float, ...]
    memory_seconds: tuple[float, ...]
    arithmetic_seconds: tuple[float, ...]

    @property
    def step_seconds(self) -> float:
        """Of one prompt or one step: the median over rounds."""
        return median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """The median over rounds."""
        return self.tokens / self.step_seconds

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest round, in tokens a second."""
        return self.tokens / max(self.seconds), self.tokens / min(self.seconds)

    @property
    def memory_share(self) -> float:
        """Of the memory ceiling, from 0 to about 1; above it where caches hold what is read."""
        return _median_ratio(self.memory_seconds, self.seconds)

    @property
    def arithmetic_share(self) -> float:
        """Of the dot-product ceiling, from 0 to 1."""
        return _median_ratio(self.arithmetic_seconds, self.seconds)


def _median_ratio(parts: tuple[float, ...], wholes: tuple[float, ...]) -> float:
    return median(part / whole for part, whole in zip(parts, wholes, strict=True))
