"""What a step takes besides the backend: planning it, and taking in what came of it.

That is little, but not nothing where a step takes two milliseconds; and a step with guesses takes
more of it, which is part of what a guess costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from farthing.engine.cost import StepShape

_MEMORY = 16
"""About how many steps are remembered of each kind."""

_OUTLYING = 3.0
"""A value counts as at most so many times what is usual: the system stops a thread now and then."""

_DOUBT = 4
"""So many steps with guesses it takes to believe half of what they seem to take longer: the first
ones run code that no cache has."""


class Decoded(NamedTuple):
    """A step in which `texts` sequences decoded, of which `drafts` fed guesses.

    They gained `gained` tokens. It took `seconds` in the backend, `guessing` in a drafter's, and
    `host` besides.
    """

    shape: StepShape
    texts: int
    drafts: int
    gained: int
    seconds: float
    guessing: float
    host: float

    @property
    def total(self) -> float:
        """All its seconds."""
        return self.seconds + self.guessing + self.host


class HostTime:
    """Running means for steps that decode, by about how many texts and with guesses or without."""

    def __init__(self) -> None:
        # The mean, and how many values it is of.
        self._known: dict[tuple[int, bool], tuple[float, int]] = {}

    def observe(self, texts: int, guesses: bool, seconds: float) -> None:
        """A step of so many texts took so long on the host."""
        key = texts.bit_length(), guesses
        mean, count = self._known.get(key, (seconds, 0))
        new = min(seconds, _OUTLYING * mean)
        self._known[key] = mean + (new - mean) / min(count + 1, _MEMORY), count + 1

    def of(self, texts: int, guesses: bool) -> float:
        """What it takes; 0 where nothing like it was seen."""
        return self._known.get((texts.bit_length(), guesses), (0.0, 0))[0]

    def extra(self, texts: int) -> float:
        """How much longer a step with guesses takes, as far as that can be believed yet."""
        size = texts.bit_length()
        plain, guesses = self._known.get((size, False)), self._known.get((size, True))
        if plain is None or guesses is None:
            return 0.0
        return max(0.0, guesses[0] - plain[0]) * guesses[1] / (guesses[1] + _DOUBT)
