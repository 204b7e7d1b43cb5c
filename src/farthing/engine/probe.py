"""What steps of a few tokens take, measured while nobody waits for a text.

Until that is known, guesses are left alone: whether they pay depends on it. A profile that was
stored says it at once; where there is none, an engine without work runs some steps of its own, one
at a time, so that whoever comes waits for one of a few tokens at most.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, SamplingParams, StepPlan
from farthing.engine.cost import StepShape, attended
from farthing.engine.rows import FixedRows

if TYPE_CHECKING:
    from farthing.backends import Backend
    from farthing.engine.cost import StepCost
    from farthing.engine.kv import BlockPool

GRACE_SECONDS = 0.25
"""An engine that had no work for so long is idle: before, the next text may be on its way."""

_SIZES = (1, 4, 2, 9, 1, 3, 2, 5)
_ROUNDS = 4
"""The first of which is not counted: what it touches was not touched before."""


class Probe:
    """The steps that are to be measured on one backend; `pool` is that of its blocks."""

    def __init__(self, backend: Backend, pool: BlockPool, cost: StepCost) -> None:
        self._backend = backend
        self._pool = pool
        self._cost = cost
        most = min(backend.max_step_tokens, backend.max_step_rows, backend.context_length)
        sizes = [size for size in _SIZES if size <= min(most, BLOCK_TOKENS)]
        self._left = [(size, bool(number)) for number in range(_ROUNDS) for size in sizes]
        self._begun = False

    @property
    def done(self) -> bool:
        """Whether all is known: by these steps, or by others before the first of them."""
        return not self._left or (not self._begun and self._cost.seen(2))

    def next_plan(self) -> StepPlan | None:
        """The next step, with a block that is taken for it; None where no block is free."""
        if not self._pool.free:
            self._left.clear()
            return None
        self._begun = True
        [block] = self._pool.take(1)
        size = self._left[0][0]
        rows = FixedRows([(SamplingParams(), 0, 0)] * size)
        return StepPlan(
            token_ids=np.zeros(size, np.int32),
            positions=np.arange(size, dtype=np.int32),
            starts=np.array([0, size], np.int32),
            block_tables=np.array([[block]], np.int32),
            rows=np.arange(size, dtype=np.int32),
            sampling=rows.at(range(1, size + 1), [None] * size),
        )

    def run(self, plan: StepPlan) -> float:
        """Runs the step, and gives the seconds that it took."""
        started = perf_counter()
        self._backend.run(plan)
        return perf_counter() - started

    def take_in(self, plan: StepPlan, seconds: float | None) -> None:
        """Gives the block back, and learns from the step; nothing more where it failed: None."""
        self._pool.give([int(plan.block_tables[0, 0])])
        size, counts = self._left.pop(0)
        if seconds is None:
            self._left.clear()
        elif counts:
            self._cost.observe(StepShape(size, size, attended(0, size), size), seconds)
