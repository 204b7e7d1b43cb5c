"""SentencePiece-style BPE with scores (Llama 2, Mistral, Gemma), merged exactly as the scores say.

Of all neighbours whose concatenation is a token the pair with the highest score is merged, the
leftmost of equals, until none is left; what is then no token is written byte by byte. (Kudo and
Richardson 2018.) BPE by ranked merges, as libraries have it, cannot express this: it must order the
several pairs that form one token, where the leftmost must win.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokenizers import Tokenizer as Machine

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space inside tokens."""

_CACHED_WORDS = 1 << 15
_CACHED_WORD_CHARACTERS = 64


class ScoredVocabulary:
    """A vocabulary of tokens with scores.

    `texts[i]` and `scores[i]` belong to token i; `mergeable_ids` has the tokens that merging may
    produce, by text; `byte_ids[b]` is the token of byte b, and where there is none `unknown_id` is
    taken; `silent_ids` are tokens without bytes. `adds_space`: a text, and what follows a special
    token, begins with a space that is not its own.
    """

    def __init__(
        self,
        texts: Sequence[str],
        scores: Sequence[float],
        *,
        mergeable_ids: Mapping[str, int],
        byte_ids: Mapping[int, int],
        unknown_id: int,
        silent_ids: frozenset[int],
        adds_space: bool,
    ) -> None:
        self._texts = texts
        self._scores = scores
        self._ids = mergeable_ids
        self._byte_ids = [byte_ids.get(byte, unknown_id) for byte in range(256)]
        self._byte_of_id = {token_id: bytes([byte]) for byte, token_id in byte_ids.items()}
        self._silent_ids = silent_ids
        self._prefix = SPACE if adds_space else ""
        self._word_start = _word_start(self._ids)
        self._cache: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return len(self._texts)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """See `Vocabulary.encode`."""
        ids: list[int] = []
        for word in self._word_start.split(self._prefix + text.replace(" ", SPACE)):
            known = self._cache.get(word)
            if known is None:
                known = self._merge(word)
                if len(word) <= _CACHED_WORD_CHARACTERS:
                    if len(self._cache) >= _CACHED_WORDS:
                        self._cache.clear()
                    self._cache[word] = known
            ids += known
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """See `Vocabulary.token_bytes`."""
        if token_id in self._silent_ids:
            return b""
        byte = self._byte_of_id.get(token_id)
        return byte if byte is not None else self._texts[token_id].replace(SPACE, " ").encode()

    def longest_token(self) -> int | None:
        """See `Vocabulary.longest_token`."""
        return max(map(len, self._texts))

    def machine(self) -> Machine:
        """The library's tokenizer of this vocabulary, without special tokens.

        It ranks pairs, where this class ranks what they form. So of two overlapping pairs that form
        the same token out of different parts (`ab` of `a` and `b` never does, `aaa` can) it takes
        the one of lower rank, not the left one. Takes a second or two.
        """
        from tokenizers import Tokenizer as NewMachine
        from tokenizers import decoders, models, normalizers

        ids, scores = self._ids, self._scores
        ranked: list[tuple[float, int, int, str, str]] = []
        for token, token_id in ids.items():
            for at in range(1, len(token)):
                left, right = ids.get(token[:at]), ids.get(token[at:])
                if left is not None and right is not None:
                    ranked.append((-scores[token_id], left, right, token[:at], token[at:]))
        ranked.sort()
        unknown = next((i for i in self._byte_ids if i not in self._byte_of_id), None)
        machine = NewMachine(
            models.BPE(
                vocab={text: token_id for token_id, text in enumerate(self._texts)},
                merges=[(left, right) for *_, left, right in ranked],
                unk_token=None if unknown is None else self._texts[unknown],
                byte_fallback=True,
            )
        )
        spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
        if self._prefix:
            spaces.insert(0, normalizers.Prepend(self._prefix))
        machine.normalizer = normalizers.Sequence(spaces)
        pieces: list[decoders.Decoder] = [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
        if self._prefix:
            pieces.append(decoders.Strip(" ", 1, 0))
        machine.decoder = decoders.Sequence(pieces)
        return machine

    def _merge(self, word: str) -> list[int]:
        ids, scores = self._ids, self._scores
        # Symbols form a linked list; one that was merged into its left neighbour is empty.
        symbols = list(word)
        count = len(symbols)
        following = list(range(1, count + 1))
        preceding = list(range(-1, count - 1))
        # (-score, left, right, text): the heap yields the highest score, the leftmost of equals.
        heap: list[tuple[float, int, int, str]] = []

        def propose(left: int, right: int) -> None:
            pair = symbols[left] + symbols[right]
            token_id = ids.get(pair)
            if token_id is not None:
                heappush(heap, (-scores[token_id], left, right, pair))

        for left in range(count - 1):
            pair = symbols[left] + symbols[left + 1]
            token_id = ids.get(pair)
            if token_id is not None:
                heap.append((-scores[token_id], left, left + 1, pair))
        heapify(heap)
        while heap:
            _, left, right, pair = heappop(heap)
            # A proposal is stale once either side was merged with something else.
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != pair:
                continue
            symbols[left], symbols[right] = pair, ""
            after = following[left] = following[right]
            if after < count:
                preceding[after] = left
                propose(left, after)
            if preceding[left] >= 0:
                propose(preceding[left], left)
        merged: list[int] = []
        for symbol in symbols:
            if symbol:
                token_id = ids.get(symbol)
                if token_id is not None:
                    merged.append(token_id)
                else:
                    merged += [self._byte_ids[byte] for byte in symbol.encode()]
        return merged


def _word_start(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches between characters that no token joins, so that the parts merge independently.

    That is in front of a space, unless after a character that some token has before a space (NUL,
    which separates the tokens here, counts as one: a rare split less costs nothing).
    """
    joined = re.findall(f"([^{SPACE}]){SPACE}", "\0".join(texts))
    unsafe = "".join(map(re.escape, sorted(set(joined))))
    return re.compile(f"(?<=[^{SPACE}{unsafe}])(?={SPACE})")
