"""What is accepted and has not ended: by key and priority while it waits, one by one afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from farthing.serve.rates import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.serve.keys import Key


class Followed(Protocol):
    """An answer on its way: a stream of the engine."""

    @property
    def made(self) -> int:
        """How many tokens it has."""

    @property
    def queue_seconds(self) -> float | None:
        """How long it waited for its first step; None while it does."""


@dataclass
class Load:
    """Requests that have not begun, their answers, tokens of their prompts, and those to come.

    `output_squares` is the sum of the squares of the answers' lengths.
    """

    requests: float = 0.0
    answers: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    output_squares: float = 0.0

    def add(self, other: Load, times: float = 1.0) -> None:
        """Adds `times` the other; -1 takes it off."""
        self.requests += times * other.requests
        self.answers += times * other.answers
        self.prompt_tokens += times * other.prompt_tokens
        self.output_tokens += times * other.output_tokens
        self.output_squares += times * other.output_squares

    @property
    def length(self) -> float:
        """The mean length of an answer, 1 at least."""
        return max(1.0, self.output_tokens / self.answers) if self.answers > 0 else 1.0

    @property
    def variation(self) -> float:
        """The variance of that length, as a part of its square: 0 where all are equal."""
        if self.answers <= 0:
            return 0.0
        return max(0.0, self.output_squares / self.answers / self.length**2 - 1)

    @property
    def tokens(self) -> float:
        """What fairness counts: tokens read and written."""
        return self.prompt_tokens + self.output_tokens


@dataclass(eq=False)
class Entry:
    """One accepted request.

    Each of its answers may have `allowed` tokens; `queued` are the tokens by which it counts until
    it begins, `drawn` were taken from its key's rate. `forecast` is the wait that was to be
    expected at `arrived`, without correction. Of its answers, which are `followed`, `running` have
    begun, and have `made` tokens together.
    """

    key: Key
    priority: int
    load: Load
    allowed: int
    text_bytes: int | None
    queued: int
    drawn: float
    arrived: float = 0.0
    forecast: float = 0.0
    followed: Sequence[Followed] = ()
    running: int = 0
    made: int = 0
    settled: bool = False
    begun: bool = False
    closed: bool = False

    @property
    def place(self) -> tuple[int, str]:
        """Whom it waits beside."""
        return self.priority, self.key.name

    @property
    def lacking(self) -> float:
        """The tokens that each answer is expected to get yet, one at least."""
        expected = self.load.output_tokens / self.load.answers
        made = self.made / max(1, self.running)
        if made < expected:
            return max(1.0, expected - made)
        # It is longer than was expected. The longer a text is, the longer it will go on.
        return max(1.0, min(made / 2, self.allowed - made))


class Account:
    """What a key has accepted, and what is left of its rates."""

    def __init__(self, key: Key, now: float) -> None:
        self.entries: dict[Entry, None] = {}
        self.queued = 0
        requests, tokens = key.requests_per_minute, key.tokens_per_minute
        self.requests = None if requests is None else Bucket(requests, now)
        self.tokens = None if tokens is None else Bucket(tokens, now)


@dataclass
class Accepted:
    """The books: `queued` tokens of prompts wait, `waiting` has their sums, `begun` the others."""

    queued: int = 0
    waiting: dict[tuple[int, str], Load] = field(default_factory=dict)
    begun: dict[Entry, None] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)

    def account(self, key: Key, now: float) -> Account:
        """The key's own; it is kept, so that its rates are."""
        if key.name not in self.accounts:
            self.accounts[key.name] = Account(key, now)
        return self.accounts[key.name]

    def add(self, entry: Entry) -> None:
        """It waits from now on."""
        self.accounts[entry.key.name].entries[entry] = None
        self._wait(entry, 1)

    @property
    def entries(self) -> Iterator[Entry]:
        """All that has not ended."""
        return (entry for account in self.accounts.values() for entry in account.entries)

    def settle(self, entry: Entry, prompt_tokens: int) -> None:
        """Its prompts are known, and it counts by them."""
        entry.settled = True
        if not entry.begun:
            self._wait(entry, -1)
        entry.load = replace(entry.load, prompt_tokens=float(prompt_tokens))
        entry.queued = prompt_tokens
        if not entry.begun:
            self._wait(entry, 1)

    def begin(self, entry: Entry) -> None:
        """It waits no more."""
        entry.begun = True
        self._wait(entry, -1)
        self.begun[entry] = None

    def close(self, entry: Entry) -> None:
        """It has ended."""
        entry.closed = True
        if entry.begun:
            del self.begun[entry]
        else:
            self._wait(entry, -1)
        del self.accounts[entry.key.name].entries[entry]

    def check(self) -> None:
        """Raises `ValueError` where the sums are not those of what is accepted."""
        entries = list(self.entries)
        waiting = [each for each in entries if not each.begun]
        sums: dict[tuple[int, str], Load] = {}
        for each in waiting:
            sums.setdefault(each.place, Load()).add(each.load)
        for place in sums.keys() | self.waiting.keys():
            kept, wanted = self.waiting.get(place, Load()), sums.get(place, Load())
            if abs(kept.tokens - wanted.tokens) > 1e-6 or kept.requests != wanted.requests:
                raise ValueError(f"{kept} is counted for {place}, and {wanted} waits")
        if self.queued != sum(each.queued for each in waiting):
            raise ValueError(f"{self.queued} tokens are counted as waiting, and others wait")
        if set(self.begun) != {each for each in entries if each.begun}:
            raise ValueError("what has begun is not what is listed so")
        if any(each.closed for each in entries):
            raise ValueError("a request that has ended is counted")

    def _wait(self, entry: Entry, times: int) -> None:
        self.queued += times * entry.queued
        self.accounts[entry.key.name].queued += times * entry.queued
        load = self.waiting.setdefault(entry.place, Load())
        load.add(entry.load, times)
        if not load.requests:
            del self.waiting[entry.place]  # and with it what rounding left
