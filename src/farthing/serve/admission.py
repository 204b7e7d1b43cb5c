"""Whether a request may begin, decided before any work goes into it.

What counts is how long it would wait, in seconds, and how many tokens wait with it. The tokens of a
prompt are bounded from its bytes until they are known, and corrected then. A request is refused at
once where it could never be served, and told when to come back where it could be later: when what
stands before it, those included who were told to come back earlier, is short enough.

Keys are kept apart: a request waits behind those of its own key, and behind as much of others' as
fairness lets go first. So a key that floods the server lengthens its own line, and a key that has
nothing else accepted is never refused for what others have.

Everything here runs on the event loop, and nothing waits.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.serve.accepted import Accepted, Entry, Load
from farthing.serve.delays import by_number, by_queue, by_rate, by_wait
from farthing.serve.demand import Demand
from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.forecast import Outlook
from farthing.serve.impossible import refuse_impossible, refuse_too_long
from farthing.serve.keys import ANONYMOUS
from farthing.serve.learned import AnswerLengths, Correction, TokensOfBytes
from farthing.serve.promises import Line, Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from farthing.serve.accepted import Account, Followed
    from farthing.serve.delays import Delay
    from farthing.serve.forecast import Forecast, Machine
    from farthing.serve.keys import Key
    from farthing.serve.settings import Settings
    from farthing.serve.state import Caller

LONGEST_RETRY = 120.0
"""Seconds: OpenAI's client gives up when it is told to wait longer."""

_STALE_SECONDS = 0.01
"""So long ago may be what is known of the accepted requests, however many ask meanwhile."""

_SPREAD = 0.2
"""Those who get no place in line are told times that differ by up to this part."""

_LITTLE = 0.03

_OF_KEYS = {"requests_per_minute", "tokens_per_minute", "most_running", "most_queued_tokens"}

_NOBODY = Line()


@dataclass(frozen=True)
class Objective:
    """How long a newcomer may wait before its prompt is read, and how long a step may take."""

    most_wait: float
    latency_target: float


OBJECTIVES = {
    "patient": Objective(30.0, 0.1),
    "server": Objective(2.0, 0.1),
    "interactive": Objective(0.5, 0.03),
}
"""By the names of `slo`; the last two are MLPerf's for models of 8 billion parameters."""


def objective_of(settings: Settings) -> Objective:
    """What the settings ask for."""
    preset = OBJECTIVES[settings.slo]
    wait, step = settings.most_wait_seconds, settings.step_seconds
    return Objective(
        preset.most_wait if wait is None else wait, preset.latency_target if step is None else step
    )


class Ticket:
    """One admitted request, from its admission to its end. One that is dropped is closed."""

    def __init__(self, admission: Admission, entry: Entry) -> None:
        self._admission = admission
        self._entry = entry

    def settle(self, prompt_tokens: int) -> None:
        """The prompts have so many tokens. Raises `ApiError` 400 where the key never may."""
        self._admission.settle(self._entry, prompt_tokens)

    def follow(self, answers: Sequence[Followed]) -> None:
        """Its answers are on their way: these are looked at when somebody else asks."""
        self._entry.followed = answers

    def close(self) -> None:
        """The request has ended, however that was. May be called again."""
        self._admission.close(self._entry)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._entry.closed:
            self._admission.dropped.append(self._entry)  # any thread may be here


class Admission:
    """Decides for all keys of a server. `clock` is in seconds, from any beginning; by what it is to
    `draw` the times differ that clients are told.

    `refused` counts by reason. At most `queue_tokens` wait, except those of one request that finds
    none waiting.
    """

    def __init__(
        self,
        machine: Machine,
        keys: Iterable[Key],
        objective: Objective,
        queue_tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: random.Random | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.dropped: deque[Entry] = deque()
        self._machine = machine
        self._most_wait = objective.most_wait
        self._queue_tokens = queue_tokens
        self._clock = clock
        self._random = draw or random.Random()
        self._keys = {key.name: key for key in keys}
        self._weights = {key.name: key.weight for key in keys}
        self._accepted = Accepted()
        self._lines: dict[tuple[int, str], Line] = {}
        self._demands: dict[tuple[int, str], Demand] = {}
        self._outlook = Outlook(
            machine, self._accepted, self._lines, self._demands, self._weights, clock
        )
        self._lengths = AnswerLengths()
        self._text = TokensOfBytes()
        self._waits = Correction()
        self._looked = float("-inf")

    @property
    def queued_tokens(self) -> int:
        """Tokens of accepted prompts whose answers have not begun; at most, where not yet read."""
        return self._accepted.queued

    def wait_seconds(self, key: str = "") -> float:
        """How long a newcomer with that key's name would wait now."""
        self._refresh(self._clock())
        return self._outlook.forecast((0, key)).wait

    def admit(
        self,
        caller: Caller,
        *,
        prompt_bytes: int,
        prompt_tokens: int | None,
        max_tokens: int | None,
        n: int,
        priority: int,
        body_digest: bytes = b"",
    ) -> Ticket:
        """A ticket, or an `ApiError`: 429 with the time to come back, 400 for what never can be.

        The prompts have `prompt_tokens`, or an unknown number in `prompt_bytes` of text; there will
        be `n` answers in all, of at most `max_tokens` each (None: to the end of the context).
        `body_digest` is of the request's body: by it a client that comes back is known.
        """
        key = self._keys.get(caller.name, ANONYMOUS)
        with self._counting_impossible():
            room = self._machine.most_tokens
            refuse_impossible(key, room, prompt_tokens, max_tokens, priority)
        now, place = self._clock(), (priority, key.name)
        self._refresh(now)
        line = self._lines.get(place, _NOBODY)
        promise = line.find(body_digest) if body_digest else None
        accepted = self._outlook.forecast_accepted(place)
        forecast = self._outlook.forecast(place, promise) if self._lines else accepted
        account = self._accepted.account(key, now)
        entry = self._entry(key, priority, prompt_bytes, prompt_tokens, max_tokens, n)
        entry.arrived, entry.forecast = now, accepted.wait
        if promise is None:
            self._demands.setdefault(place, Demand()).observe(entry.load, now)
        kept = promise.times if promise is not None and promise.is_kept(now) else 0
        delays = self._delays(account, entry, line.ahead_of(promise), forecast, kept)
        worst = max(delays, key=lambda delay: delay.seconds, default=None)
        if worst is not None:
            raise self._refusal(worst, entry, promise, body_digest)
        if promise is not None:
            line.redeem(promise)
        for bucket, amount in ((account.requests, 1.0), (account.tokens, entry.drawn)):
            if bucket is not None:
                bucket.draw(amount, now)
        self._accepted.add(entry)
        return Ticket(self, entry)

    def settle(self, entry: Entry, prompt_tokens: int) -> None:
        """See `Ticket.settle`."""
        if entry.closed or entry.settled:
            return
        if entry.text_bytes is not None:
            self._text.observe(entry.text_bytes, prompt_tokens)
        drawn = prompt_tokens + entry.load.output_tokens
        tokens = self._accepted.accounts[entry.key.name].tokens
        if tokens is not None:
            tokens.draw(drawn - entry.drawn, self._clock())
        entry.drawn = drawn
        self._accepted.settle(entry, prompt_tokens)
        with self._counting_impossible():
            refuse_too_long(entry.key, prompt_tokens)

    def close(self, entry: Entry) -> None:
        """See `Ticket.close`."""
        if entry.closed:
            return
        self._look(entry)
        self._accepted.close(entry)
        if entry.running:
            self._lengths.observe(entry.allowed, entry.made / entry.running)
        entry.followed = ()
        tokens = self._accepted.accounts[entry.key.name].tokens
        if tokens is not None:
            used = entry.load.prompt_tokens + entry.made if entry.begun else 0.0
            tokens.draw(used - entry.drawn, self._clock())

    def check(self) -> None:
        """Raises `ValueError` where something is counted that has ended, or not counted."""
        self._accepted.check()

    def _entry(
        self,
        key: Key,
        priority: int,
        prompt_bytes: int,
        prompt_tokens: int | None,
        max_tokens: int | None,
        n: int,
    ) -> Entry:
        allowed = self._machine.most_tokens if max_tokens is None else max(1, max_tokens)
        if prompt_tokens is None:
            likely, queued = self._text.likely(prompt_bytes), self._text.most(prompt_bytes)
        else:
            likely, queued = float(prompt_tokens), prompt_tokens
        length, square = self._lengths.expected(allowed)
        load = Load(1, n, likely, n * length, n * square)
        text_bytes = prompt_bytes if prompt_tokens is None else None
        return Entry(key, priority, load, allowed, text_bytes, queued, drawn=load.tokens)

    def _refresh(self, now: float) -> None:
        """Looks at what is accepted, and gives up what nobody holds or waits for any more."""
        while self.dropped:
            self.close(self.dropped.popleft())
        for place, line in list(self._lines.items()):
            line.expire(now)
            if not len(line):
                del self._lines[place]
        for place in [each for each, demand in self._demands.items() if demand.is_over(now)]:
            del self._demands[place]
        if now - self._looked >= _STALE_SECONDS:
            self._looked = now
            for entry in self._accepted.entries:
                self._look(entry)

    def _look(self, entry: Entry) -> None:
        """Notes how far an accepted request has come."""
        waits = [each.queue_seconds for each in entry.followed]
        entry.running = sum(each is not None for each in waits)
        entry.made = sum(each.made for each in entry.followed)
        first = min((each for each in waits if each is not None), default=None)
        if first is not None and not entry.begun:
            self._accepted.begin(entry)
            self._waits.observe(entry.forecast, first)

    @contextmanager
    def _counting_impossible(self) -> Iterator[None]:
        try:
            yield
        except ApiError:
            self.refused["never"] += 1
            raise

    def _delays(
        self, account: Account, entry: Entry, before: Load, forecast: Forecast, kept: int
    ) -> Iterator[Delay]:
        """All that is in the way of a request that came `kept` times when it was told to.

        `forecast` is with those in line `before` it.
        """
        factor, most = self._waits.factor, self._most_wait
        here, wait = entry.forecast * factor, forecast.wait
        yield from by_rate(account, entry, before)
        yield from by_number(account, entry, before, forecast, wait)
        if len(self._weights) > 1 and not account.entries:
            return
        yield from by_queue(
            self._accepted, account, entry, before, wait, self._queue_tokens, self._weights
        )
        yield from by_wait(here, wait, most, kept)

    def _refusal(
        self, delay: Delay, entry: Entry, promise: Promise | None, digest: bytes
    ) -> ApiError:
        """Tells a client when to come back, and keeps a place for it."""
        self.refused[delay.reason] += 1
        now = entry.arrived
        # Those who are told the same differ a little: a whole batch of slots becomes free at once.
        seconds = delay.seconds * (1 + _LITTLE * self._random.random())
        if seconds > LONGEST_RETRY:
            seconds = LONGEST_RETRY * (1 - _SPREAD * self._random.random())
        kept = False
        if digest:
            promise = promise or Promise(digest, entry.load)
            promise.tell(now, seconds)
            kept = self._lines.setdefault(entry.place, Line()).keep(promise)
        if not kept:
            seconds = min(LONGEST_RETRY, seconds * (1 + _SPREAD * self._random.random()))
        return ApiError(
            429,
            f"{delay.message}: ask again in {seconds:.1f} seconds",
            code="rate_limit_exceeded" if delay.reason in _OF_KEYS else "overloaded",
            headers=retry_headers(seconds),
        )
