"""What loading takes: the packed weights once, and the file's pages only while they are read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = """
import json, sys, threading
from farthing.backends.native import NativeBackend
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory

def resident():
    lines = [line.split() for line in open("/proc/self/status")]
    return [1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssFile:")]

model = load_model(open_checkpoint(sys.argv[1]))
plan = plan_memory(model, threads=2)
samples = [resident()]
done = threading.Event()

def watch():
    while not done.wait(0.0005):
        samples.append(resident())

watcher = threading.Thread(target=watch)
watcher.start()
backend = NativeBackend(model, plan, lambda *_: samples.append(resident()))
done.set()
watcher.join()
anonymous, both = ([f(each) - f(samples[0]) for each in samples] for f in (lambda s: s[0], sum))
print(json.dumps({
    "weights": plan.weight_bytes,
    "largest": max(place.bytes for place in plan.weights.values()),
    "anonymous": max(anonymous),
    "both": max(both),
    "samples": len(samples),
}))
"""


@pytest.fixture(scope="module")
def load(smollm2_path: Path) -> dict[str, int]:
    command = [sys.executable, "-c", SCRIPT, str(smollm2_path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout)


def test_anonymous_memory_stays_under_115_percent_of_the_packed_weights(load):
    assert load["samples"] > 100
    assert load["weights"] < load["anonymous"] < 1.15 * load["weights"]


def test_the_weights_are_never_in_memory_twice(load):
    """At most one matrix is: its pages are given back when it has been packed."""
    assert load["both"] < load["weights"] + load["largest"] + 0.15 * load["weights"]
