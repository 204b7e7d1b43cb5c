"""The text that a student learns from, on disk: what its teacher wrote, from which distributions.

It lies in shards of some texts each, files of arrays (`arrays.py`) that are written whole and never
changed. Shard 0 is held out: a student is measured on it and never sees it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.forge.arrays import read_arrays, write_arrays
from farthing.forge.recorder import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.forge.recorder import Distribution

TOKEN_BYTES = 4 + KEPT * 6 + 8
"""Of a written token on disk: itself, the likeliest with their log-probabilities, the total."""


@dataclass(frozen=True)
class Lesson:
    """One text: its tokens, of which those from `written` on are the teacher's.

    For these W there are the likeliest tokens `top_ids` (W, K) int32, their log-probabilities
    `top_logprobs` (W, K) float16, and `log_totals` (W,): see `recorder.Distribution`.
    """

    token_ids: NDArray[np.int32]
    written: int
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float16]
    log_totals: NDArray[np.float64]


@dataclass(frozen=True)
class Lessons:
    """Several texts, and the seconds that writing them took."""

    texts: Sequence[Lesson]
    seconds: float

    @property
    def written_tokens(self) -> int:
        """How many tokens the teacher wrote."""
        return sum(len(each.token_ids) - each.written for each in self.texts)


def lesson_of(
    prompt: Sequence[int], answer: Sequence[int], drawn_from: Sequence[Distribution]
) -> Lesson:
    """A text from what was asked and answered, and the distribution of each answered token."""
    return Lesson(
        np.array([*prompt, *answer], np.int32),
        len(prompt),
        np.stack([each.ids for each in drawn_from]),
        np.stack([each.logprobs for each in drawn_from]),
        np.array([each.log_total for each in drawn_from]),
    )


def write_shard(path: Path, lessons: Lessons) -> None:
    """Stores the texts. Raises `FarthingError` where that cannot be."""
    texts = lessons.texts
    starts = np.cumsum([0, *(len(each.token_ids) for each in texts)]).astype(np.int64)
    write_arrays(
        path,
        {
            "starts": starts,
            "written": np.array([each.written for each in texts], np.int64),
            "seconds": np.array([lessons.seconds]),
            "log_totals": np.concatenate([each.log_totals for each in texts]),
            "token_ids": np.concatenate([each.token_ids for each in texts]),
            "top_ids": np.concatenate([each.top_ids for each in texts]),
            "top_logprobs": np.concatenate([each.top_logprobs for each in texts]),
        },
    )


def read_shard(path: Path) -> Lessons:
    """The texts of a shard. Raises `FarthingError` for a damaged one."""
    arrays = read_arrays(path)
    starts, texts, first = arrays["starts"].tolist(), [], 0
    for start, end, written in zip(
        starts[:-1], starts[1:], arrays["written"].tolist(), strict=True
    ):
        rows = slice(first, first + end - start - written)
        first = rows.stop
        texts.append(
            Lesson(
                arrays["token_ids"][start:end],
                written,
                arrays["top_ids"][rows],
                arrays["top_logprobs"][rows],
                arrays["log_totals"][rows],
            )
        )
    return Lessons(texts, float(arrays["seconds"][0]))


def text_hash(lessons: Iterable[Lesson]) -> str:
    """The sha256 of all token ids, in order, each text with its length before it."""
    digest = hashlib.sha256()
    for each in lessons:
        digest.update(len(each.token_ids).to_bytes(8, "little"))
        digest.update(each.token_ids.astype("<i4").tobytes())
    return digest.hexdigest()


def likeliest_tokens(lessons: Iterable[Lesson], count: int, vocabulary: int) -> tuple[int, ...]:
    """The `count` tokens that the teacher writes most, by the sum of their probabilities.

    They are ascending; of equal ones those of the lowest ids are taken.
    """
    expected = np.zeros(vocabulary)
    for each in lessons:
        chances = np.exp(each.top_logprobs.astype(np.float64))
        np.add.at(expected, each.top_ids.ravel(), chances.ravel())
    order = np.argsort(-expected, kind="stable")
    return tuple(sorted(order[:count].tolist()))
