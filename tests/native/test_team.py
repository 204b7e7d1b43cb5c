"""Threads share work without waiting for each other: more of them than cores cost nothing much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import tiny

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import json, os, sys, time
import farthing
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
greedy = farthing.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
counts = [int(count) for count in sys.argv[2].split(",")]
engines = {n: farthing.Engine.load(sys.argv[1], threads=n, context_length=64) for n in counts}
times = {n: [] for n in counts}
answers = set()
for turn in range(5):
    for n, engine in engines.items():
        started = time.perf_counter()
        answers.add(tuple(engine.generate("a b", greedy).token_ids))
        times[n].append(time.perf_counter() - started)
print(json.dumps({"best": [min(times[n]) for n in counts], "answers": len(answers)}))
"""


def on_one_core(model: Path, counts: str) -> dict:
    """The best time of a short answer with each number of threads, all on one core."""
    command = [sys.executable, "-c", SCRIPT, str(model), counts]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot confine a process here")
def test_eight_threads_on_one_core_take_at_most_twice_one_threads_time(smollm2_path):
    """A barrier that every thread must reach makes this ten times and more."""
    result = on_one_core(smollm2_path, "1,2,8")
    one, *more = result["best"]
    assert result["answers"] == 1
    assert all(time < 2 * one for time in more), result


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot confine a process here")
def test_threads_that_come_late_to_hundreds_of_short_phases_change_no_answer():
    result = on_one_core(tiny.shared("llama3", quant="Q4_0"), "1,3,16")
    assert result["answers"] == 1
