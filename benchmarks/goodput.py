"""Users of a server who each ask again as soon as they have an answer, and what they get in time.

An answer is in time where its first token and its pace keep to an objective; goodput is what of the
throughput is in such answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.client import Connections, completed, has_text, post, run_gathering
from serving.engine import streamed
from serving.response import BrokenResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from farthing.plan.objective import Objective

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Answered:
    """One request: seconds to its first token, from token to token in the mean, and when it ended
    on `time.perf_counter`'s clock. `fault` is why there was no answer, a refusal for example.
    """

    tokens: int
    ended: float
    ttft: float = 0.0
    tpot: float = 0.0
    fault: str | None = None

    def in_time(self, objective: Objective) -> bool:
        """Whether there was an answer, and as soon and as fast as it should be."""
        return self.fault is None and objective.met(self.ttft, self.tpot)


@dataclass
class Served:
    """All requests that ended while it counted, over so many seconds of one or several slices.

    `others` is the share of the machine that neither server nor client took meanwhile.
    """

    answers: list[Answered]
    seconds: float = 0.0
    others: float = 0.0

    def add(self, other: Served) -> None:
        """Another slice."""
        whole = self.seconds + other.seconds
        others = self.others * self.seconds + other.others * other.seconds
        self.answers += other.answers
        self.seconds, self.others = whole, others / whole if whole else 0.0

    def goodput(self, objective: Objective) -> float:
        """Tokens a second in answers that were in time."""
        return sum(e.tokens for e in self.answers if e.in_time(objective)) / self.seconds

    @property
    def throughput(self) -> float:
        """Tokens a second in all answers."""
        return sum(each.tokens for each in self.answers if each.fault is None) / self.seconds

    def share(self, objective: Objective) -> float:
        """Of the requests, how many had an answer in time; 1 without any."""
        in_time = sum(each.in_time(objective) for each in self.answers)
        return in_time / len(self.answers) if self.answers else 1.0

    def quantiles(self, figure: str) -> list[float]:
        """Of `ttft` or `tpot`, those of `QUANTILES` over what was answered; none without any."""
        values = sorted(getattr(each, figure) for each in self.answers if each.fault is None)
        return [values[min(len(values) - 1, int(len(values) * q))] for q in QUANTILES if values]

    @property
    def faults(self) -> dict[str, int]:
        """How often what went wrong."""
        found: dict[str, int] = {}
        for each in self.answers:
            if each.fault is not None:
                found[each.fault] = found.get(each.fault, 0) + 1
        return found


@dataclass(frozen=True)
class Users:
    """So many users who take the `lengths` (prompt, answer) in turn for so many seconds.

    Whoever begins does so at any moment of the first `before` seconds, the same for each `seed`,
    and what ends in them is not counted: users who begin evenly would never meet, as `farthing
    tune` says that they do. `text` gives a prompt of about so many tokens that nobody else has.
    """

    count: int
    lengths: Sequence[tuple[int, int]]
    text: Callable[[int], str]
    before: float
    seconds: float
    seed: int = 0


def ask_in_turns(port: int, users: Users) -> Served:
    """What the users get of the server at that port."""
    return run_gathering(_turns(port, users))


async def _turns(port: int, users: Users) -> Served:
    connections = Connections(port)
    began = time.perf_counter()
    end = began + users.before + users.seconds
    found: list[Answered] = []
    draw = random.Random(users.seed)
    starts = [draw.uniform(0, users.before) for _ in range(users.count)]

    async def user(number: int) -> None:
        await asyncio.sleep(starts[number])
        turn = number
        while time.perf_counter() < end:
            prompt, answer = users.lengths[turn % len(users.lengths)]
            answered, pause = await _ask(connections, users.text(prompt), answer)
            found.append(answered)
            await asyncio.sleep(pause)
            turn += users.count

    await asyncio.gather(*(user(number) for number in range(users.count)))
    connections.close()
    counted = [each for each in found if began + users.before <= each.ended <= end]
    return Served(counted, users.seconds)


async def _ask(connections: Connections, prompt: str, tokens: int) -> tuple[Answered, float]:
    """What came of one request, and how long to wait before the next."""
    request = post("/v1/completions", {"prompt": prompt, **streamed(tokens)})
    try:
        answer = await connections.ask(request, has_text)
    except (OSError, BrokenResponseError) as error:
        return Answered(tokens, time.perf_counter(), fault=type(error).__name__), 0.1
    if answer.status == 429:
        wait = float(answer.headers.get("retry-after-ms", 1000)) / 1000
        return Answered(tokens, answer.ended, fault="refused"), wait
    fault = completed(answer, tokens)
    if fault is not None or answer.first_event is None:
        return Answered(tokens, answer.ended, fault=fault or "no text"), 0.1
    pace = (answer.ended - answer.first_event) / max(1, tokens - 1)
    return Answered(tokens, answer.ended, answer.first_event - answer.sent, pace), 0.0
