"""The scheduler and a backend, step by step, each part of a step timed: no streams, no text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import StepResult
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory

if TYPE_CHECKING:
    from typing import Protocol

    from farthing.core import StepPlan
    from farthing.engine.scheduler import Scheduler

    class Runs(Protocol):
        """What of a backend a step needs."""

        def run(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step's parts; `run` is the backend's."""

    schedule: float
    run: float
    observe: float
    commit: float

    @property
    def scheduling(self) -> float:
        """All but the backend's."""
        return self.schedule + self.observe + self.commit

    @staticmethod
    def mean(times: list[StepTime]) -> StepTime:
        """The mean of each part."""
        return StepTime(
            *(
                float(np.mean([getattr(time, each.name) for time in times]))
                for each in fields(StepTime)
            )
        )


def step(scheduler: Scheduler, backend: Runs) -> StepTime:
    """One step; raises `ValueError` when nothing waits or runs."""
    started = perf_counter()
    plan = scheduler.schedule()
    scheduled = perf_counter()
    if plan is None:
        raise ValueError("there is nothing to run")
    shape = scheduler.shape
    before = perf_counter()
    result = backend.run(plan)
    ran = perf_counter()
    scheduler.cost.observe(shape, ran - before)
    observed = perf_counter()
    scheduler.commit(result)
    return StepTime(
        schedule=scheduled - started,
        run=ran - before,
        observe=observed - ran,
        commit=perf_counter() - observed,
    )


class NoArithmetic:
    """A backend that gives every row the same token, at once."""

    def run(self, plan: StepPlan) -> StepResult:
        rows = len(plan.rows)
        return StepResult(
            tokens=np.full(rows, 1000, np.int32),
            logprob=np.full(rows, np.nan, np.float32),
            top_ids=np.empty((rows, 0), np.int32),
            top_logprobs=np.empty((rows, 0), np.float32),
        )


def default_backend(
    *, context_length: int, sequences: int, threads: int, step_tokens: int
) -> NativeBackend:
    """The default model with room for so many texts of so many tokens, all running at once."""
    with open_checkpoint(catalog.resolve(catalog.DEFAULT_MODEL)) as checkpoint:
        model = load_model(checkpoint)
        plan = plan_memory(
            model,
            context_length=context_length,
            sequences=sequences,
            slots=sequences,
            threads=threads,
            step_tokens=step_tokens,
        )
        return NativeBackend(model, plan)
