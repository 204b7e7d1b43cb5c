"""Steps as an engine would run them, made by hand so that nothing but the backend is timed."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from farthing.backends import Backend
from farthing.core import BLOCK_TOKENS, SamplingParams, StepPlan
from farthing.engine.kv import blocks_for
from farthing.engine.rows import FixedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_GREEDY = SamplingParams()


class MeasuredBackend(Backend, Protocol):
    """A backend whose cache can be filled and whose stages can be timed."""

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The cache itself, (blocks, bytes of a block), writable."""
        ...

    def profile(self, on: bool) -> None:
        """Starts counting the seconds of each stage from zero, or stops."""
        ...

    def stage_seconds(self) -> list[tuple[str, float]]:
        """(label, seconds) of each stage, and of sampling, since profiling was switched on."""
        ...


class Steps:
    """Runs prompts and decode steps of random tokens, the same for the same seed."""

    def __init__(self, backend: MeasuredBackend, seed: int) -> None:
        self.backend = backend
        self._random = np.random.default_rng(seed)

    def fill_cache(self, tokens: int) -> None:
        """Puts the keys and values of a prompt of `tokens` into every block, over and over.

        So a context of any length holds ordinary numbers, without being computed first.
        """
        self.prefill(tokens)
        pool = self.backend.cache_bytes()
        filled = max(1, tokens // BLOCK_TOKENS)
        for first in range(filled, len(pool), filled):
            pool[first : first + filled] = pool[: min(filled, len(pool) - first)]

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt's first token to the token that follows it, in as many steps as
        the backend needs.
        """
        most = self.backend.max_step_tokens
        table = np.arange(blocks_for(tokens), dtype=np.int32)[None, :]
        plans = []
        for first in range(0, tokens, most):
            end = min(first + most, tokens)
            plans.append(self._plan([(first, end)], table, wanted=end == tokens))
        started = perf_counter()
        for plan in plans:
            self.backend.run(plan)
        return perf_counter() - started

    def decode(self, contexts: Sequence[int], steps: int) -> float:
        """Seconds of `steps` steps of one token for each sequence, fed with what the last one gave.

        Each token stands at the end of its sequence's context, which does not grow: so every step
        reads what a context of that length takes, and no step anything else's.
        """
        return self.repeat([(context - 1, context) for context in contexts], steps)

    def repeat(self, spans: Sequence[tuple[int, int]], steps: int) -> float:
        """Seconds of `steps` steps, each of which feeds positions [first, end) of every sequence.

        The last token of each is sampled, and fed in its place the next time.
        """
        widths = [blocks_for(end) for _, end in spans]
        tables = np.full((len(spans), max(widths)), -1, np.int32)
        blocks = np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])
        for table, owned in zip(tables, blocks, strict=True):
            table[: len(owned)] = owned
        plan = self._plan(spans, tables, wanted=True)
        started = perf_counter()
        for _ in range(steps):
            plan.token_ids[plan.rows] = self.backend.run(plan).tokens
        return perf_counter() - started

    def _plan(
        self, spans: Sequence[tuple[int, int]], tables: NDArray[np.int32], *, wanted: bool
    ) -> StepPlan:
        """One step of sequences that feed positions [first, end); the last of each is sampled."""
        lengths = [end - first for first, end in spans]
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        tokens = self._random.integers(0, self.backend.vocabulary_size, int(starts[-1]))
        rows = starts[1:] - 1 if wanted else starts[:0]
        sampling = None
        if wanted:
            fixed = FixedRows([(_GREEDY, 0, 0)] * len(rows))
            sampling = fixed.at([end for _, end in spans], [None] * len(rows))
        return StepPlan(
            tokens.astype(np.int32),
            np.concatenate([np.arange(first, end, dtype=np.int32) for first, end in spans]),
            starts,
            tables,
            rows,
            sampling,
        )
