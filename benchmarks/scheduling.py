"""What choosing and keeping account cost in a step, beside what the step computes.

    python benchmarks/scheduling.py [--sequences 32,256] [--steps 64] [--rounds 5] [--json FILE]

Decoding sequences with the prefix index on and a cache that is full of earlier texts, so that every
new block evicts one. Turns of the default model on the native backend and of the same without
arithmetic; what of a step is the scheduler's must be at most 10 %.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import thread_time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from farthing.core import Request, SamplingParams
from farthing.engine.engine import limits_of
from farthing.engine.limits import Policy
from farthing.engine.scheduler import Scheduler
from real_text import RealText
from steps import NoArithmetic, StepTime, default_backend, step

if TYPE_CHECKING:
    from farthing.engine.limits import Limits
    from steps import Runs

MOST_SHARE = 0.10
STEP_TOKENS = 2048
FILLING_STEPS = 48
"""At most so many pass between the first sequence's first token and the last one's."""

Function = tuple[str, int, str]


def prompt_lengths(sequences: int) -> list[int]:
    """Spread over a block's length, so that in each step as many sequences fill a block."""
    return [64 + index % 32 for index in range(sequences)]


@dataclass
class Decoding:
    """A scheduler that decodes so many sequences on a backend, over and over."""

    limits: Limits
    backend: Runs
    sequences: int
    text: RealText
    rounds: list[StepTime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, policy=Policy(latency_target=None))

    def begin(self, steps: int) -> None:
        """Submits new prompts and runs them up to their first tokens."""
        sampling = SamplingParams(max_tokens=steps + FILLING_STEPS, ignore_eos=True)
        prompts = self.text.prompts(prompt_lengths(self.sequences))
        submitted = [
            self.scheduler.submit(Request(str(number), prompt, sampling))
            for number, prompt in enumerate(prompts)
        ]
        while not all(sequence.output for sequence in submitted):
            step(self.scheduler, self.backend)

    def decode(self, steps: int) -> list[StepTime]:
        """So many steps, in each of which every sequence gains a token."""
        times = [step(self.scheduler, self.backend) for _ in range(steps)]
        if len(self.scheduler.running) != self.sequences:
            raise RuntimeError("a sequence ended while steps were timed")
        return times

    def finish(self) -> None:
        """Ends them all; their blocks stay known."""
        for sequence in self.scheduler.running:
            self.scheduler.end(sequence, "cancelled")

    def turn(self, steps: int) -> StepTime:
        """The mean step of a round."""
        self.begin(steps)
        mean = StepTime.mean(self.decode(steps))
        self.finish()
        return mean


def parts(decoding: Decoding, steps: int) -> dict[str, float]:
    """The share of each file of the engine in what scheduling takes, by a profiler.

    The time of what is not the engine's own belongs to whoever called it. A profiler makes many
    small calls look dearer than one large one.
    """
    decoding.begin(steps)
    profiler = cProfile.Profile(thread_time)
    profiler.runcall(decoding.decode, steps)
    decoding.finish()
    found: dict[str, float] = {}
    for function, (_, _, own, _, callers) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if (name := part_of(function)) is not None:
            found[name] = found.get(name, 0.0) + own
            continue
        for caller, (_, _, own_for_caller, _) in callers.items():
            name = part_of(caller) or "elsewhere"
            found[name] = found.get(name, 0.0) + own_for_caller
    total = sum(found.values())
    return dict(sorted(((name, own / total) for name, own in found.items()), key=lambda p: -p[1]))


def part_of(function: Function) -> str | None:
    """The engine's file that a function stands in."""
    path = Path(function[0])
    return path.stem if path.parent.name == "engine" else None


def measure(sequences: int, steps: int, rounds: int, threads: int) -> dict[str, Any]:
    """One number of sequences: two turns that fill the cache, then rounds of one each."""
    context = max(prompt_lengths(sequences)) + steps + FILLING_STEPS
    backend = default_backend(
        context_length=context, sequences=sequences, threads=threads, step_tokens=STEP_TOKENS
    )
    try:
        limits = limits_of(backend)
        native = Decoding(limits, backend, sequences, RealText())
        null = Decoding(limits, NoArithmetic(), sequences, RealText())
        for each in (native, native, null, null):
            each.turn(steps)
        turns = [(native.turn(steps), null.turn(steps)) for _ in range(rounds)]
        shares = parts(null, steps)
    finally:
        backend.close()
    return {
        "sequences": sequences,
        "native": [asdict(turn) for turn, _ in turns],
        "null": [asdict(turn) for _, turn in turns],
        "share": median(turn.scheduling / (turn.scheduling + turn.run) for turn, _ in turns),
        "null_share": median(
            empty.scheduling / (empty.scheduling + turn.run) for turn, empty in turns
        ),
        "parts": shares,
    }


def show(results: list[dict[str, Any]]) -> None:
    """Medians of the rounds, in milliseconds a step."""
    table = Table(title=f"Milliseconds a step; scheduling may take {MOST_SHARE:.0%} of it")
    heading = ("sequences", "backend", "schedule", "observe", "commit", "run", "share", "reached")
    for column in heading:
        table.add_column(column, justify="right")
    for result in results:
        for backend, key in (("native", "share"), ("null", "null_share")):
            turns = [StepTime(**turn) for turn in result[backend]]
            cells = [
                f"{1000 * median(getattr(turn, part) for turn in turns):.3f}"
                for part in ("schedule", "observe", "commit", "run")
            ]
            if backend == "null":
                cells[-1] = "-"
            verdict = "yes" if result[key] <= MOST_SHARE else "no"
            table.add_row(str(result["sequences"]), backend, *cells, f"{result[key]:.1%}", verdict)
    console = Console()
    console.print(table)
    console.print("The share of the null backend's scheduling is of a step with the native's run.")
    for result in results:
        told = ", ".join(f"{name} {share:.0%}" for name, share in result["parts"].items())
        console.print(f"{result['sequences']} sequences, scheduling by file: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", default="32,256")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = [
        measure(int(sequences), arguments.steps, arguments.rounds, arguments.threads)
        for sequences in arguments.sequences.split(",")
    ]
    show(results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
