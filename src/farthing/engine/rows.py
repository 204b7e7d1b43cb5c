"""The sampling side of a step plan: each wanted row's parameters as flat arrays.

A row without bias, penalties or `min_tokens` differs from one step to the next in its position
alone, so everything else is built once for a given list of sequences and used again.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farthing.core import SamplingRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from farthing.core import SamplingParams


View = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.uint8], NDArray[np.int32]]
"""What `SamplingRows` lists for one row: ids, bias, seen and count."""


class Adjustments:
    """The token ids of one sequence whose logits change before filtering, kept step by step.

    Grows by one entry for each new token id; `view` is what `SamplingRows` lists for the row.
    The `banned` ids are banned from the first `min_tokens` tokens of the output.
    """

    def __init__(
        self, sampling: SamplingParams, prompt: Sequence[int], banned: Iterable[int]
    ) -> None:
        self._counts_output = (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )
        self._slots: dict[int, int] = {}
        self._ids = np.empty(16, np.int32)
        self._bias = np.zeros(16, np.float32)
        self._seen = np.zeros(16, np.uint8)
        self._count = np.zeros(16, np.int32)
        self._banned = {token: sampling.logit_bias.get(token, 0.0) for token in banned}
        self._until_lifted = sampling.min_tokens
        for token, bias in sampling.logit_bias.items():
            self._set_bias(token, bias)
        for token in self._banned:
            self._set_bias(token, -np.inf)
        if sampling.repetition_penalty != 1.0:
            for token in prompt:
                slot = self._slot(token)
                self._seen[slot] = 1

    def add_output(self, token: int) -> None:
        """Counts one more token of the output; the one that makes enough of them lifts the ban."""
        if self._counts_output:
            slot = self._slot(token)
            self._seen[slot] = 1
            self._count[slot] += 1
        self._until_lifted -= 1
        if self._until_lifted == 0:
            for banned, bias in self._banned.items():
                self._set_bias(banned, bias)
            self._banned = {}

    def view(self) -> View:
        """Views that the next `add_output` may change."""
        used = len(self._slots)
        return self._ids[:used], self._bias[:used], self._seen[:used], self._count[:used]

    def views_ahead(self, tokens: Iterable[int]) -> Iterator[View]:
        """What `view` would give after each of these tokens; nothing is counted."""
        ahead = copy(self)
        ahead._slots = dict(self._slots)
        for name in ("_ids", "_bias", "_seen", "_count"):
            setattr(ahead, name, getattr(self, name).copy())
        for token in tokens:
            ahead.add_output(token)
            ids, bias, seen, count = ahead.view()
            yield ids.copy(), bias.copy(), seen.copy(), count.copy()

    def _set_bias(self, token: int, bias: float) -> None:
        slot = self._slot(token)
        self._bias[slot] = bias

    def _slot(self, token: int) -> int:
        """The token's place in the arrays; a new one may make other arrays of them."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._bias = np.concatenate((self._bias, np.zeros_like(self._bias)))
                self._seen = np.concatenate((self._seen, np.zeros_like(self._seen)))
                self._count = np.concatenate((self._count, np.zeros_like(self._count)))
            self._ids[slot] = token
        return slot


_LEAST_TOP_P = float(np.finfo(np.float32).tiny)


class FixedRows:
    """The parameters of R rows that stay the same from step to step."""

    def __init__(self, rows: Sequence[tuple[SamplingParams, int, int]]) -> None:
        """`rows` are (parameters, seed, choice index)."""
        sampling = [row[0] for row in rows]
        self.temperature = np.array([s.temperature for s in sampling], np.float32)
        self.top_k = np.array([s.top_k for s in sampling], np.int32)
        # What is too small for its type still leaves the likeliest token, as it is above 0.
        self.top_p = np.array([max(s.top_p, _LEAST_TOP_P) for s in sampling], np.float32)
        self.min_p = np.array([s.min_p for s in sampling], np.float32)
        self.repetition_penalty = np.array([s.repetition_penalty for s in sampling], np.float32)
        self.presence_penalty = np.array([s.presence_penalty for s in sampling], np.float32)
        self.frequency_penalty = np.array([s.frequency_penalty for s in sampling], np.float32)
        self.seed = np.array([row[1] for row in rows], np.uint64)
        self.choice = np.array([row[2] for row in rows], np.uint32)
        self.logprobs = np.array(
            [-1 if s.logprobs is None else s.logprobs for s in sampling], np.int32
        )
        self._no_starts = np.zeros(len(rows) + 1, np.int32)
        self._no_targets = np.full(len(rows), -1, np.int32)

    def at(
        self,
        positions: Sequence[int],
        adjustments: Sequence[View | None],
        masks: Sequence[NDArray[np.uint32] | None] = (),
    ) -> SamplingRows:
        """The rows of one step: row r's token will stand at `positions[r]`.

        `adjustments` are what `Adjustments.view` gives for each row, or None for nothing.
        `masks` are the tokens that each row allows, as `SamplingRows` has them, or None for all.
        """
        if any(view is not None for view in adjustments):
            views = [_NONE if view is None else view for view in adjustments]
            starts = np.zeros(len(views) + 1, np.int32)
            np.cumsum([len(view[0]) for view in views], out=starts[1:])
            ids, bias, seen, count = (np.concatenate(each) for each in zip(*views, strict=True))
        else:
            starts = self._no_starts
            ids, bias, seen, count = _NONE
        return SamplingRows(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            choice=self.choice,
            position=np.array(positions, np.uint32),
            logprobs=self.logprobs,
            target=self._no_targets,
            adjusted_starts=starts,
            adjusted_ids=ids,
            adjusted_bias=bias,
            adjusted_seen=seen,
            adjusted_count=count,
            **_stacked(masks),
        )


def _stacked(masks: Sequence[NDArray[np.uint32] | None]) -> dict[str, NDArray[Any]]:
    given = [mask for mask in masks if mask is not None]
    if not given:
        return {}
    rows = np.full(len(masks), -1, np.int32)
    rows[[mask is not None for mask in masks]] = np.arange(len(given), dtype=np.int32)
    return {"mask_rows": rows, "masks": np.stack(given)}


_NONE = (
    np.empty(0, np.int32),
    np.empty(0, np.float32),
    np.empty(0, np.uint8),
    np.empty(0, np.int32),
)
