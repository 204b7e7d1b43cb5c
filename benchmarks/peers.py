"""farthing beside llama.cpp in one run: prefill of 512 tokens, decode of 128, two weight formats.

    python benchmarks/peers.py --llama-bench PATH [--rounds 5] [--threads 2] [--json FILE]

Build the peer with its native flags, from the source inside the sdist of llama-cpp-python:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz && cd llama_cpp_python-0.3.36/vendor/llama.cpp
    cmake -B build -DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF
    cmake --build build --target llama-bench

Rounds alternate between the two programs, so a machine that slows down slows both; a ratio is taken
within its round, and its median is given with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import farthing
from farthing import Engine, SamplingParams
from farthing.files import catalog
from requantise import write_q4_0

PROMPT_TOKENS = 512
DECODE_TOKENS = 128


@dataclass(frozen=True)
class Round:
    """Tokens per second of one round; `python_share` is of the decoding time, ours alone."""

    prefill: float
    decode: float
    python_share: float = 0.0


def measure_farthing(engine: Engine, seed: int) -> Round:
    """A prompt of 512 random tokens to its first token, then 128 tokens after a prompt of one.

    Both times hold everything between call and return: scheduling, sampling, decoding to text.
    """
    draw = random.Random(seed)
    prompt = [draw.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]

    started = time.perf_counter()
    engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
    between = time.perf_counter()
    decode_only = SamplingParams(max_tokens=DECODE_TOKENS, ignore_eos=True)
    completion = engine.generate(prompt[:1], decode_only)
    ended = time.perf_counter()
    return Round(
        prefill=PROMPT_TOKENS / (between - started),
        decode=DECODE_TOKENS / (ended - between),
        python_share=1 - completion.timing.native_seconds / (ended - between),
    )


def measure_llama(llama_bench: str, model: Path, threads: int) -> Round:
    """The same two numbers as llama-bench reports them: after a warm-up, sampling nothing."""
    command = [llama_bench, "-m", model, "-t", threads, "-r", 1, "-o", "json"]
    command += ["-p", PROMPT_TOKENS, "-n", DECODE_TOKENS]
    output = subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout
    rates = {row["n_gen"]: row["avg_ts"] for row in json.loads(output)}
    return Round(prefill=rates[0], decode=rates[DECODE_TOKENS])


def summarise(ours: list[Round], theirs: list[Round], phase: str) -> dict[str, float]:
    """Medians of both, and the median, smallest and largest of the ratios round by round."""
    mine = [getattr(each, phase) for each in ours]
    peer = [getattr(each, phase) for each in theirs]
    ratios = [a / b for a, b in zip(mine, peer, strict=True)]
    return {
        "farthing": statistics.median(mine),
        "llama.cpp": statistics.median(peer),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def compare(llama_bench: str, model: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Both programs on one file, A B A B: the summary of each phase, and every round."""
    ours, theirs = [], []
    with Engine.load(model, threads=threads, context_length=1024) as engine:
        measure_farthing(engine, seed=0)  # llama-bench warms up too
        for seed in range(1, rounds + 1):
            ours.append(measure_farthing(engine, seed))
            theirs.append(measure_llama(llama_bench, model, threads))
    return {
        "prefill": summarise(ours, theirs, "prefill"),
        "decode": summarise(ours, theirs, "decode"),
        "python_share": statistics.median(each.python_share for each in ours),
        "rounds": {
            "farthing": [asdict(each) for each in ours],
            "llama.cpp": [asdict(each) for each in theirs],
        },
    }


class Neighbours:
    """How much of the machine other processes took since this was made: they spoil a ratio.

    A program that spins at its barriers loses far more to them than one that sleeps.
    """

    def __init__(self) -> None:
        self._busy, self._total = self._read()

    def share(self) -> float:
        """Processor time of others, of all that there was, from 0 to 1."""
        busy, total = self._read()
        return max(0.0, (busy - self._busy) / max(total - self._total, 1e-9))

    @staticmethod
    def _read() -> tuple[float, float]:
        """Seconds that others were busy, and all seconds, of all cores together."""
        ticks = [int(text) for text in Path("/proc/stat").read_text().split(None, 9)[1:9]]
        seconds = [tick / os.sysconf("SC_CLK_TCK") for tick in ticks]
        idle = seconds[3] + seconds[4]
        return sum(seconds) - idle - sum(os.times()[:4]), sum(seconds)


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.platform()}


def print_table(results: dict[str, Any], console: Console) -> None:
    """One row per format and phase."""
    table = Table(title="Tokens per second, median of the rounds")
    for column in ("weights", "phase", "farthing", "llama.cpp", "ratio", "smallest to largest"):
        table.add_column(column, justify="left" if column in ("weights", "phase") else "right")
    for weights, result in results.items():
        for phase, label in (("prefill", "pp512"), ("decode", "tg128")):
            row = result[phase]
            spread = f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}"
            rates = (f"{row['farthing']:.0f}", f"{row['llama.cpp']:.0f}", f"{row['ratio']:.2f}")
            table.add_row(weights, label, *rates, spread)
    console.print(table)
    shares = ", ".join(f"{name} {result['python_share']:.1%}" for name, result in results.items())
    console.print(f"Python's share of decoding one sequence: {shares}")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-bench", default=os.environ.get("LLAMA_BENCH", ""), metavar="PATH")
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    arguments = parser.parse_args()
    if not arguments.llama_bench:
        sys.exit(
            "give --llama-bench PATH or LLAMA_BENCH: the top of this file says how to build it"
        )

    shipped = catalog.resolve(arguments.model)
    neighbours = Neighbours()
    with tempfile.TemporaryDirectory() as folder:
        q4_0 = Path(folder) / "q4_0.gguf"
        write_q4_0(shipped, q4_0)
        results = {
            name: compare(arguments.llama_bench, path, arguments.threads, arguments.rounds)
            for name, path in (("as shipped", shipped), ("Q4_0", q4_0))
        }
    share = neighbours.share()
    console = Console()
    print_table(results, console)
    console.print(f"Other processes took {share:.1%} of the machine meanwhile.")
    if arguments.json:
        report = {
            "version": farthing.__version__,
            "machine": machine(),
            "taken_by_others": share,
            "model": arguments.model,
            "threads": arguments.threads,
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
