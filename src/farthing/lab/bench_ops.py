"""Where the time of a step goes: by kind of operation, and how much of it is Python."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import SamplingParams
from farthing.engine.engine import Engine
from farthing.plan.cost import Cost, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.core import ActivationMode
    from farthing.lab.bench_steps import MeasuredBackend
    from farthing.text.tokenizer import Tokenizer

PYTHON_TOKENS = 48
"""Tokens that each sequence makes while Python's share is measured, unless told otherwise."""

_ROUNDS = 3


@dataclass(frozen=True)
class OpTime:
    """All stages of one kind in one prompt or one step. `share` is of that step's time.

    `memory_share` and `arithmetic_share` are of the ceilings: what the kind must read and multiply,
    at their speed, over the time it took.
    """

    phase: str
    point: int
    kind: str
    seconds: float
    share: float
    memory_share: float
    arithmetic_share: float


@dataclass(frozen=True)
class PythonShare:
    """Of the time per step of an engine's texts, what was not spent in native stages."""

    sequences: int
    step_seconds: float
    share: float

    @property
    def seconds(self) -> float:
        """Of Python, in a step."""
        return self.step_seconds * self.share


def op_times(
    phase: str,
    point: int,
    stage_seconds: Sequence[tuple[str, float]],
    costs: Sequence[Cost],
    bytes_per_second: float,
    products_per_second: Mapping[ActivationMode, float],
) -> list[OpTime]:
    """Stages added up by label, the longest first. Sampling is timed after them, at no cost."""
    seconds: dict[str, float] = {}
    kinds: dict[str, list[Cost]] = {}
    for (label, time), cost in zip(stage_seconds, [*costs, Cost()], strict=True):
        seconds[label] = seconds.get(label, 0.0) + time
        kinds.setdefault(label, []).append(cost)
    whole = sum(seconds.values())
    found = []
    for label, time in sorted(seconds.items(), key=lambda each: -each[1]):
        if time > 0:
            cost = total(kinds[label])
            memory = cost.memory_seconds(bytes_per_second) / time
            arithmetic = cost.arithmetic_seconds(products_per_second) / time
            found.append(OpTime(phase, point, label, time, time / whole, memory, arithmetic))
    return found


def python_share(
    backend: MeasuredBackend,
    tokenizer: Tokenizer,
    sequences: int,
    seed: int,
    *,
    tokens: int = PYTHON_TOKENS,
) -> PythonShare:
    """Lets an engine write `sequences` texts of so many tokens side by side, from one token each,
    and compares its time with the native stages'. The median of three times.

    Everything between a prompt's ids and the finished text counts.
    """
    engine = Engine(backend, tokenizer)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    random = np.random.default_rng(seed)
    steps: list[float] = []
    shares: list[float] = []
    for _ in range(_ROUNDS):
        prompts = random.integers(0, backend.vocabulary_size, (sequences, 1)).tolist()
        backend.profile(True)
        before = engine.steps
        started = perf_counter()
        engine.generate(prompts, sampling)
        seconds = perf_counter() - started
        native = sum(time for _, time in backend.stage_seconds())
        steps.append(seconds / (engine.steps - before))
        shares.append(1 - native / seconds)
    backend.profile(False)
    return PythonShare(sequences, median(steps), median(shares))
