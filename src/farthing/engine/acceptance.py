"""How often guesses prove right, in general and for each sequence, and when they are to rest.

A guess is judged by how many in a row were right before it: those of its draft, and for one that is
looked up the last tokens that were found again. A guess after a run of five is one more of the same
kind, whether four of these were known or three.
"""

from __future__ import annotations

MOST_DRAFTS = 16
"""The longest draft of one sequence in one step."""

LONGEST_RUN = 15
"""Longer runs count as this long."""

LONGEST_REST = 128
"""A sequence for which a costly drafter does not pay is left alone for ever longer, up to so many
tokens; then it may be tried whether that changed."""

_MEMORY, _USUAL_MEMORY = 16.0, 64.0
"""About how many guesses after a run are remembered, of one sequence and of all; older ones weigh
less."""

_PRIOR = 2.0
"""How many guesses the usual rate is worth where a sequence has none of its own, and what the rate
after a run that is shorter by one lets expect where nobody has."""

_UNKNOWN = 0.5
"""The rate of which nothing is known."""

_SHORT_RUN = 2
"""Beyond it, a longer run is expected to be wrong less often: by the rule of succession, once in
run + 2 guesses."""


class Acceptance:
    """How often the guess after a run of each length proves right."""

    def __init__(self, usual: Acceptance | None = None) -> None:
        """`usual` is what applies where little was seen."""
        self._usual = usual
        self._kept = 1.0 - 1.0 / (_USUAL_MEMORY if usual is None else _MEMORY)
        self._tried = [0.0] * (LONGEST_RUN + 1)
        self._right = [0.0] * (LONGEST_RUN + 1)
        # Of the usual one, which all sequences ask; empty when it has learned since.
        self._rates: list[float] = []

    def rate(self, run: int) -> float:
        """The share of guesses that proved right after `run` right ones, from 0 to 1."""
        run = min(run, LONGEST_RUN)
        if self._usual is not None:
            return self._shrunk(run, self._usual.rate(run))
        if not self._rates:
            expected = _UNKNOWN
            for each in range(LONGEST_RUN + 1):
                if each > _SHORT_RUN:
                    expected = 1 - (1 - expected) * (each + 1) / (each + 2)
                expected = self._shrunk(each, expected)
                self._rates.append(expected)
        return self._rates[run]

    def gains(self, count: int, run: int = 0, least: float = 0.0) -> list[float]:
        """The probability, for each of so many guesses, that it and all before it are right.

        The first one follows `run` tokens that were; those below `least` are left out.
        """
        product, gains = 1.0, []
        for place in range(run, run + count):
            product *= self.rate(place)
            if product < least:
                break
            gains.append(product)
        return gains

    def learn(self, proposed: int, accepted: int, run: int = 0) -> None:
        """Of `proposed` guesses after `run` right tokens the first `accepted` were right."""
        for place in range(min(proposed, accepted + 1)):
            at = min(run + place, LONGEST_RUN)
            self._tried[at] = self._kept * self._tried[at] + 1.0
            self._right[at] = self._kept * self._right[at] + (place < accepted)
        self._rates = []
        if self._usual is not None:
            self._usual.learn(proposed, accepted, run)

    def _shrunk(self, run: int, towards: float) -> float:
        return (self._right[run] + _PRIOR * towards) / (self._tried[run] + _PRIOR)


class Record:
    """What is remembered of one sequence. `trying`: it is tried whether guesses pay now."""

    def __init__(self, usual: Acceptance) -> None:
        self.acceptance = Acceptance(usual)
        # Until it has so many tokens, nothing is guessed for it.
        self.rests_until = 0
        self.rest = 1
        self.trying = False

    def pays(self) -> None:
        """A guess was worth its cost."""
        self.rest = 1

    def loses(self, length: int) -> None:
        """No guess was, at `length` tokens."""
        self.rest = min(2 * self.rest, LONGEST_REST)
        self.rests_until = length + self.rest
