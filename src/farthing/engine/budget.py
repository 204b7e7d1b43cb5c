"""How the tokens of a step are shared out among the sequences that are ready for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.engine.cost import StepShape

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from farthing.engine.cost import StepCost
    from farthing.engine.sequence import Sequence


def share_out(
    ready: ListOf[Sequence],
    budget: int,
    rows: int,
    latency_target: float | None,
    cost: StepCost,
) -> list[int]:
    """How many tokens each sequence feeds, `budget` at most in all; `ready` is by seniority.

    A sequence that lacks one token gets it. What is left goes to prompts: while others decode, no
    more than keeps the step within `latency_target` seconds, but one block at least, so that a
    long prompt neither stalls the others nor waits for ever. Half of that is for the prompt that
    came first and the rest for the shortest ones, so that a long one does not hold them up.

    The head is computed for `rows` rows at most: one for each sequence, and the others for prompts
    that are scored, the senior first; these feed no more tokens than they have rows.
    """
    lacking = _lacking(ready, rows - len(ready))
    counts = [0] * len(ready)
    prompts = []
    decoding = context = 0
    for at, (sequence, count) in enumerate(zip(ready, lacking, strict=True)):
        if count > 1:
            prompts.append(at)
        elif decoding < budget:
            counts[at] = 1
            decoding += 1
            context += sequence.computed + 1
    if not prompts:
        return counts
    room = budget - decoding
    if decoding and latency_target is not None:
        shape = StepShape(tokens=decoding, rows=decoding, context=context, reads=context)
        affordable = cost.affordable(shape, ready[prompts[0]].computed, latency_target)
        room = min(room, max(affordable, BLOCK_TOKENS))
    first = prompts[0]
    counts[first] = min(lacking[first], -(-room // 2))
    room -= counts[first]
    for at in sorted(prompts[1:], key=lacking.__getitem__):
        counts[at] = min(lacking[at], room)
        room -= counts[at]
    counts[first] += min(lacking[first] - counts[first], room)
    return counts


def _lacking(ready: ListOf[Sequence], spare_rows: int) -> list[int]:
    """How many tokens each sequence could feed, where it has one row and may take spare ones."""
    lacking = [len(sequence.tokens) - sequence.computed for sequence in ready]
    for at, sequence in enumerate(ready):
        if sequence.scores is not None:
            rows = sequence.rows_of(lacking[at])
            if rows > 1 + spare_rows:
                rows = 1 + spare_rows
                lacking[at] = max(0, sequence.scores.taken - sequence.computed) + rows
            spare_rows -= max(0, rows - 1)
    return lacking
