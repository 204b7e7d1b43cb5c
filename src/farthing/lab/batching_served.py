"""A load served for real, in static batches and continuously, and what its steps cost."""

from __future__ import annotations

import time
from bisect import insort
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.backends.wrapped import WrappedBackend
from farthing.core import SamplingParams
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.engine.simulate import Batching, Outcome, Served

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from farthing.backends import Backend
    from farthing.core import StepPlan, StepResult
    from farthing.engine.simulate import Job
    from farthing.text.tokenizer import Tokenizer


class TimedBackend(WrappedBackend):
    """A backend that can teach what a step of the whole engine takes.

    That is from the beginning of one to that of the next, with scheduling, texts and readers. So
    there must be no pause while it teaches.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.steps = 0
        self._cost: StepCost | None = None
        self._last: tuple[StepShape, float] | None = None

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """The backend's own step; teaches what the last one took."""
        began = perf_counter()
        self.steps += 1
        if self._cost is not None:
            if self._last is not None:
                self._cost.observe(self._last[0], began - self._last[1])
            self._last = (shape_of(plan), began)
        return super().run(plan, want_logits)

    def teach(self, cost: StepCost | None) -> None:
        """From the next step on, which does not follow upon the last; nobody for None."""
        self._cost = cost
        self._last = None


def shape_of(plan: StepPlan) -> StepShape:
    """What of a step its time depends on."""
    return StepShape(
        len(plan.token_ids),
        len(plan.rows),
        int(plan.positions.sum()) + len(plan.token_ids),
        int(plan.positions[plan.starts[1:] - 1].sum()) + len(plan.starts) - 1,
    )


class LoadServer:
    """An engine with `slots` slots that serves loads, and a clock for each of their requests.

    `take_prompt(n)` gives n tokens that nobody was given before. Nothing is shared in the cache.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        slots: int,
        take_prompt: Callable[[int], Sequence[int]],
    ) -> None:
        self.backend = TimedBackend(backend)
        self.engine = Engine(self.backend, tokenizer, policy=Policy(sharing=False, slots=slots))
        self._slots = slots
        self._take_prompt = take_prompt

    def learn(self, cost: StepCost, jobs: Sequence[Job]) -> None:
        """Serves a load without pauses, whose steps `cost` observes."""
        self.backend.teach(cost)
        self.serve(jobs, Batching.CONTINUOUS)
        self.backend.teach(None)

    def serve(self, jobs: Sequence[Job], batching: Batching) -> Outcome:
        """Serves `jobs`, which come in order of arrival; their clock starts now."""
        steps, started = self.backend.steps, perf_counter()
        served: list[Served] = []
        if batching is Batching.CONTINUOUS:
            served = self._serve_together(jobs, started)
            admit(served, self._slots)
        while len(served) < len(jobs):
            sleep_until(started + jobs[len(served)].arrival)
            now = perf_counter() - started
            batch = [job for job in jobs[len(served) :][: self._slots] if job.arrival <= now]
            members = self._serve_together(batch, started)
            for member in members:
                member.admitted = now
                member.returned = max(each.last_token for each in members)
            served += members
        return Outcome(tuple(served), self.backend.steps - steps)

    def _serve_together(self, jobs: Sequence[Job], started: float) -> list[Served]:
        """Submits each job when it arrives, and waits for all."""
        submitted = []
        for job in jobs:
            prompt = list(self._take_prompt(job.prompt))
            sampling = SamplingParams(max_tokens=job.output, ignore_eos=True)
            sleep_until(started + job.arrival)
            now = perf_counter() - started
            submitted.append((job, now, self.engine.submit(prompt, sampling)[0]))
        served = []
        for job, now, stream in submitted:
            timing = stream.result().timing
            first = now + timing.prefill_seconds
            last = first + timing.decode_seconds
            served.append(Served(job, first_token=first, last_token=last, returned=last))
        return served


def sleep_until(moment: float) -> None:
    """Returns at once where `moment`, on `perf_counter`'s clock, is over."""
    time.sleep(max(0.0, moment - perf_counter()))


def admit(served: Sequence[Served], slots: int) -> None:
    """Fills in when requests that came in this order were admitted, first come, first served.

    The engine does not tell: with its slots taken, a request gets the one that frees when all but
    `slots - 1` of those before it have ended.
    """
    ends: list[float] = []
    for each in served:
        each.admitted = each.job.arrival
        if len(ends) >= slots:
            each.admitted = max(each.admitted, ends[len(ends) - slots])
        insort(ends, each.last_token)
