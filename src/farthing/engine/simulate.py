"""What a load would take: the product's own scheduler, a virtual clock, and no model.

Each step's seconds come from a cost, measured or supposed; which tokens it holds is decided by the
`Scheduler` that serves, so the simulation cannot part from the product.

Static batching is what continuous batching is compared with: a batch of those who wait is formed
when nothing runs, and nobody joins until its longest member ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import log
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import Request, SamplingParams, StepResult
from farthing.engine.cost import StepShape
from farthing.engine.kv import blocks_for
from farthing.engine.limits import Limits, Policy
from farthing.engine.scheduler import Scheduler
from farthing.plan.profile import ServerWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    CostOfStep = Callable[[StepShape], float]
    """Seconds of a step; any unit will do, if arrivals and latency target have the same."""

_REQUESTS, _MEDIAN, _LONGEST, _TOTAL = 64, 18, 231, 1874


class Batching(StrEnum):
    """Who runs together."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Clock(StrEnum):
    """From when to when a request's latency runs.

    Its answer is returned when its batch ends: in continuous batching with its last token.
    """

    ARRIVAL_TO_FIRST_TOKEN = "arrival to first token"
    ARRIVAL_TO_LAST_TOKEN = "arrival to last token"
    ARRIVAL_TO_RETURN = "arrival to return"
    ADMISSION_TO_LAST_TOKEN = "admission to last token"
    ADMISSION_TO_RETURN = "admission to return"


@dataclass(frozen=True)
class Job:
    """A request of a load: tokens of prompt and of output, and when it arrives."""

    prompt: int
    output: int
    arrival: float = 0.0


@dataclass
class Served:
    """When things happened to one job, in seconds on the load's clock.

    It arrives, and its tokens come, where its user is; `admitted` is when the first step that held
    some of it began.
    """

    job: Job
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    returned: float = 0.0

    def latency(self, clock: Clock) -> float:
        """Seconds by this clock."""
        start, _, end = clock.partition(" to ")
        began = self.job.arrival if start == "arrival" else self.admitted
        ended = {
            "first token": self.first_token,
            "last token": self.last_token,
            "return": self.returned,
        }
        return ended[end] - began


@dataclass(frozen=True)
class Outcome:
    """A load that was served, simulated or for real: its jobs in the order given, and the steps."""

    served: tuple[Served, ...]
    steps: int

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        first = min(each.job.arrival for each in self.served)
        return max(each.last_token for each in self.served) - first

    @property
    def throughput(self) -> float:
        """Tokens of output a second."""
        return sum(each.job.output for each in self.served) / self.seconds

    def mean_latency(self, clock: Clock) -> float:
        """Seconds, over all jobs alike."""
        return fmean(each.latency(clock) for each in self.served)


def simulate(
    jobs: Sequence[Job],
    cost: CostOfStep,
    *,
    slots: int,
    batching: Batching = Batching.CONTINUOUS,
    padded: bool = False,
    latency_target: float | None = Policy.latency_target,
    step_tokens: int = 512,
    users: int | None = None,
    pause: float = 0.0,
    server: ServerWork | None = None,
    core_of_its_own: bool = False,
) -> Outcome:
    """Serves `jobs`, of which at most `slots` run at once, in steps of at most `step_tokens`.

    With `users`, so many take the jobs in their order: each asks for its first when that arrives,
    and for another `pause` seconds after it has the last token of one, whatever arrival that was
    given.

    Between users and engine stands the `server`, if any: a request is with the engine only when it
    was read, and a step's tokens are with their users when all were written. Unless it has a
    `core_of_its_own`, the step that runs meanwhile takes longer by that work.

    `padded`: in static batching, members that ended keep their place and cost what they would if
    they went on, until the batch ends; else a step holds those alone that are not at their end. No
    two prompts are alike, and the cache holds all that run. Raises `ValueError` without any job.
    """
    limits = _limits(jobs, slots, step_tokens)
    policy = Policy(latency_target=latency_target, sharing=False, slots=slots)
    asking = len(jobs) if users is None else users
    scheduler = Scheduler(limits, policy=policy)
    road = _Road(server or ServerWork(), core_of_its_own)
    return _Simulation(jobs, cost, scheduler, batching, padded, asking, pause, road).run()


def _limits(jobs: Sequence[Job], slots: int, step_tokens: int) -> Limits:
    """Room for `slots` of the longest, and a block more for each, which the scheduler leaves free
    for those that grow.
    """
    longest = max(job.prompt + job.output for job in jobs)
    return Limits(
        total_blocks=slots * (blocks_for(longest) + 1),
        context_length=longest,
        step_tokens=step_tokens,
        step_rows=slots,
        vocabulary_size=1,
    )


class _Road:
    """Between users and engine: the server's work, and how much of it the next step has to bear."""

    def __init__(self, server: ServerWork, core_of_its_own: bool) -> None:
        self._server = server
        self._shares = not core_of_its_own
        self._due = 0.0

    def coming(self, job: Job) -> float:
        """When the engine has it."""
        return job.arrival + self._server.before(job.prompt)

    def take_in(self, job: Job) -> None:
        """The engine has it now."""
        self._due += self._server.before(job.prompt)

    def write(self, tokens: int) -> float:
        """So many tokens are written to users; returns the seconds until all are there."""
        seconds = tokens * self._server.token
        self._due += seconds
        return seconds

    def borne(self) -> float:
        """By how many seconds the step that begins now takes longer."""
        due, self._due = self._due, 0.0
        return due if self._shares else 0.0

    def rest(self) -> None:
        """No step runs: whatever there was to do has been done meanwhile."""
        self._due = 0.0


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        cost: CostOfStep,
        scheduler: Scheduler,
        batching: Batching,
        padded: bool,
        users: int,
        pause: float,
        road: _Road,
    ) -> None:
        self._road = road
        self._scheduler = scheduler
        self._served = tuple(map(Served, jobs))
        self._cost = cost
        self._static = batching is Batching.STATIC
        # Between two steps; in continuous batching the scheduler lets wait whom it has no slot for.
        slots = scheduler.limits.step_rows
        self._most_joining = slots if self._static else len(jobs)
        self._padded = padded and self._static
        self._now = 0.0
        self._steps = 0
        # Those asked for and not yet submitted, a heap by when they can be; the jobs after them.
        self._coming = [(road.coming(job), number) for number, job in enumerate(jobs[:users])]
        heapify(self._coming)
        self._later = deque(range(users, len(jobs)))
        self._pause = pause
        # Who is in the batch, and how long those that ended would be by now if they had gone on.
        self._batch: list[Served] = []
        self._ended: list[int] = []

    def run(self) -> Outcome:
        coming, running = self._coming, 0
        while coming or running:
            if not running:
                self._batch, self._ended = [], []
                if coming[0][0] > self._now:
                    self._road.rest()
                    self._now = coming[0][0]
            room = self._most_joining if running == 0 or not self._static else 0
            while room and coming and coming[0][0] <= self._now:
                self._submit(heappop(coming)[1])
                running += 1
                room -= 1
            ended, seen = self._step()
            running -= ended
            for _ in range(min(ended, len(self._later))):
                self._ask_again(self._later.popleft(), seen)
        return Outcome(self._served, self._steps)

    def _ask_again(self, number: int, seen: float) -> None:
        """Whoever saw the end of an answer at that time asks for this job soon."""
        served = self._served[number]
        served.job = replace(served.job, arrival=seen + self._pause)
        heappush(self._coming, (self._road.coming(served.job), number))

    def _submit(self, number: int) -> None:
        served = self._served[number]
        self._road.take_in(served.job)
        sampling = SamplingParams(max_tokens=served.job.output, ignore_eos=True, seed=0)
        self._scheduler.submit(Request(str(number), (0,) * served.job.prompt, sampling))
        self._batch.append(served)

    def _step(self) -> tuple[int, float]:
        """Runs a step; returns how many jobs it ended, and when users see what came of it."""
        scheduler = self._scheduler
        plan = scheduler.schedule()
        if plan is None:
            raise RuntimeError("jobs wait for a step, and there is none to run")
        for sequence in scheduler.running:
            if sequence.computed == 0:
                self._served[int(sequence.request.id)].admitted = self._now
        shape = scheduler.shape
        seconds = self._cost(self._with_ended(shape) if self._padded else shape)
        seconds += self._road.borne()
        scheduler.cost.observe(shape, seconds)
        self._now += seconds
        self._steps += 1
        ended = 0
        gained = scheduler.commit(_result(len(plan.rows)))
        seen = self._now + self._road.write(len(gained))
        for sequence in gained:
            served = self._served[int(sequence.request.id)]
            if len(sequence.tokens) == served.job.prompt + 1:
                served.first_token = seen
            if sequence.finish_reason is not None:
                served.last_token = served.returned = seen
                self._ended.append(len(sequence.tokens))
                ended += 1
        if self._static and not scheduler.running:
            for served in self._batch:
                served.returned = seen
        return ended, seen

    def _with_ended(self, shape: StepShape) -> StepShape:
        """As if each member of the batch that ended fed one token more."""
        count, positions = len(self._ended), sum(self._ended)
        self._ended = [length + 1 for length in self._ended]
        return StepShape(
            shape.tokens + count,
            shape.rows + count,
            shape.context + positions,
            shape.reads + positions,
        )


def skewed_lengths(seed: int = 0) -> tuple[int, ...]:
    """64 lengths of output, most short and some long: median 18, longest 231, 1,874 in all.

    Lognormal about that median, with the spread that gives their mean; then those that the three
    figures do not fix are moved, one token at a time and at random, until the sum is right.
    """
    random = np.random.default_rng(seed)
    spread = (2 * log(_TOTAL / _REQUESTS / _MEDIAN)) ** 0.5
    drawn = random.lognormal(log(_MEDIAN), spread, _REQUESTS).round().clip(1, _LONGEST)
    lengths = sorted(drawn.astype(int).tolist())
    below, above = _REQUESTS // 2 - 1, _REQUESTS // 2 + 1
    bounds = [(1, _MEDIAN)] * below + [(_MEDIAN, _MEDIAN)] * 2
    bounds += [(_MEDIAN, _LONGEST)] * (_REQUESTS - above - 1) + [(_LONGEST, _LONGEST)]
    lengths = [
        min(max(length, low), high) for length, (low, high) in zip(lengths, bounds, strict=True)
    ]
    while missing := _TOTAL - sum(lengths):
        at = int(random.integers(_REQUESTS))
        moved = lengths[at] + (1 if missing > 0 else -1)
        if bounds[at][0] <= moved <= bounds[at][1]:
            lengths[at] = moved
    return tuple(random.permutation(lengths).tolist())


def regular_arrivals(count: int, gap: float) -> tuple[float, ...]:
    """One every `gap` seconds, the first at 0; all at once where that is 0."""
    return tuple(number * gap for number in range(count))


def poisson_arrivals(count: int, gap: float, seed: int) -> tuple[float, ...]:
    """One every `gap` seconds on average, each independent of the others, the first at 0."""
    gaps = np.random.default_rng(seed).exponential(gap, count - 1).tolist()
    return (0.0, *accumulate(gaps))


@cache
def _result(rows: int) -> StepResult:
    """A step's result that says nothing: every token is token 0. Nobody writes to it."""
    return StepResult(
        tokens=np.zeros(rows, np.int32),
        logprob=np.full(rows, np.nan, np.float32),
        top_ids=np.empty((rows, 0), np.int32),
        top_logprobs=np.empty((rows, 0), np.float32),
    )
