"""How much newly comes of each key, and so how much will come while somebody waits.

A key that asks for more than its share keeps taking all of it, whether those it refused come back
or not: whoever waits beside it gets the rest, and not the whole machine once the present line is
served.
"""

from __future__ import annotations

from math import exp, inf

from farthing.serve.accepted import Load

_SECONDS = 5.0
"""What came longer ago counts little."""

_FORGOTTEN = 10 * _SECONDS


class Demand:
    """What came of one priority and key, the latest counting most."""

    def __init__(self) -> None:
        self._load = Load()
        self._at = -inf

    def observe(self, load: Load, now: float) -> None:
        """A request came that had not been told to."""
        faded = Load()
        faded.add(self._load, exp((self._at - now) / _SECONDS))
        faded.add(load)
        self._load, self._at = faded, now

    def during(self, seconds: float, now: float) -> Load:
        """What will come in so many seconds, if it goes on like that."""
        coming = Load()
        coming.add(self._load, exp((self._at - now) / _SECONDS) * seconds / _SECONDS)
        return coming

    def is_over(self, now: float) -> bool:
        """Whether nothing has come for so long that nothing is to be expected."""
        return now - self._at > _FORGOTTEN
