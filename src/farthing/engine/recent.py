"""Texts that ended of late, in which those that are being written are looked up.

Each key has its own, and finds nobody else's: what a caller wrote can neither be guessed into
another's text nor be noticed by how fast that comes, just as with the cache of prompts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from farthing.engine.lookup import LONGEST, Occurrences

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

_APART = -1
"""Stands between two texts; no token."""

_PARTS = 8
"""A key's texts are kept in parts, of which the oldest goes first: so much at least stays."""


class RecentTexts:
    """Up to `most` tokens of texts that ended, all keys together, the latest ones.

    Where there are more, the key that was used longest ago loses its oldest.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens = 0
        self._part = max(1, most // _PARTS)
        # By key, the one used longest ago first; of each its parts, the oldest first.
        self._texts: OrderedDict[str, list[_Part]] = OrderedDict()

    def add(self, key: str, tokens: ListOf[int]) -> None:
        """A text of `key` has ended."""
        tokens = tokens[-self.most :]
        for first in range(0, len(tokens), self._part):
            # Where a text is cut in two, the second part begins with what has to match to go on.
            piece = tokens[max(0, first - LONGEST) : first + self._part]
            parts = self._texts.setdefault(key, [])
            self._texts.move_to_end(key)
            if not parts or parts[-1].size + len(piece) >= self._part + LONGEST:
                parts.append(_Part())
            self.tokens += parts[-1].add(piece)
            self._shrink()

    def following(
        self, key: str, wanted: ListOf[int], least: int, most: int
    ) -> tuple[int, list[int]]:
        """How long a run like the last tokens of `wanted` is, and up to `most` tokens behind it.

        The longest one in the key's texts, of at least `least` tokens; 0 and none where there is
        none.
        """
        parts = self._texts.get(key)
        if not parts:
            return 0, []
        self._texts.move_to_end(key)
        best, guess = least - 1, list[int]()
        for part in reversed(parts):
            length, following = part.following(wanted, best + 1, most)
            if following:
                best, guess = length, following
        return (best, guess) if guess else (0, [])

    def _shrink(self) -> None:
        while self.tokens > self.most:
            oldest, parts = next(iter(self._texts.items()))
            self.tokens -= parts.pop(0).size
            if not parts:
                del self._texts[oldest]


class _Part:
    """Some texts in a row, and the index of their pairs."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._index = Occurrences()

    @property
    def size(self) -> int:
        return len(self._tokens)

    def add(self, tokens: ListOf[int]) -> int:
        """Adds a text; gives how many places it takes."""
        before = self.size
        self._tokens.extend(tokens)
        self._tokens.append(_APART)
        self._index.take_in(self._tokens, self.size)
        return self.size - before

    def following(self, wanted: ListOf[int], least: int, most: int) -> tuple[int, list[int]]:
        found = self._index.find(self._tokens, wanted)
        if found is None or found.length < least:
            return 0, []
        guess = self._tokens[found.end : found.end + most].tolist()
        return found.length, guess[: guess.index(_APART)] if _APART in guess else guess
