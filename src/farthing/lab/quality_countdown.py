"""What is being done, and about how long the rest will take, told while copies are measured."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TELLING_SHARE = 0.03
"""Before so much is done, nothing is known of the rest."""


class Countdown:
    """`total` is all there is to do, in any unit that is about proportional to time.

    `tell` is given each line; `clock` gives seconds.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        total: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._tell, self._total, self._clock = tell, total, clock
        self._done = 0.0
        self._started = clock()

    def say(self, what: str, within: float = 0.0) -> None:
        """Tells what is being done; `within` units of it are done already."""
        share = (self._done + within) / self._total
        if share < _TELLING_SHARE:
            self._tell(what)
            return
        left = (self._clock() - self._started) * (1 - share) / share
        self._tell(f"{what}; about {_duration(left)} left")

    def finish(self, units: float) -> None:
        """So much of the whole is done."""
        self._done = min(self._total, self._done + units)


def _duration(seconds: float) -> str:
    seconds = max(1, round(seconds))
    return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"
