"""Threads share a step: whoever comes late, or is missing, changes no answer."""

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
import json, os, sys
import farthing
from farthing.backends.native import NativeBackend
from farthing.engine.engine import Engine
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.text.load import load_tokenizer
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
greedy = farthing.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
counts = [int(count) for count in sys.argv[2].split(",")]
checkpoint = open_checkpoint(sys.argv[1])
model = load_model(checkpoint)
plans = [plan_memory(model, threads=n, context_length=64) for n in counts]
engines = [Engine(NativeBackend(model, plan), load_tokenizer(checkpoint)) for plan in plans]
answers = {tuple(each.generate("a b", greedy).token_ids) for each in engines for _ in range(5)}
print(json.dumps({"answers": len(answers)}))
"""


def on_one_core(model: Path, counts: str) -> dict:
    """How many different answers a prompt gets with each number of threads, all on one core."""
    command = [sys.executable, "-c", SCRIPT, str(model), counts]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot confine a process here")
def test_threads_that_come_late_to_hundreds_of_short_phases_change_no_answer():
    result = on_one_core(tiny.shared("llama3", quant="Q4_0"), "1,3,16")
    assert result["answers"] == 1


REFUSED = """
import os, resource, sys
import numpy
from farthing.backends.native import NativeBackend
from farthing.core import DoesNotFitError
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
model = load_model(open_checkpoint(sys.argv[1]))
plan = plan_memory(model, threads=8)
if os.getuid() == 0:  # whom the limit does not bind
    os.setuid(54_321)
most = int(sys.argv[2]) + int(open("/proc/self/status").read().split("Threads:")[1].split()[0])
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
try:
    NativeBackend(model, plan)
except DoesNotFitError as error:
    print(error)
"""


@pytest.mark.parametrize("threads_left", [0, 3])
def test_a_system_without_more_threads_is_one_clear_error(threads_left: int) -> None:
    command = [sys.executable, "-c", REFUSED, str(tiny.shared("llama")), str(threads_left)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the system refuses to start 8 threads" in done.stdout
