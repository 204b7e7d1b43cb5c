"""How often guesses prove right, in general and for each sequence, and when they are to rest."""

from __future__ import annotations

MOST_DRAFTS = 16
"""The longest draft of one sequence in one step."""

LONGEST_REST = 128
"""A sequence whose guesses do not pay is left alone for ever longer, up to so many tokens; then it
may be tried whether that changed."""

_MEMORY = 16.0
"""About how many guesses at a place are remembered; older ones weigh less."""

_PRIOR = 2.0
"""How many guesses the usual rate is worth where a sequence has none of its own."""


class Acceptance:
    """How often the guess at each place of a draft proves right, given those before it did."""

    def __init__(self, usual: Acceptance | None = None) -> None:
        """`usual` is what applies where little was seen."""
        self._usual = usual
        self._tried = [0.0] * MOST_DRAFTS
        self._right = [0.0] * MOST_DRAFTS

    def rate(self, place: int) -> float:
        """The share of guesses that proved right, from 0 to 1."""
        usual = 0.5 if self._usual is None else self._usual.rate(place)
        return (self._right[place] + _PRIOR * usual) / (self._tried[place] + _PRIOR)

    def gains(self, count: int) -> list[float]:
        """The probability, for each of so many guesses, that it and all before it are right."""
        product, gains = 1.0, []
        for place in range(count):
            product *= self.rate(place)
            gains.append(product)
        return gains

    def learn(self, proposed: int, accepted: int) -> None:
        """Of `proposed` guesses the first `accepted` were right."""
        for place in range(min(proposed, accepted + 1)):
            right = place < accepted
            kept = 1.0 - 1.0 / _MEMORY
            self._tried[place] = kept * self._tried[place] + 1.0
            self._right[place] = kept * self._right[place] + right
        if self._usual is not None:
            self._usual.learn(proposed, accepted)


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
