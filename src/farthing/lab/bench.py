"""How fast a model runs here, and how near to what the machine can do.

Prompts, decoding against a context, and many sequences at once are measured in rounds: each round
measures every point, and before each point the ceilings (what memory delivers, what the dot-product
instructions multiply), so that a machine that slows down slows both. A share of a ceiling is taken
within its round; what is told is the median over rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from farthing.lab.bench_ops import op_times
from farthing.lab.bench_points import BATCH_CONTEXT, MOST_SEQUENCES, Measured, Points
from farthing.lab.bench_shapes import Knee, find_knee
from farthing.lab.bench_steps import Steps
from farthing.plan.cost import Cost, decode_costs, prompt_costs, total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from farthing.core import ActivationMode
    from farthing.lab.bench_ops import OpTime
    from farthing.lab.bench_steps import MeasuredBackend
    from farthing.models.program import Program
    from farthing.plan.memory import MemoryPlan

DECODE_TOKENS = 128
"""Tokens generated at each decode point in each round."""

_PROMPT_TOKENS = 512
"""Short prompts are repeated up to so many tokens a round."""

_BATCH_STEPS = 16
"""Least steps of a batch point in each round."""

_FILLED_TOKENS = 512
_PROFILED_PROMPT = 512
_PROFILED_CONTEXT = 1024
_BUFFER_BYTES = 512 << 20
_KINDS = ("prefill", "decode", "batch", "cross")


class MachineCeilings(Protocol):
    """What `backends.ceilings.Ceilings` is."""

    buffer_bytes: int

    def read(self) -> dict[str, float]:
        """Bytes a second, by the way of reading."""
        ...

    def multiply(self) -> dict[ActivationMode, float]:
        """Multiply-accumulates a second, by mode."""
        ...


@dataclass(frozen=True)
class CeilingFigures:
    """Medians of all measurements. `best_read` is of each one's best way of reading."""

    best_read: float
    best_read_spread: tuple[float, float]
    read: Mapping[str, float]
    multiply: Mapping[ActivationMode, float]
    buffer_bytes: int


@dataclass(frozen=True)
class BenchResult:
    """Everything that was measured of the backend; `cross` are batches over other contexts."""

    ceilings: CeilingFigures
    prefill: tuple[Measured, ...]
    decode: tuple[Measured, ...]
    batch: tuple[Measured, ...]
    cross: tuple[tuple[int, Measured], ...]
    batch_context: int
    knee: Knee | None
    ops: tuple[OpTime, ...]


def buffer_bytes(available: int) -> int:
    """How large each of the ceilings' two buffers is, where `available` bytes are free."""
    return min(_BUFFER_BYTES, available // 8)


def bench(
    backend: MeasuredBackend,
    ceilings: MachineCeilings,
    program: Program,
    plan: MemoryPlan,
    points: Points,
    *,
    repeats: int,
    seed: int,
    progress: Callable[[str], None],
) -> BenchResult:
    """Measures `points` in `repeats` rounds; `progress` is told what is measured next."""
    run = _Run(Steps(backend, seed), ceilings, program, plan, points)
    progress("fill the cache")
    run.steps.fill_cache(min(_FILLED_TOKENS, backend.context_length))
    for number in range(1, repeats + 1):
        for task in run.tasks:
            progress(f"{task.label}, round {number} of {repeats}")
            run.measure(task)
    figures = run.figures()
    by_kind = {kind: tuple(each.measured() for each in run.of_kind(kind)) for kind in _KINDS}
    crossed = [task.context for task in run.of_kind("cross")]
    return BenchResult(
        figures,
        by_kind["prefill"],
        by_kind["decode"],
        by_kind["batch"],
        tuple(zip(crossed, by_kind["cross"], strict=True)),
        run.batch_context,
        find_knee(by_kind["batch"], figures.best_read, figures.multiply),
        run.ops(),
    )


class _Task:
    """One point on its way through the rounds; sequences that decode have `context` tokens."""

    def __init__(
        self,
        kind: str,
        point: int,
        tokens: int,
        costs: tuple[Cost, ...],
        times: int,
        context: int = 0,
    ) -> None:
        self.kind = kind
        self.point = point
        self.context = context
        self.tokens = tokens
        self.costs = costs
        self.cost = total(costs)
        self.times = times
        self.label = f"{kind} {point:,}{f' at {context:,}' if kind == 'cross' else ''}"
        self.rounds: list[tuple[float, float, float]] = []
        self.ops: list[list[OpTime]] = []

    def measured(self) -> Measured:
        seconds, memory, arithmetic = zip(*self.rounds, strict=True)
        return Measured(self.point, self.tokens, self.cost, seconds, memory, arithmetic)


class _Run:
    """Tasks, and the ceilings that were measured on the way."""

    def __init__(
        self,
        steps: Steps,
        ceilings: MachineCeilings,
        program: Program,
        plan: MemoryPlan,
        points: Points,
    ) -> None:
        self.steps = steps
        self.batch_context = min(BATCH_CONTEXT, plan.context_length)
        self._ceilings = ceilings
        self._reads: list[dict[str, float]] = []
        self._multiplies: list[dict[ActivationMode, float]] = []
        prefill = [
            _Task("prefill", p, p, prompt_costs(program, plan, p), max(1, _PROMPT_TOKENS // p))
            for p in points.prefill
        ]
        decode = [
            _Task("decode", c, 1, decode_costs(program, plan, [c]), DECODE_TOKENS, c)
            for c in points.decode
        ]
        batches = [("batch", b, self.batch_context) for b in points.batch]
        batches += [("cross", b, context) for b, context in points.cross]
        together = [
            _Task(
                kind,
                b,
                b,
                decode_costs(program, plan, [context] * b),
                max(_BATCH_STEPS, DECODE_TOKENS // b),
                context,
            )
            for kind, b, context in batches
        ]
        batch = together[: len(points.batch)]
        self.tasks = [*prefill, *decode, *together]
        self._profiled = [
            *_nearest(prefill, _PROFILED_PROMPT),
            *_nearest(decode, _PROFILED_CONTEXT),
            *_nearest(batch, MOST_SEQUENCES),
        ]

    def of_kind(self, kind: str) -> list[_Task]:
        return [task for task in self.tasks if task.kind == kind]

    def measure(self, task: _Task) -> None:
        reads, multiplies = self._ceilings.read(), self._ceilings.multiply()
        self._reads.append(reads)
        self._multiplies.append(multiplies)
        read = max(reads.values())
        memory = task.cost.memory_seconds(read)
        arithmetic = task.cost.arithmetic_seconds(multiplies)
        task.rounds.append((self._seconds(task), memory, arithmetic))
        if task in self._profiled:
            self._profile(task, read, multiplies)

    def _seconds(self, task: _Task) -> float:
        """Of one prompt or one step, over as many as the task takes."""
        if task.kind == "prefill":
            return sum(self.steps.prefill(task.point) for _ in range(task.times)) / task.times
        return self.steps.decode([task.context] * task.tokens, task.times) / task.times

    def figures(self) -> CeilingFigures:
        best = [max(reads.values()) for reads in self._reads]
        return CeilingFigures(
            median(best),
            (min(best), max(best)),
            {name: median(each[name] for each in self._reads) for name in self._reads[0]},
            {mode: median(each[mode] for each in self._multiplies) for mode in self._multiplies[0]},
            self._ceilings.buffer_bytes,
        )

    def ops(self) -> tuple[OpTime, ...]:
        """Of each profiled point its middle round, so that shares belong to one another."""
        found: list[OpTime] = []
        for task in self._profiled:
            rounds = sorted(task.ops, key=lambda ops: sum(each.seconds for each in ops))
            found += rounds[len(rounds) // 2]
        return tuple(found)

    def _profile(self, task: _Task, read: float, multiply: dict[ActivationMode, float]) -> None:
        """Once more, stage by stage: reading clocks would slow the measurement itself."""
        self.steps.backend.profile(True)
        self._seconds(task)
        stages = self.steps.backend.stage_seconds()
        self.steps.backend.profile(False)
        each = [(label, seconds / task.times) for label, seconds in stages]
        task.ops.append(op_times(task.kind, task.point, each, task.costs, read, multiply))


def _nearest(tasks: list[_Task], most: int) -> list[_Task]:
    """The task of the largest point that is not above `most`, else of the smallest, if any."""
    below = [task for task in tasks if task.point <= most]
    return below[-1:] or tasks[:1]
