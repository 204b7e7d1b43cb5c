"""What every engine that runs in a process of its own shares: the protocol, and the clock.

A line of JSON comes in for each measurement, a line goes out with the answer. Needs
the standard library alone, because each engine runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

WARM_UP = {"kind": "decode", "prompt": 64, "sequences": 2, "generated": 4, "seed": 0}
"""A short text before each measurement: wakes the threads of an engine that was stopped."""


Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""A point to {"rates": {label: tokens per second}}, and what else the engine has to say."""


class Steps(NamedTuple):
    """Prompts under way: `step` computes one step, and gives the tokens made so far of each.

    `finish` ends what is left, off the clock.
    """

    step: Callable[[], Sequence[int]]
    finish: Callable[[], None]


def prompts_of(point: dict[str, Any]) -> list[list[int]]:
    """Random token ids, the same for every engine, different for every seed."""
    draw = random.Random(point["seed"])
    return [
        [draw.randrange(1000, 40000) for _ in range(point["prompt"])]
        for _ in range(point["sequences"])
    ]


def rate(begin: Callable[[list[list[int]], int], Steps], point: dict[str, Any]) -> float:
    """Tokens per second of the point's kind.

    Prefill is timed from the submission of the prompts to the last one's first token. Decode is
    timed from there until the first sequence has all its tokens, so that all of them run all the
    time; the tokens that were made in that time count.
    """
    prompts = prompts_of(point)
    started = perf_counter()
    steps = begin(prompts, point["generated"])
    made = steps.step()
    while min(made) < 1:
        made = steps.step()
    between, before = perf_counter(), sum(made)
    if point["kind"] == "prefill":
        steps.finish()
        return point["prompt"] * point["sequences"] / (between - started)
    while max(made) < point["generated"]:
        made = steps.step()
    ended = perf_counter()
    steps.finish()
    return (sum(made) - before) / (ended - between)


def serve(load: Callable[[str, int], Measure]) -> None:
    """Loads the model of argv, says so, and answers until standard input ends.

    What the engine itself prints to standard output goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    started = perf_counter()
    measure = load(sys.argv[1], int(sys.argv[2]))
    measure(WARM_UP)
    answers.write(json.dumps({"loaded_seconds": perf_counter() - started}) + "\n")
    for line in sys.stdin:
        measure(WARM_UP)
        answers.write(json.dumps(measure(json.loads(line))) + "\n")
