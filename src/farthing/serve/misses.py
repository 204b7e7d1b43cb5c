"""Why the cache did not have more of a prompt, told to the one whose prompt it is.

Nothing is quoted but the request's own text: what another one had in the same place stays untold.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from farthing.serve.wire.common import PrefixMiss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.engine.prefix import Miss
    from farthing.text.tokenizer import Tokenizer

_QUOTED_BEFORE, _QUOTED_AFTER = 8, 6
"""Tokens around the first one that differs."""


class PromptPlaces:
    """Where in a prompt each message of its chat ends, so that a token can be placed.

    `messages` are those that the prompt `ids` were made of. Takes time in proportion to the prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._roles = [str(each["role"]) for each in messages]
        self._ends = _message_ends(tokenizer, ids, messages)

    def explain(self, miss: Miss) -> PrefixMiss:
        """What is told of a miss."""
        message = bisect_right(self._ends, miss.position)
        place = message if message < len(self._ends) else None
        where = f"token {miss.position} of the prompt"
        if place is not None:
            where += f", in messages[{place}] ({self._roles[place]})"
        around = self._ids[max(0, miss.position - _QUOTED_BEFORE) : miss.position + _QUOTED_AFTER]
        quote = self._tokenizer.decode(around, skip_special_tokens=False)
        explanation = {
            "differs": f"it differs from an earlier prompt from {where} on, at {quote!r}: put what "
            "changes from time to time behind what stays the same",
            "evicted": f"from {where} on it was in the cache, and its place was needed for others",
            "new": f"no earlier prompt goes on so from {where} on",
        }[miss.reason]
        return PrefixMiss(
            reason=miss.reason,
            position=miss.position,
            message=place,
            text=quote,
            reused_tokens=miss.reused,
            recomputed_tokens=miss.recomputed,
            avoidable_tokens=miss.avoidable,
            explanation=explanation,
        )


def _message_ends(
    tokenizer: Tokenizer, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]
) -> list[int]:
    """For each message, the first token that begins behind its content.

    The words between two contents are the template's, and belong to the second. A content that the
    template changed is looked for in vain: its message ends where the one before does.
    """
    pieces = [tokenizer.token_bytes(each) for each in ids]
    text = b"".join(pieces)
    begins = list(accumulate(map(len, pieces), initial=0))
    ends: list[int] = []
    at = 0
    for message in messages:
        content = message.get("content")
        sought = content.strip().encode() if isinstance(content, str) else b""
        found = text.find(sought, at)
        if found >= 0:
            at = found + len(sought)
        ends.append(bisect_left(begins, at))
    return ends
