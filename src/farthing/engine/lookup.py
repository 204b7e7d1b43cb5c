"""Guesses from the text itself: what followed the last tokens before follows again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    import numpy as np
    from numpy.typing import NDArray

    from farthing.engine.sequence import Sequence


class LookupDrafter:
    """Guesses that what followed the last tokens when they stood there before follows again.

    The longest run of last tokens, from `longest` to `shortest`, that occurs earlier in prompt or
    output is looked up, its latest occurrence counts, and the tokens behind that are the guess
    (Saxena 2023, "Prompt lookup decoding"). Costs a few dictionary operations a token.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._indices: dict[Sequence, _Occurrences] = {}

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        """See `Drafter`."""
        return [
            self._index_of(sequence).following(sequence.tokens, length)
            for sequence, length in zip(sequences, most, strict=True)
        ]

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        """See `Drafter`."""
        return []

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        self._indices.pop(sequence, None)

    def close(self) -> None:
        """See `Drafter`."""

    def _index_of(self, sequence: Sequence) -> _Occurrences:
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = _Occurrences(self._sizes)
        return index


class _Occurrences:
    """Where each run of tokens stood last in one sequence, kept up as that grows."""

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def following(self, tokens: list[int], most: int) -> list[int]:
        """What stood behind the latest earlier occurrence of the last tokens.

        Where that reaches them, a text repeats itself, and so does the guess.
        """
        self._index(tokens)
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if end is not None:
                guess = tokens[end : end + most]
                while len(guess) < most:
                    guess += guess[: most - len(guess)]
                return guess
        return []

    def _index(self, tokens: list[int]) -> None:
        """Takes in the runs that end before the last token."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
