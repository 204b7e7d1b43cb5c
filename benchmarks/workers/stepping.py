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

STEP_TOKENS = 512
"""No engine here takes fewer tokens of prompts in a step."""

AHEAD_TOKENS = 8
"""A sequence may be so many ahead of the others when the clock starts."""

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


Begin = Callable[[list[list[int]], list[int]], Steps]
"""Submits prompts, each to be continued by its number of tokens exactly."""


def prompts_of(point: dict[str, Any]) -> list[list[int]]:
    """Random token ids, the same for every engine, different for every seed."""
    draw = random.Random(point["seed"])
    return [
        [draw.randrange(1000, 40000) for _ in range(point["prompt"])]
        for _ in range(point["sequences"])
    ]


def measured(label: str, begin: Begin, point: dict[str, Any]) -> dict[str, Any]:
    """One turn: the rate of a "decode" or "prefill" point, and every request's times of a "load".

    A load has `prompts` and `lengths`, and all of it arrives at once.
    """
    if point["kind"] != "load":
        return {"rates": {label: rate(begin, point)}}
    clock = Clock(point["lengths"])
    steps = begin(point["prompts"], point["lengths"])
    while not clock.stopped:
        for number, made in enumerate(steps.step()):
            clock.take(number, made)
    return clock.answer(label)


class Clock:
    """When each request has its first token and its last, in seconds since all were submitted."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._started = perf_counter()

    @property
    def stopped(self) -> bool:
        """Whether every request has all its tokens."""
        return len(self._last) == len(self._lengths)

    def take(self, number: int, made: int) -> None:
        """Request `number` has `made` tokens by now. Raises `ValueError` when that is too many."""
        if number in self._last or made == 0:
            return
        now = perf_counter() - self._started
        self._first.setdefault(number, now)
        if made > self._lengths[number]:
            raise ValueError(f"{made} tokens were made where {self._lengths[number]} were wanted")
        if made == self._lengths[number]:
            self._last[number] = now

    def answer(self, label: str) -> dict[str, Any]:
        """What a turn under load found; times are in the order of the requests."""
        wall = max(self._last.values())
        requests = range(len(self._lengths))
        return {
            "rates": {label: sum(self._lengths) / wall},
            "wall_seconds": wall,
            "first_token_seconds": [self._first[number] for number in requests],
            "latency_seconds": [self._last[number] for number in requests],
        }


def rate(begin: Begin, point: dict[str, Any]) -> float:
    """Tokens per second of the point's kind.

    Prefill is timed from the submission of the prompts to the last one's first token. Decode is
    timed from there until as many tokens more are made as the sequences lack together. All of them
    run all that time, because they are asked for more: the first goes on while the prompts of the
    others are computed, some hundred tokens a step.
    """
    prompts = prompts_of(point)
    meanwhile = point["prompt"] * point["sequences"] // STEP_TOKENS + AHEAD_TOKENS
    started = perf_counter()
    steps = begin(prompts, [point["generated"] + meanwhile] * len(prompts))
    made = steps.step()
    while min(made) < 1:
        made = steps.step()
    between, before = perf_counter(), sum(made)
    if point["kind"] == "prefill":
        steps.finish()
        return point["prompt"] * point["sequences"] / (between - started)
    wanted = before + (point["generated"] - 1) * len(prompts)
    while sum(made) < wanted:
        made = steps.step()
    ended = perf_counter()
    steps.finish()
    return (sum(made) - before) / (ended - between)


def serve(load: Callable[[str, int, int | None], Measure]) -> None:
    """Loads the model of argv, says so, and answers until standard input ends.

    argv: the model, the threads, and the most texts that run at once where that is limited. What
    the engine itself prints to standard output goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    started = perf_counter()
    model, threads, *slots = sys.argv[1:]
    measure = load(model, int(threads), int(slots[0]) if slots else None)
    measure(WARM_UP)
    answers.write(json.dumps({"loaded_seconds": perf_counter() - started}) + "\n")
    for line in sys.stdin:
        measure(WARM_UP)
        answers.write(json.dumps(measure(json.loads(line))) + "\n")
