"""Guesses from texts: what followed the last tokens before follows again.

A text is looked up in itself and, where that is asked for, in those that ended of late. Pairs of
tokens are chained to their earlier occurrences, as compressors do it (Ziv and Lempel 1977): a pair
costs an entry in a dictionary and one in an array, and the latest occurrences of the last pair are
compared token by token.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    import numpy as np
    from numpy.typing import NDArray

    from farthing.engine.recent import RecentTexts
    from farthing.engine.sequence import Sequence

SHORTEST, LONGEST = 2, 16
"""The runs of last tokens that are looked for; longer ones count as the longest."""

_CANDIDATES = 16
"""So many occurrences of the last pair are compared, the latest first."""

_AT_ONCE = 2048
"""At most so many tokens are taken in at once: a long prompt must not hold up a step."""


@dataclass(frozen=True)
class Found:
    """The last `length` tokens stood somewhere, and what followed begins at `end`."""

    length: int
    end: int


class LookupDrafter:
    """Guesses that what followed the last tokens when they stood there before follows again.

    The longest run of last tokens that occurs earlier in prompt or output counts, among as long
    ones the latest, and the tokens behind it are the guess (Saxena 2023, "Prompt lookup decoding").
    Where `recent` texts are kept, a run that is longer there is taken instead. See `Drafter`.
    """

    def __init__(self, recent: RecentTexts | None = None) -> None:
        self._recent = recent
        self._indices: dict[Sequence, Occurrences] = {}
        self._matched: dict[Sequence, int] = {}

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        """See `Drafter`."""
        return [self._guess(*each) for each in zip(sequences, most, strict=True)]

    def matched(self, sequence: Sequence) -> int:
        """See `Drafter`."""
        return self._matched.get(sequence, 0)

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        """See `Drafter`."""
        return []

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`. A text that has ended is kept among the recent ones."""
        self._indices.pop(sequence, None)
        self._matched.pop(sequence, None)
        if self._recent is not None and sequence.finish_reason is not None:
            self._recent.add(sequence.request.key, sequence.tokens)

    def close(self) -> None:
        """See `Drafter`."""

    def _guess(self, sequence: Sequence, most: int) -> list[int]:
        tokens = sequence.tokens
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = Occurrences()
        index.take_in(tokens)
        found = index.find(tokens, tokens)
        guess: list[int] = []
        if self._recent is not None and (found is None or found.length < LONGEST):
            least = SHORTEST if found is None else found.length + 1
            matched, guess = self._recent.following(sequence.request.key, tokens, least, most)
        if guess:
            self._matched[sequence] = matched
        elif found is not None:
            self._matched[sequence] = found.length
            guess = tokens[found.end : found.end + most]
            while len(guess) < most:  # where that reaches its end, a text repeats itself
                guess += guess[: most - len(guess)]
        return guess


class Occurrences:
    """Where each pair of tokens stands in one text, kept up as that grows."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        # For the pair that begins at each place, where it began before that; -1 for nowhere.
        self._before = array("i")

    def take_in(self, text: ListOf[int], most: int = _AT_ONCE) -> None:
        """Takes in the pairs before the last token that are new, `most` of them."""
        first = len(self._before)
        for place in range(first, min(len(text) - 2, first + most)):
            pair = text[place] << 32 | text[place + 1]
            self._before.append(self._last.get(pair, -1))
            self._last[pair] = place

    def find(self, text: ListOf[int], wanted: ListOf[int]) -> Found | None:
        """The longest run in `text`, which was taken in, that is like the last tokens of `wanted`.

        Among the latest occurrences of its last two; the latest of several as long.
        """
        if len(wanted) < SHORTEST:
            return None
        place = self._last.get(wanted[-2] << 32 | wanted[-1], -1)
        best, end = 0, 0
        for _ in range(_CANDIDATES):
            if place < 0:
                break
            length = SHORTEST
            most = min(LONGEST, place + SHORTEST, len(wanted))
            while length < most and text[place + 1 - length] == wanted[-1 - length]:
                length += 1
            if length > best:
                best, end = length, place + SHORTEST
                if best == LONGEST:
                    break
            place = self._before[place]
        return Found(best, end) if best else None
