"""How speed grows with threads, and that it does not fall when they outnumber the cores.

    python benchmarks/threads.py [--model smollm2-135m] [--threads 1,2,4,8] [--rounds 5]

Takes turns over the numbers of threads: a prompt of 512 tokens, then 64 tokens one at a time. Of
more threads than cores, an engine runs as many as there are cores. Ratios are to the first number,
within rounds; the table gives their median, smallest and largest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farthing import Engine, SamplingParams
from farthing.plan.machine import usable_cores

PHASES = {"prefill, 512": (512, 1), "decode, 64": (1, 64)}


def rates(engine: Engine, seed: int) -> dict[str, float]:
    """Tokens per second of each phase."""
    draw = random.Random(seed)
    found = {}
    for phase, (prompt, made) in PHASES.items():
        ids = [draw.randrange(1000, 40000) for _ in range(prompt)]
        started = time.perf_counter()
        engine.generate(ids, SamplingParams(max_tokens=made, ignore_eos=True))
        found[phase] = max(prompt, made) / (time.perf_counter() - started)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", default="1,2,4,8", help="the first is what others are held to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.threads.split(",")]
    engines = {
        count: Engine.load(arguments.model, threads=count, context_length=1024) for count in counts
    }
    for engine in engines.values():
        rates(engine, seed=0)
    rounds = [
        {count: rates(engine, seed) for count, engine in engines.items()}
        for seed in range(1, arguments.rounds + 1)
    ]
    table = Table(title=f"To {counts[0]} thread, on {usable_cores()} cores")
    columns = ("phase", "asked for", "run", "tokens/s", "ratio", "smallest to largest")
    for column in columns:
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in PHASES:
        for count in counts:
            ratios = [each[count][phase] / each[counts[0]][phase] for each in rounds]
            middle = statistics.median(each[count][phase] for each in rounds)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            ratio = f"{statistics.median(ratios):.2f}"
            run = min(count, usable_cores())
            table.add_row(phase, str(count), str(run), f"{middle:,.0f}", ratio, spread)
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": usable_cores(), "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
