"""Ranked merges of a SentencePiece vocabulary as the scores of tokens that GGUF files have.

A tokenizer.json says which pairs merge, in order; a GGUF says how much each token is liked, and any
two neighbours merge that form one. Both say the same where every pair that forms a token is a
merge, and all merges that form one token stand together: as in what was made from scores, which
are then these tokens' order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


MOST_CHARACTERS = 256
"""Of a token: the time that its pairs take grows with the square. The longest in use have 64."""


def scores_of_merges(
    ids: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    whole: Collection[str],
    size: int,
    where: str,
) -> list[float]:
    """A score for each of `size` token ids, 0 where no merge forms the token.

    `ids` are the tokens that plain text may become, by text, and `whole` those of them that are
    matched before anything is merged. Raises `UnsupportedModelError` naming the first token whose
    merges no scores express, and for one longer than `MOST_CHARACTERS`.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    counts: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        token = left + right
        if token in ids and left in ids and right in ids:
            first.setdefault(token, rank)
            last[token] = rank
            counts[token] = counts.get(token, 0) + 1
    longest = max(map(len, ids), default=0)
    if longest > MOST_CHARACTERS:
        raise UnsupportedModelError(
            f"{where}: a token has {longest} characters, and at most {MOST_CHARACTERS} are looked "
            "into for merges: the vocabulary is damaged"
        )
    scores = [0.0] * size
    for token, token_id in ids.items():
        if token in whole:
            continue
        pairs = sum(token[:at] in ids and token[at:] in ids for at in range(1, len(token)))
        found = counts.get(token, 0)
        if pairs != found:
            raise _inexpressible(where, token, f"{found} of the {pairs} pairs that form it")
        # Runs of one character have one score in some models, and grow from the left either way.
        together = not found or last[token] - first[token] + 1 == found or len({*token}) == 1
        if not together:
            raise _inexpressible(where, token, "merges that stand apart from each other")
        if found:
            scores[token_id] = -float(first[token])
    return scores


def _inexpressible(where: str, token: str, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{where}: the token {token!r:.80} has {what}, which a GGUF file's scores cannot express: "
        "write a folder instead, by an OUT without .gguf"
    )
