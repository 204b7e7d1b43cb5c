"""Texts packed into the batches of a training step, and what a student is to give for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from farthing.forge.losses import Labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from farthing.forge.lessons import Lesson

BATCH_TOKENS = 2048
LEAST_BATCH_TOKENS = 256

_BATCH_SCORES = 1 << 24
"""A batch of many tokens has fewer scores each: these take the most memory."""


@dataclass(frozen=True)
class Batch:
    """Several texts end to end: `token_ids` (T,) int64 of which text s is from `starts[s]` to
    `starts[s+1]`, `rows` (R,) int64 those whose next tokens the teacher wrote, and their labels.
    """

    token_ids: Tensor
    starts: list[int]
    rows: Tensor
    labels: Labels


def batch_tokens(scores: int) -> int:
    """About how many tokens a batch has for a student with a head of so many scores."""
    return max(LEAST_BATCH_TOKENS, min(BATCH_TOKENS, _BATCH_SCORES // scores))


def score_of_token(head_tokens: tuple[int, ...] | None, vocabulary: int) -> NDArray[np.int64]:
    """For each token which of the head's scores is its own (vocabulary,), -1 where it has none."""
    if head_tokens is None:
        return np.arange(vocabulary)
    found = np.full(vocabulary, -1)
    found[list(head_tokens)] = np.arange(len(head_tokens))
    return found


def packed(lessons: Sequence[Lesson], scores: NDArray[np.int64]) -> Batch:
    """The texts in one batch. What a text ends with is predicted and never read."""
    rows: list[NDArray[np.int64]] = []
    starts = [0]
    for each in lessons:
        end = starts[-1] + len(each.token_ids) - 1
        rows.append(np.arange(starts[-1] + each.written - 1, end))
        starts.append(end)
    token_ids = np.concatenate([each.token_ids[:-1] for each in lessons])
    top = scores[np.concatenate([each.top_ids for each in lessons])]
    written = np.concatenate([each.token_ids[each.written :] for each in lessons])
    logprobs = np.concatenate([each.top_logprobs for each in lessons]).astype(np.float32)
    totals = np.concatenate([each.log_totals for each in lessons]).astype(np.float32)
    labels = Labels(
        torch.from_numpy(np.maximum(top, 0)),
        torch.from_numpy(top >= 0),
        torch.from_numpy(logprobs),
        torch.from_numpy(totals),
        torch.from_numpy(scores[written]),
    )
    return Batch(
        torch.from_numpy(token_ids.astype(np.int64)),
        starts,
        torch.from_numpy(np.concatenate(rows)),
        labels,
    )


def cut(lessons: Sequence[Lesson], order: Sequence[int], tokens: int) -> Iterator[list[Lesson]]:
    """The texts in this order, in groups of at least `tokens` tokens; the last may have fewer."""
    group: list[Lesson] = []
    length = 0
    for at in order:
        group.append(lessons[at])
        length += len(lessons[at].token_ids) - 1
        if length >= tokens:
            yield group
            group, length = [], 0
    if group:
        yield group


def reading_order(count: int, seed: int, reading: int) -> list[int]:
    """In which order `count` texts are read for the `reading`th time: a function of these alone."""
    order: list[int] = np.random.default_rng((seed, 2, reading)).permutation(count).tolist()
    return order
