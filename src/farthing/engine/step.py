"""From the sequences of a step, and how many tokens each feeds, to the arrays of its StepPlan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StepPlan
from farthing.engine.cost import StepShape, attended
from farthing.engine.rows import FixedRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.core import SamplingRows
    from farthing.engine.sequence import Sequence


class Step:
    """One step on its way: each sequence with the tokens it feeds, and those that want a row.

    A sequence wants a row when its last known token is among those it feeds.
    """

    def __init__(self, copies: Iterable[tuple[int, int]] = ()) -> None:
        self.parts: list[tuple[Sequence, int]] = []
        self.wanted: list[Sequence] = []
        self.copies = list(copies)
        self._tokens = self._context = self._reads = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """The sequence feeds its next `count` tokens."""
        self.parts.append((sequence, count))
        self._tokens += count
        self._context += attended(sequence.computed, count)
        self._reads += sequence.computed + count
        if sequence.computed + count == len(sequence.tokens):
            self.wanted.append(sequence)

    @property
    def shape(self) -> StepShape:
        """What the step costs by."""
        return StepShape(self._tokens, len(self.wanted), self._context, self._reads)


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
        rows: list[int] = []
        for sequence, count in step.parts:
            computed = sequence.computed
            end = computed + count
            if count == 1:
                token_ids.append(sequence.tokens[computed])
                positions.append(computed)
            else:
                token_ids += sequence.tokens[computed:end]
                positions += range(computed, end)
            starts.append(len(token_ids))
            if end == len(sequence.tokens):
                rows.append(len(token_ids) - 1)
        tables = [sequence.blocks for sequence, _ in step.parts]
        width = max(map(len, tables))
        return StepPlan(
            token_ids=np.array(token_ids, np.int32),
            positions=np.array(positions, np.int32),
            starts=np.array(starts, np.int32),
            block_tables=np.array(
                [table + [-1] * (width - len(table)) for table in tables], np.int32
            ),
            rows=np.array(rows, np.int32),
            sampling=self._sampling(step.wanted) if rows else None,
            copies=np.array(step.copies, np.int32).reshape(-1, 2),
        )

    def _sampling(self, wanted: list[Sequence]) -> SamplingRows:
        if self._fixed_for != wanted:
            self._fixed = FixedRows(
                [(each.request.sampling, each.seed, each.request.choice) for each in wanted]
            )
            self._fixed_for = wanted
        return self._fixed.at(
            [len(sequence.tokens) for sequence in wanted],
            [sequence.adjustments for sequence in wanted],
        )
