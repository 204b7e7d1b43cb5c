"""From the command to its first token, whole process, with the model on disk and in the page cache.

    python benchmarks/first_token.py [--runs 10] [--model smollm2-135m]

Runs `farthing run MODEL PROMPT` as a person would, and reads its standard output until the first
character of the answer.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from farthing.files import catalog

PROMPT = "The capital of France is"


def seconds_to_first_token(model: str) -> float:
    """Starts the command, and stops the clock at the first byte of its answer."""
    command = [Path(sysconfig.get_path("scripts")) / "farthing", "run", model, PROMPT]
    started = time.perf_counter()
    with subprocess.Popen(
        [*command, "--max-tokens", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
        if process.wait() != 0 or not first:
            sys.exit(process.stderr.read().decode())
    return seconds


def import_seconds() -> float:
    """What `import farthing` takes in a process of its own."""
    code = "import time; t = time.perf_counter(); import farthing; print(time.perf_counter() - t)"
    return float(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    catalog.resolve(arguments.model)
    for label, measure in (
        ("command to first token", lambda: seconds_to_first_token(arguments.model)),
        ("import farthing", import_seconds),
    ):
        measure()
        times = sorted(measure() for _ in range(arguments.runs))
        print(f"{label}: {statistics.median(times):.3f} s ({times[0]:.3f} to {times[-1]:.3f})")


if __name__ == "__main__":
    main()
