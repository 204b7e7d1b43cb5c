"""Non-overlapping windows of a text, the second half of each scored.

A window is what the model reads at once. Where the model wants a beginning-of-sequence token, each
window begins with exactly one, and none has one elsewhere. That token takes the place of a token of
the text, which is skipped; so windows lie where llama.cpp's perplexity tool puts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.quality.texts import Text
    from farthing.text.tokenizer import Tokenizer

WINDOW_TOKENS = 256

_FEWEST_TOKENS = 8
_LOOSE_TOKENS = 16
"""At the end of a piece of text: where it was cut may have changed these."""


@dataclass(frozen=True)
class Windows:
    """N windows of L tokens, `token_ids` (N, L) int32.

    The tokens scored are those at `first_scored` and later, each predicted from all that stand
    before it in its window; `scored_bytes` (N,) are the bytes of text that they stand for.
    """

    token_ids: NDArray[np.int32]
    first_scored: int
    scored_bytes: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many windows there are."""
        return len(self.token_ids)

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return int(self.token_ids.shape[1])

    @property
    def scored(self) -> int:
        """How many tokens are scored, in all windows."""
        return self.count * scored_in(self.length)


def scored_in(length: int) -> int:
    """The tokens scored in a window of `length`: its second half without that half's first token.

    The last row of a window predicts what lies outside, so a half of n rows scores n - 1 tokens.
    """
    return length - length // 2 - 1


def cut_windows(
    tokenizer: Tokenizer, text: Text, tokens: int, length: int = WINDOW_TOKENS, fewest: int = 8
) -> Windows:
    """The first windows of the text that have at least `tokens` scored tokens, but at least
    `fewest` windows: an interval needs several.

    Raises `RequestError` when the text is too short for them, or a number makes no sense.
    """
    if length < _FEWEST_TOKENS or tokens < 1:
        raise RequestError(
            f"windows have at least {_FEWEST_TOKENS} tokens, and at least one token is scored: "
            f"{length} and {tokens} were asked for"
        )
    count = max(fewest, -(-tokens // scored_in(length)))
    begins = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    needed = count * length - len(begins)
    ids = _first_ids(tokenizer, text, needed)
    if len(ids) < needed:
        raise RequestError(
            f"the text {text.name} is too short: it has {len(ids):,} tokens, and {count} windows "
            f"of {length} need {needed:,}; give a longer text"
        )
    windows = np.array(
        [
            begins + ids[first : first + length - len(begins)]
            for first in range(0, count * length, length)
        ],
        np.int32,
    )
    first_scored = length // 2 + 1
    scored_bytes = np.array(
        [sum(map(len, map(tokenizer.token_bytes, row[first_scored:].tolist()))) for row in windows]
    )
    return Windows(windows, first_scored, scored_bytes)


def _first_ids(tokenizer: Tokenizer, text: Text, needed: int) -> list[int]:
    """At least `needed` ids from where the text begins, or all: not more of a long one."""
    characters = 8 * (needed + _LOOSE_TOKENS)
    while True:
        ids = tokenizer.encode(text.content[:characters], add_special_tokens=False)
        if characters >= len(text.content):
            return ids
        if len(ids) - _LOOSE_TOKENS >= needed:
            return ids[:-_LOOSE_TOKENS]
        characters *= 2
