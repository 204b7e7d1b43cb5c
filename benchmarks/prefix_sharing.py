"""32 requests that begin alike, with the prefix index and without it.

    python benchmarks/prefix_sharing.py [--requests 32] [--prefix 1000] [--rounds 5] [--json FILE]

Prompts of a common prefix and a tail of their own, 1 to 32 tokens. They arrive at once: first when
nobody has seen the prefix, then others when it is known. Time to the first token, and the bytes of
cache that are held when every request has one; the first tokens must be the same in both ways.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from farthing.core import BLOCK_TOKENS, Request, SamplingParams
from farthing.engine.engine import limits_of
from farthing.engine.kv import blocks_for
from farthing.engine.limits import Policy
from farthing.engine.scheduler import Scheduler
from real_text import RealText
from steps import default_backend, step
from summary import Ratio

WANTED_RATIO = 8.0
LONGEST_TAIL = 32
STEP_TOKENS = 512
ANSWER_TOKENS = 256
"""Room for the answers: those that come first go on until the last has come."""

ARRIVALS = ("prefix new", "prefix known")


@dataclass(frozen=True)
class Turn:
    """What one burst of requests took. `once` is what holds the common blocks once."""

    first_token_seconds: list[float]
    held_blocks: int
    once_blocks: int
    reused_tokens: int
    first_tokens: list[int]


class Server:
    """A scheduler and a backend of its own, so that neither writes to the other's blocks."""

    def __init__(self, sharing: bool, arguments: argparse.Namespace) -> None:
        self.backend = default_backend(
            context_length=arguments.prefix + LONGEST_TAIL + ANSWER_TOKENS,
            sequences=arguments.requests,
            threads=arguments.threads,
            step_tokens=STEP_TOKENS,
        )
        # Without a bound on a step, prompts are computed as fast as they can be: a bound would make
        # those without the index wait for others' answers as well.
        policy = Policy(sharing=sharing, latency_target=None)
        self.scheduler = Scheduler(limits_of(self.backend), policy=policy)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of cache."""
        return self.backend.plan.block_bytes

    def burst(self, prefix: tuple[int, ...], tails: list[tuple[int, ...]]) -> Turn:
        """All at once, until each has its first token."""
        sampling = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
        reused = self.scheduler.counters.reused_tokens
        started = perf_counter()
        sequences = [
            self.scheduler.submit(Request(str(number), prefix + tail, sampling))
            for number, tail in enumerate(tails)
        ]
        first: dict[int, float] = {}
        while len(first) < len(sequences):
            step(self.scheduler, self.backend)
            for number, sequence in enumerate(sequences):
                if sequence.output:
                    first.setdefault(number, perf_counter() - started)
        if len(self.scheduler.running) < len(sequences):
            raise RuntimeError("an answer ended before the last prompt was computed")
        common = len(prefix) // BLOCK_TOKENS
        turn = Turn(
            first_token_seconds=[first[number] for number in range(len(sequences))],
            held_blocks=self.scheduler.pool.held,
            once_blocks=common
            + sum(blocks_for(sequence.computed) - common for sequence in sequences),
            reused_tokens=self.scheduler.counters.reused_tokens - reused,
            first_tokens=[sequence.output[0] for sequence in sequences],
        )
        for sequence in sequences:
            self.scheduler.end(sequence, "cancelled")
        self.scheduler.check()
        return turn


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds: by arrival, a turn with the index and one without."""
    draw, text = random.Random(0), RealText()
    servers = {True: Server(True, arguments), False: Server(False, arguments)}

    def bursts(prefix: int, requests: int) -> dict[str, Any]:
        beginning = text.take(prefix)
        found: dict[str, Any] = {arrival: {} for arrival in ARRIVALS}
        for arrival in ARRIVALS:
            tails = text.prompts([draw.randint(1, LONGEST_TAIL) for _ in range(requests)])
            for sharing, server in servers.items():
                turn = server.burst(beginning, tails)
                found[arrival]["with" if sharing else "without"] = asdict(turn)
        return found

    try:
        bursts(2 * BLOCK_TOKENS, 2)  # a warm-up
        rounds = [bursts(arguments.prefix, arguments.requests) for _ in range(arguments.rounds)]
        block_bytes = servers[True].block_bytes
    finally:
        for server in servers.values():
            server.backend.close()
    return {"block_bytes": block_bytes, "rounds": rounds}


def complaints(results: dict[str, Any]) -> list[str]:
    """What is not as it must be, whatever the clock says."""
    found = []
    for number, round_ in enumerate(results["rounds"]):
        for arrival, turns in round_.items():
            shared, alone = turns["with"], turns["without"]
            if shared["first_tokens"] != alone["first_tokens"]:
                found.append(f"round {number}, {arrival}: the first tokens differ")
            if shared["held_blocks"] > shared["once_blocks"]:
                found.append(
                    f"round {number}, {arrival}: {shared['held_blocks']} blocks are held, "
                    f"{shared['once_blocks']} would hold the prefix once"
                )
    return found


def show(results: dict[str, Any]) -> None:
    """Medians over the rounds; the ratio with its smallest and largest."""
    table = Table(title="Requests that begin alike; the index must make the first token 8x sooner")
    heading = ("arrival", "index", "mean first token s", "ratio", "blocks held", "MiB held")
    for column in (*heading, "tokens reused", "reached"):
        table.add_column(column, justify="left" if column == "arrival" else "right")
    for arrival in ARRIVALS:
        rounds = [round_[arrival] for round_ in results["rounds"]]
        means = {
            kind: [fmean(turns[kind]["first_token_seconds"]) for turns in rounds]
            for kind in ("with", "without")
        }
        ratios = [b / a for a, b in zip(means["with"], means["without"], strict=True)]
        ratio = Ratio(median(ratios), min(ratios), max(ratios))
        for kind in ("without", "with"):
            held = median(turns[kind]["held_blocks"] for turns in rounds)
            reused = median(turns[kind]["reused_tokens"] for turns in rounds)
            table.add_row(
                arrival,
                kind,
                f"{median(means[kind]):.3f}",
                str(ratio) if kind == "with" else "-",
                f"{held:,.0f}",
                f"{held * results['block_bytes'] / (1 << 20):,.0f}",
                f"{reused:,.0f}",
                ("yes" if ratio.middle >= WANTED_RATIO else "no") if kind == "with" else "-",
            )
    console = Console()
    console.print(table)
    for complaint in complaints(results) or ["The prefix was held once, and no token differed."]:
        console.print(complaint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prefix", type=int, default=1000, help="tokens that all have in common")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments)
    show(results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if complaints(results):
        sys.exit(1)


if __name__ == "__main__":
    main()
