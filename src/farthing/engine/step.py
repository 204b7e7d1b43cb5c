"""From the sequences of a step, and how many tokens each feeds, to the arrays of its StepPlan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import SamplingParams, StepPlan
from farthing.engine.cost import StepShape, attended
from farthing.engine.rows import FixedRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from farthing.core import SamplingRows
    from farthing.engine.drafter import Draft
    from farthing.engine.rows import View
    from farthing.engine.sequence import Sequence


class Step:
    """One step on its way: each sequence with the tokens it feeds, and those that want a row.

    A sequence wants a row when its last known token is among those it feeds, to sample from; one
    whose prompt is scored wants the others' too. `rows` are their indices among the step's tokens,
    `wanted` whose each is, and `targets` the token that it scores, -1 where one is sampled.
    After its last known token a sequence may feed `drafts` of those that follow, each of which
    wants a row as well: `drafted` are these by row, -1 for the others'.
    `pooled` sequences want hidden states, with the index of the first and how many; `read` ones are
    done with this step without a sample.
    """

    def __init__(self, copies: Iterable[tuple[int, int]] = ()) -> None:
        self.parts: list[tuple[Sequence, int]] = []
        self.wanted: list[Sequence] = []
        self.rows: list[int] = []
        self.targets: list[int] = []
        self.drafted: list[int] = []
        self.drafts: dict[Sequence, Draft] = {}
        self.scoring = False
        self.pooled: list[tuple[Sequence, int, int]] = []
        self.read: list[Sequence] = []
        self.copies = list(copies)
        self._tokens = self._context = self._reads = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """The sequence feeds its next `count` tokens."""
        self.parts.append((sequence, count))
        self._want_prompt_rows(sequence, count)
        self._tokens += count
        self._context += attended(sequence.computed, count)
        self._reads += sequence.computed + count
        if sequence.computed + count == len(sequence.tokens):
            if sequence.samples:
                self._want(sequence, self._tokens - 1, -1)
            else:
                self.read.append(sequence)

    def add_drafted(self, sequence: Sequence, draft: Draft) -> None:
        """The sequence feeds the one known token it lacks, and its draft."""
        self.add(sequence, 1)
        self.drafts[sequence] = draft
        for token in draft.tokens:
            self._tokens += 1
            self._want(sequence, self._tokens - 1, -1, token)
        count = len(draft.tokens)
        self._context += attended(sequence.computed + 1, count)
        self._reads += count

    @property
    def shape(self) -> StepShape:
        """What the step costs by."""
        return StepShape(self._tokens, len(self.rows), self._context, self._reads)

    @property
    def fed(self) -> list[tuple[Sequence, int]]:
        """As `parts`, drafts included."""
        if not self.drafts:
            return self.parts
        return [
            (sequence, count + len(self.drafts[sequence].tokens))
            if sequence in self.drafts
            else (sequence, count)
            for sequence, count in self.parts
        ]

    def _want(self, sequence: Sequence, row: int, target: int, drafted: int = -1) -> None:
        self.wanted.append(sequence)
        self.rows.append(row)
        self.targets.append(target)
        self.drafted.append(drafted)

    def _want_prompt_rows(self, sequence: Sequence, count: int) -> None:
        """Before the sequence's tokens are counted."""
        computed = sequence.computed
        moved = self._tokens - computed
        if (scores := sequence.scores) is not None:
            for position in range(max(computed, scores.taken), min(computed + count, scores.end)):
                self.scoring = True
                self._want(sequence, position + moved, sequence.tokens[position + 1])
        if (mean := sequence.mean) is not None:
            first = max(computed, mean.taken)
            if first < computed + count:
                self.pooled.append((sequence, first + moved, computed + count - first))


class StepWriter:
    """Writes plans; what stays the same from one to the next is kept."""

    def __init__(self) -> None:
        self._fixed_for: list[Sequence] = []
        self._fixed = FixedRows([])

    def write(self, step: Step) -> StepPlan:
        """The arrays of a step that has at least one part."""
        token_ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        for sequence, count in step.parts:
            computed = sequence.computed
            end = computed + count
            if count == 1:
                token_ids.append(sequence.tokens[computed])
                positions.append(computed)
            else:
                token_ids += sequence.tokens[computed:end]
                positions += range(computed, end)
            if sequence in step.drafts:
                drafts = step.drafts[sequence].tokens
                token_ids += drafts
                positions += range(end, end + len(drafts))
            starts.append(len(token_ids))
        tables = [sequence.blocks for sequence, _ in step.parts]
        width = max(map(len, tables))
        return StepPlan(
            token_ids=np.array(token_ids, np.int32),
            positions=np.array(positions, np.int32),
            starts=np.array(starts, np.int32),
            block_tables=np.array(
                [table + [-1] * (width - len(table)) for table in tables], np.int32
            ),
            rows=np.array(step.rows, np.int32),
            sampling=self._sampling(step) if step.rows else None,
            **_uncommon(step),
        )

    def _sampling(self, step: Step) -> SamplingRows:
        wanted = step.wanted
        if step.scoring:
            return _scoring_rows(step)
        if self._fixed_for != wanted:
            self._fixed = FixedRows(
                [(each.request.sampling, each.seed, each.request.choice) for each in wanted]
            )
            self._fixed_for = wanted
        return self._fixed.at(*_moving(step))


def _moving(step: Step) -> tuple[list[int], list[View | None], list[NDArray[np.uint32] | None]]:
    """What each row has of its own: the position, the adjustments and the mask of its sample."""
    positions: list[int] = []
    adjustments: list[View | None] = []
    masks: list[NDArray[np.uint32] | None] = []
    for sequence, drafted in zip(step.wanted, step.drafted, strict=True):
        if drafted >= 0:
            continue  # they came with the row before the first of them
        positions.append(len(sequence.tokens))
        adjusted, matcher = sequence.adjustments, sequence.matcher
        adjustments.append(None if adjusted is None else adjusted.view())
        masks.append(None if matcher is None else matcher.mask)
        if (draft := step.drafts.get(sequence)) is not None:
            count = len(draft.tokens)
            positions += range(len(sequence.tokens) + 1, len(sequence.tokens) + 1 + count)
            adjustments += (
                [None] * count if adjusted is None else adjusted.views_ahead(draft.tokens)
            )
            masks += draft.masks or [None] * count
    return positions, adjustments, masks


def _uncommon(step: Step) -> dict[str, NDArray[np.int32]]:
    """What most steps have none of."""
    found = {}
    if step.copies:
        found["copies"] = np.array(step.copies, np.int32)
    if step.pooled:
        rows = [row for _, first, count in step.pooled for row in range(first, first + count)]
        found["hidden_rows"] = np.array(rows, np.int32)
    return found


def _scoring_rows(step: Step) -> SamplingRows:
    """Of a step in which rows are given their token: nothing else is done to these."""
    rows = list(zip(step.wanted, step.targets, strict=True))
    fixed = FixedRows(
        [
            (
                each.request.sampling if target < 0 else _scoring(each),
                each.seed,
                each.request.choice,
            )
            for each, target in rows
        ]
    )
    sampled = [each if target < 0 else None for each, target in rows]
    plain = fixed.at(
        [len(each.tokens) for each in step.wanted],
        [None if e is None or e.adjustments is None else e.adjustments.view() for e in sampled],
        [None if e is None or e.matcher is None else e.matcher.mask for e in sampled],
    )
    return replace(plain, target=np.array(step.targets, np.int32))


def _scoring(sequence: Sequence) -> SamplingParams:
    return _scores_with(sequence.request.sampling.prompt_logprobs)


@cache
def _scores_with(alternatives: int | None) -> SamplingParams:
    return SamplingParams(logprobs=alternatives)
