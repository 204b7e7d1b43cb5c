"""Clients of a server that is asked for more than it can give: when they come, and what they do."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serving.client import completed, has_text, post
from serving.engine import streamed
from serving.response import BrokenResponseError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from serving.client import Connections

PROMPT_TOKENS = 64
MOST_RETURNS = 20
"""A client that is told so often to come back is told it in vain."""


@dataclass
class Outcome:
    """What became of one client, in seconds.

    `refusals` are the ids of the requests that were refused, `refused` how long that took each
    time, and `told` when it was to come back. `id` is that of the request that was accepted, and
    the times count from when that one was sent. `fault` is what should not have happened.
    """

    phase: str
    tokens: int
    refusals: list[str] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    id: str | None = None
    latency: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    fault: str | None = None


class Crowd:
    """The clients of one key. Each asks once for an answer of a length drawn from `lengths`.

    `text` gives a prompt of about so many tokens that no other client has. Of those who `arrive`,
    who is refused comes back exactly when it was told to where the crowd `obeys`, else never.
    """

    def __init__(
        self,
        name: str,
        secret: str,
        connections: Connections,
        text: Callable[[int], str],
        lengths: Sequence[int],
        draw: random.Random,
        *,
        obeys: bool,
    ) -> None:
        self.name = name
        self.outcomes: list[Outcome] = []
        self._authorization = {"Authorization": f"Bearer {secret}"}
        self._connections = connections
        self._text = text
        self._lengths = lengths
        self._draw = draw
        self._obeys = obeys
        self._numbers = itertools.count()
        self._open: set[asyncio.Task[None]] = set()

    def of(self, phase: str) -> list[Outcome]:
        """The outcomes of one phase."""
        return [each for each in self.outcomes if each.phase == phase]

    async def arrive(self, phase: str, rate: float, seconds: float) -> None:
        """Clients come at random, so many a second, whatever became of those before (Poisson)."""
        started = at = time.perf_counter()
        while (at := at + self._draw.expovariate(rate)) < started + seconds:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            task = asyncio.create_task(self._ask(phase, obeys=self._obeys))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def take_turns(self, phase: str, clients: int, enough: Callable[[], bool]) -> None:
        """So many clients at any time: the next one comes when one has its answer.

        They come back when they were told to, whatever the crowd does else.
        """

        async def one_after_another() -> None:
            while not enough():
                await self._ask(phase, obeys=True)

        await asyncio.gather(*(one_after_another() for _ in range(clients)))

    async def leave(self, seconds: float) -> int:
        """Waits for all that came, so long at most; how many are still waiting then."""
        if not self._open:
            return 0
        _, waiting = await asyncio.wait(self._open, timeout=seconds)
        for task in waiting:
            task.cancel()
        return len(waiting)

    async def _ask(self, phase: str, *, obeys: bool) -> None:
        number, tokens = next(self._numbers), self._draw.choice(self._lengths)
        outcome = Outcome(phase, tokens)
        self.outcomes.append(outcome)
        body = {"prompt": self._text(PROMPT_TOKENS), **streamed(tokens)}
        for attempt in range(MOST_RETURNS):
            id_ = f"{self.name}-{number}-{attempt}"
            request = post("/v1/completions", body, {**self._authorization, "x-request-id": id_})
            try:
                answer = await self._connections.ask(request, has_text)
            except (OSError, BrokenResponseError) as error:
                outcome.fault = repr(error)
                return
            if answer.status != 429:
                outcome.id, outcome.latency, outcome.ended = id_, answer.seconds, answer.ended
                outcome.first_token = (answer.first_event or answer.ended) - answer.sent
                outcome.fault = completed(answer, tokens)
                return
            outcome.refusals.append(id_)
            outcome.refused.append(answer.seconds)
            try:
                outcome.told.append(float(answer.headers["retry-after-ms"]) / 1000)
            except (KeyError, ValueError):
                outcome.fault = f"a refusal does not say when to come back: {answer.headers}"
                return
            if not obeys:
                return
            await asyncio.sleep(answer.ended + outcome.told[-1] - time.perf_counter())
        outcome.fault = f"was told {MOST_RETURNS} times to come back"
