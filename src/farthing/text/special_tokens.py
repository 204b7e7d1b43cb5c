"""Special tokens: where their text stands in a string, and how a string is kept from forging them.

A *control* token (`<|im_end|>`, `<s>`) steers the model and is matched only where the caller asks
for it. A *user-defined* token (`</think>`, a run of newlines) is a word like any other that happens
to be matched whole, before everything else, in every text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_SPECIAL_TOKEN_CHARACTERS = 512
"""Bounds the lengths tried at each place of a text; the longest in use have about 60."""


@dataclass(frozen=True)
class SpecialToken:
    """A token that is matched by its text. `strips_*`: it swallows the white space on that side."""

    id: int
    text: str
    control: bool
    strips_left: bool = False
    strips_right: bool = False


class SpecialTokenMatcher:
    """Splits text at the tokens it is given: the leftmost match first, the longest at each place.

    Raises `FileFormatError` when a token's text is longer than `MAX_SPECIAL_TOKEN_CHARACTERS`.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        lengths: dict[str, set[int]] = {}
        for text in self._by_text:
            if len(text) > MAX_SPECIAL_TOKEN_CHARACTERS:
                raise FileFormatError(
                    f"the special token {text[:40]!r}... has {len(text)} characters, and at most "
                    f"{MAX_SPECIAL_TOKEN_CHARACTERS} are read: the vocabulary is damaged"
                )
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        # An empty class matches nothing.
        first_characters = "".join(map(re.escape, lengths))
        self._first = re.compile(f"[{first_characters}]" if lengths else r"(?!)")
        self._sorted: list[str] | None = None

    def split(self, text: str, separator: str | None = None) -> Iterator[str | int]:
        """The text as fragments and token ids, in order; no fragment is empty.

        What `break_up` put a `separator` into does not match.
        """
        start = at = 0
        while match := self._first.search(text, at):
            at = match.start()
            token = self._longest_at(text, at)
            if token is None or (separator and text.startswith(separator, at + len(token.text))):
                at += 1
                continue
            before = text[start:at].rstrip() if token.strips_left else text[start:at]
            if before:
                yield before
            yield token.id
            start = at = at + len(token.text)
            if token.strips_right:
                start = at = len(text) - len(text[at:].lstrip())
        if start < len(text):
            yield text[start:]

    def break_up(self, text: str, separator: str) -> str:
        """The text with `separator` put into everything that would match, or begin to at its end.

        Split with the same separator, what comes out has no match in it, nor one that begins in it,
        whatever text follows. The separator must occur in no token, and not in the text.
        """
        out: list[str] = []
        start = at = 0
        while match := self._first.search(text, at):
            at = match.start() + 1
            if self._longest_at(text, at - 1) is not None or self._begins_token(text[at - 1 :]):
                out += (text[start:at], separator)
                start = at
        return "".join(out) + text[start:]

    def _longest_at(self, text: str, at: int) -> SpecialToken | None:
        for length in self._lengths[text[at]]:
            token = self._by_text.get(text[at : at + length])
            if token is not None:
                return token
        return None

    def _begins_token(self, tail: str) -> bool:
        if len(tail) >= MAX_SPECIAL_TOKEN_CHARACTERS:
            return False
        if self._sorted is None:
            self._sorted = sorted(self._by_text)
        place = bisect_left(self._sorted, tail)
        return place < len(self._sorted) and self._sorted[place].startswith(tail)
