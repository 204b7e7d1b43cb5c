"""What a step's time goes to: waiting for memory, multiplying, and what is neither.

Each stage must read so many bytes and multiply so much. At the ceilings measured beside it one of
the two takes longer, and that is what the stage is bound by; what it takes beyond is neither, and
what passes outside all stages is the call itself and Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from farthing.core import ActivationMode
from farthing.lab.bench_points import BATCH_CONTEXT
from farthing.lab.samples import Samples
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.plan.cost import decode_costs, prompt_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.lab.bench import MachineCeilings
    from farthing.lab.bench_steps import Steps
    from farthing.models.program import Program
    from farthing.plan.cost import Cost
    from farthing.plan.memory import MemoryPlan

_PARTS = ("reading", "multiplying", "beyond both", "outside the stages")


@dataclass(frozen=True)
class Point:
    """A step to be taken apart: a prompt, or sequences that decode at a context each."""

    name: str
    prompt: int = 0
    contexts: tuple[int, ...] = ()


@dataclass
class Split:
    """One point's rounds: seconds of a step by part, in the order of `_PARTS`."""

    point: Point
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def parts(self) -> list[Samples]:
        """Seconds of each part. They are what is left of a step, so all of it moves them."""
        level = self.step.median
        return [Samples(each, level=level) for each in zip(*self.rounds, strict=True)]

    @property
    def shares(self) -> list[float]:
        """Of each part, as the plot has them: of all parts together, by their medians."""
        medians = [part.median for part in self.parts]
        return [each / sum(medians) for each in medians]

    @property
    def step(self) -> Samples:
        """Seconds of the whole."""
        return Samples(tuple(sum(each) for each in self.rounds))


@dataclass(frozen=True)
class Ceiling:
    """Medians over a round: bytes a second, multiply-accumulates a second by mode."""

    read: float
    multiply: Mapping[ActivationMode, float]


def usual_points(prompts: Sequence[int], contexts: Sequence[int], room: int) -> list[Point]:
    """The middle prompt, each second context, and as many sequences as have `room` tokens."""
    prompt = prompts[len(prompts) // 2]
    found = [Point(f"prompt of {prompt:,}", prompt)]
    found += [Point(f"1 token at {each:,}", contexts=(each,)) for each in contexts[::2]]
    context = min(BATCH_CONTEXT, room)
    found += [
        Point(f"{count} sequences at {context:,}", contexts=(context,) * count)
        for count in (8, 32)
        if count * context <= room
    ]
    return found


def split_steps(
    steps: Steps,
    ceilings: MachineCeilings,
    program: Program,
    plan: MemoryPlan,
    points: Sequence[Point],
    decode_steps: int,
    rounds: int,
    progress: Callable[[str], None],
    look: Callable[[], None],
) -> tuple[list[Split], list[Ceiling]]:
    """Takes each point's step apart once a round, the ceilings measured anew before each.

    `look` is called before each, too. Decoding is the mean of `decode_steps` steps. Gives the
    ceilings of each round, too.
    """
    splits = [Split(point) for point in points]
    found: list[Ceiling] = []
    for number in range(1, rounds + 1):
        reads: list[float] = []
        multiplies: list[Mapping[ActivationMode, float]] = []
        for split in splits:
            point = split.point
            progress(f"{point.name} taken apart, round {number} of {rounds}")
            look()
            read, multiply = max(ceilings.read().values()), ceilings.multiply()
            reads.append(read)
            multiplies.append(multiply)
            costs = (
                prompt_costs(program, plan, point.prompt)
                if point.prompt
                else decode_costs(program, plan, point.contexts)
            )
            times = 1 if point.prompt else decode_steps
            steps.backend.profile(True)
            if point.prompt:
                whole = steps.prefill(point.prompt)
            else:
                whole = steps.decode(point.contexts, times) / times
            # Sampling, the last, has no cost that is counted.
            stages = [seconds / times for _, seconds in steps.backend.stage_seconds()]
            steps.backend.profile(False)
            split.rounds.append(taken_apart(whole, stages, costs, read, multiply))
        middle = {mode: median(each[mode] for each in multiplies) for mode in multiplies[0]}
        found.append(Ceiling(median(reads), middle))
    return splits, found


def taken_apart(
    whole: float,
    stages: Sequence[float],
    costs: Sequence[Cost],
    read: float,
    multiply: Mapping[ActivationMode, float],
) -> tuple[float, float, float, float]:
    """Seconds of a step by part. `stages` are seconds, one more than there are `costs`.

    No part of a stage is longer than it took: where a processor's caches hold what is read, it
    takes less than memory needs, and all of it is reading.
    """
    reading = multiplying = beyond = 0.0
    for seconds, cost in zip(stages, costs, strict=False):
        memory = cost.memory_seconds(read)
        arithmetic = cost.arithmetic_seconds(multiply)
        needed = min(seconds, max(memory, arithmetic))
        if memory >= arithmetic:
            reading += needed
        else:
            multiplying += needed
        beyond += seconds - needed
    beyond += stages[len(costs)]
    return reading, multiplying, beyond, max(0.0, whole - sum(stages))


def split_table(splits: Sequence[Split]) -> Table:
    """Each point's step by part."""
    rows: tuple[Row, ...] = tuple(
        (
            split.point.name,
            split.step.scaled(1e3),
            *(part.scaled(1e3) for part in split.parts),
        )
        for split in splits
    )
    shares = {split.point.name: split.shares for split in splits}
    prompts = [split.point.name for split in splits if split.point.prompt]
    singles = [split.point.name for split in splits if len(split.point.contexts) == 1]
    prompt, single = shares[prompts[0]], shares[singles[0]]
    outside = max(each[3] for each in shares.values())
    return Table(
        "split",
        "Where the time of a step goes",
        (
            Column("step"),
            Column("whole", "ms", ",.2f"),
            *(Column(part, "ms", ",.3f") for part in _PARTS),
        ),
        rows,
        f"Of a {prompts[0]}, {prompt[1]:.0%} is multiplying at this machine's ceiling, "
        f"{prompt[0]:.0%} reading and {prompt[2]:.0%} beyond both; of {singles[0]}, "
        f"{single[0]:.0%} is reading, {single[1]:.0%} multiplying and {single[2]:.0%} beyond both. "
        f"Outside the stages passes at most {outside:.0%}.",
        Expectation(
            "a prompt needs more time for multiplying than for reading, a decoded token more for "
            "reading",
            prompt[1] > prompt[0] and single[0] > single[1],
        ),
        notes=(
            (
                "reading, multiplying: what each stage needs at the ceilings measured beside it, "
                "the larger of the two; beyond both: what its kernel takes on top, and sampling; "
                "outside: the call, and Python"
            ),
        ),
        plots=(Plot("stacked", "step", _PARTS, "names"),),
    )
