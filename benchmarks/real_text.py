"""Prompts of real text that differ from each other, the same on every machine."""

from __future__ import annotations

import pydoc_data.topics
from typing import TYPE_CHECKING

from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence


class RealText:
    """The documentation of Python itself: some 100,000 tokens of the default model.

    Pieces are handed out one after another; when the text ends it begins anew a few tokens later,
    so that no two pieces begin alike by more than chance. `tokenizer` is the default model's.
    """

    def __init__(self) -> None:
        with open_checkpoint(catalog.resolve(catalog.DEFAULT_MODEL)) as checkpoint:
            self.tokenizer = load_tokenizer(checkpoint)
        text = "\n".join(pydoc_data.topics.topics.values())
        self._ids = self.tokenizer.encode(text, add_special_tokens=False)
        self._next = 0
        self._passes = 0

    def take(self, tokens: int) -> tuple[int, ...]:
        """The next piece of so many tokens."""
        if self._next + tokens > len(self._ids):
            self._passes += 1
            self._next = self._passes
        first, self._next = self._next, self._next + tokens
        return tuple(self._ids[first : self._next])

    def text(self, tokens: int) -> str:
        """The next piece as text, of about so many tokens."""
        return self.tokenizer.decode(self.take(tokens))

    def prompts(self, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """A piece of each length."""
        return [self.take(length) for length in lengths]
