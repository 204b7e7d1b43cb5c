"""Who was told to come back, and when: a line of those who are not there.

A client that is refused is given a time, and a place behind those who were given one before. So
refused clients do not all come back at one moment, and none is told a time that another takes. Who
comes back is known by the digest of the request's body, which is the same again. Those who do not
come back give up their places; how many do come back is learned, and places count by that much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.serve.accepted import Load
from farthing.serve.learned import Average

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 4096
"""Places of one key. Who is refused beyond that gets a time, but no place."""

_LATE_SHARE, _LATE_SECONDS = 0.3, 2.0
"""A place is kept for so much longer than its client was told to wait."""

_EARLY_SECONDS = 0.05
"""Timers are not exact."""


@dataclass(eq=False)
class Promise:
    """A place in line, for a request of such a digest.

    At `since` its client was told, for the `times`th time, to come back at `told`.
    """

    digest: bytes
    load: Load
    since: float = 0.0
    told: float = 0.0
    times: int = 0

    def tell(self, now: float, seconds: float) -> None:
        """Its client is told to come back in so many seconds."""
        self.since, self.told = now, now + seconds
        self.times += 1

    @property
    def expires(self) -> float:
        """Until when the place is kept."""
        return self.told + _LATE_SHARE * (self.told - self.since) + _LATE_SECONDS

    def is_kept(self, now: float) -> bool:
        """Whether its client does as it was told when it comes back at `now`."""
        return now >= self.told - _EARLY_SECONDS


class Line:
    """The places of one key, in the order in which they were given."""

    def __init__(self) -> None:
        self._load = Load()
        self._returning = Average(1.0)
        self._promises: dict[Promise, None] = {}
        self._by_digest: dict[bytes, dict[Promise, None]] = {}
        self._next_expiry = float("inf")

    def __len__(self) -> int:
        return len(self._promises)

    def __iter__(self) -> Iterator[Promise]:
        return iter(self._promises)

    def find(self, digest: bytes) -> Promise | None:
        """The first place that is kept for such a request."""
        return next(iter(self._by_digest.get(digest, ())), None)

    def ahead_of(self, promise: Promise | None) -> Load:
        """What comes before a place, or before a newcomer, as far as clients come back."""
        ahead, share = Load(), self._returning.value
        if promise is None:
            ahead.add(self._load, share)
            return ahead
        for each in self._promises:
            if each is promise:
                break
            ahead.add(each.load, share)
        return ahead

    def keep(self, promise: Promise) -> bool:
        """Adds a place, or keeps it for as long as its client was told; False for one too many."""
        if promise not in self._promises:
            if len(self._promises) >= _MOST:
                return False
            self._promises[promise] = None
            self._by_digest.setdefault(promise.digest, {})[promise] = None
            self._load.add(promise.load)
        self._next_expiry = min(self._next_expiry, promise.expires)
        return True

    def redeem(self, promise: Promise) -> None:
        """Its client came back and is admitted."""
        self._drop(promise)
        self._returning.take(1.0)

    def expire(self, now: float) -> None:
        """Gives up the places whose clients are late."""
        if now < self._next_expiry:
            return
        for promise in [each for each in self._promises if each.expires <= now]:
            self._drop(promise)
            self._returning.take(0.0)
        self._next_expiry = min((each.expires for each in self._promises), default=float("inf"))

    def _drop(self, promise: Promise) -> None:
        del self._promises[promise]
        alike = self._by_digest[promise.digest]
        del alike[promise]
        if not alike:
            del self._by_digest[promise.digest]
        self._load.add(promise.load, -1)
        if not self._promises:
            self._load = Load()  # no rounding is left over
