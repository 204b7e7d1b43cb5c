"""Admission and the scheduler that serves, with clients, on a virtual clock: no second passes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import Request, SamplingParams, StepResult
from farthing.engine.charge import pace_of
from farthing.engine.completion import EngineStats
from farthing.engine.limits import Limits, Policy
from farthing.engine.scheduler import Scheduler
from farthing.serve.admission import Admission, Objective
from farthing.serve.errors import ApiError
from farthing.serve.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from farthing.engine.charge import Pace
    from farthing.engine.cost import StepShape
    from farthing.engine.sequence import Sequence
    from farthing.serve.admission import Ticket


def usual_cost(shape: StepShape) -> float:
    """Seconds of a step on a machine like the one the default model runs on."""
    return 0.008 + 0.0008 * shape.tokens + 1e-7 * shape.context + 1e-7 * shape.reads


@dataclass(eq=False)
class Client:
    """Asks once, and again whenever it was told to, up to `patience` times.

    `told` has when that was, and the seconds. `began` is when its first step did; until then it
    waited for `steps_to_begin` steps.
    """

    arrival: float
    prompt: int = 20
    output: int = 40
    max_tokens: int | None = None
    key: str = ""
    patience: int = 5
    told: list[tuple[float, float]] = field(default_factory=list)
    admitted: float | None = None
    began: float | None = None
    first: float | None = None
    ended: float | None = None
    steps_to_begin: int = 0
    made: int = 0

    @property
    def queue_seconds(self) -> float | None:
        """How long it has waited since it was admitted."""
        if self.admitted is None or self.began is None:
            return None
        return self.began - self.admitted


class Virtual:
    """A machine of `slots`, its admission, and who asks of it."""

    def __init__(
        self,
        keys: Iterable[Key] = (),
        *,
        slots: int = 8,
        most_wait: float = 2.0,
        queue_tokens: int = 1 << 18,
        cost: Callable[[StepShape], float] = usual_cost,
        overhead: float = 0.0,
        blocks: int = 4096,
        context: int = 1024,
    ) -> None:
        keys = tuple(keys)
        self.now = 0.0
        self.steps = 0
        self.slots = slots
        self.most_tokens = context
        self.most_wait = most_wait
        policy = Policy(
            latency_target=0.1,
            sharing=False,
            slots=slots,
            weights={key.name: key.weight for key in keys},
        )
        self.scheduler = Scheduler(Limits(blocks, context, 512, slots, 1), policy=policy)
        self.admission = Admission(
            self,
            keys,
            Objective(most_wait, 0.1),
            queue_tokens,
            clock=lambda: self.now,
            draw=random.Random(0),
        )
        self._cost = cost
        self._overhead = overhead
        self._keys = {key.name: key for key in keys} or {"": Key("")}
        self._events: list[tuple[float, int, Client]] = []
        self._serial = count()
        self._served: dict[Sequence, tuple[Client, Ticket]] = {}

    def lately(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            held_back=scheduler.held_back,
            queued_tokens=0,
            free_blocks=scheduler.pool.free,
            cached_blocks=scheduler.pool.cached,
            held_blocks=scheduler.pool.held,
            steps=self.steps,
            native_seconds=self.now,
            counters=scheduler.counters.copy(),
        )

    def pace(self, running: int, context: int) -> Pace:
        return pace_of(self.scheduler, running, context)

    def warm_up(self, requests: int = 60) -> None:
        """The cost of steps is learned, as it is after some seconds of service."""
        clients = [Client(self.now, 1 + at % 50, 5 + at % 40) for at in range(requests)]
        for client in clients:
            client.key = next(iter(self._keys))
            self._submit(client, None)
        self._drain()

    def run(self, clients: Iterable[Client], until: float = float("inf")) -> list[Client]:
        clients = list(clients)
        for client in clients:
            heappush(self._events, (client.arrival, next(self._serial), client))
        while self._events or self._served:
            if not self._served:
                self.now = max(self.now, self._events[0][0])
            after = self.now
            while self._events and self._events[0][0] <= after:
                at, _, client = heappop(self._events)
                self.now = at
                self._ask(client)
            self.now = after
            if self._served:
                self._step()
            if self.now > until:
                break
        return clients

    def _drain(self) -> None:
        while self._served:
            self._step()

    def _ask(self, client: Client) -> None:
        try:
            ticket = self.admission.admit(
                self._keys[client.key],
                prompt_bytes=0,
                prompt_tokens=client.prompt,
                max_tokens=client.max_tokens or client.output,
                n=1,
                priority=0,
                body_digest=str(id(client)).encode(),
            )
        except ApiError as error:
            assert error.status == 429  # noqa: PT017
            seconds = int(error.headers["retry-after-ms"]) / 1000
            client.told.append((self.now, seconds))
            if len(client.told) <= client.patience:
                heappush(self._events, (self.now + seconds, next(self._serial), client))
            return
        self.accept(client, ticket)

    def accept(self, client: Client, ticket: Ticket) -> None:
        """It was admitted, and its prompt is known."""
        client.admitted = self.now
        ticket.settle(client.prompt)
        self._submit(client, ticket)

    def _submit(self, client: Client, ticket: Ticket | None) -> None:
        sampling = SamplingParams(max_tokens=client.output, ignore_eos=True, seed=0)
        request = Request(str(id(client)), (0,) * client.prompt, sampling, key=client.key)
        self._served[self.scheduler.submit(request)] = client, ticket
        if ticket is not None:
            ticket.follow([client])

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        assert plan is not None
        for sequence, _ in self.scheduler.planned:
            client, _ = self._served[sequence]
            if client.began is None:
                client.began = self.now
        for client, _ in self._served.values():
            client.steps_to_begin += client.began is None
        seconds = self._cost(self.scheduler.shape)
        self.scheduler.cost.observe(self.scheduler.shape, seconds)
        self.now += seconds + self._overhead
        self.steps += 1
        rows = len(plan.rows)
        result = StepResult(
            np.zeros(rows, np.int32),
            np.full(rows, np.nan, np.float32),
            np.empty((rows, 0), np.int32),
            np.empty((rows, 0), np.float32),
        )
        for sequence in self.scheduler.commit(result):
            client, ticket = self._served[sequence]
            client.made += 1
            if client.first is None:
                client.first = self.now
            if sequence.finish_reason is not None:
                client.ended = self.now
                del self._served[sequence]
                if ticket is not None:
                    ticket.close()
