"""Which tokens run in the next step. One rule: what is computed catches up with what is known.

A sequence knows its prompt and what has been sampled; a step computes some of the difference. A
prompt, a chunk of one and a decoded token differ in length alone. A step whose chunk reaches the
last known token wants that token's row, and `commit` appends what was sampled from it.

First come, first served, and nobody overtakes: a waiting request is admitted once the blocks of its
whole need, prompt and `max_tokens`, are neither held nor promised. So nothing that runs can run out
of blocks. Imports no backend.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError, StepPlan
from farthing.engine.kv import BlockPool, blocks_for
from farthing.engine.rows import FixedRows
from farthing.engine.sequence import Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.core import Request, SamplingRows, StepResult
    from farthing.engine.sequence import FinishReason


@dataclass(frozen=True)
class Limits:
    """What a step and a sequence may hold; a backend states most of it.

    `context_length` counts a sequence's prompt and output together.
    """

    total_blocks: int
    context_length: int
    step_tokens: int
    step_rows: int
    vocabulary_size: int


class Scheduler:
    """Requests in, step plans out; a step's result moves the state forward.

    Used by one thread at a time. `schedule` may be called again before `commit`: a plan that was
    never run, or whose run failed, is planned anew.
    """

    def __init__(self, limits: Limits, eos_ids: frozenset[int] = frozenset()) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.total_blocks)
        self._eos_ids = eos_ids
        # Every running sequence can then have one token and one row of any step.
        self._most_running = min(limits.step_rows, limits.step_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        # Blocks that running sequences will still take: admitted, not yet held.
        self._promised = 0
        self._planned: list[tuple[Sequence, int]] = []
        self._wanted: list[Sequence] = []
        self._fixed_for: list[Sequence] = []
        self._fixed = FixedRows([])

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """The sequences not yet admitted, in order of arrival."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The sequences that hold or are promised blocks, in order of admission."""
        return tuple(self._running)

    def submit(self, request: Request) -> Sequence:
        """Queues a request. Raises `RequestError` for one that could never be served as asked."""
        self._refuse_impossible(request)
        sequence = Sequence(request, self.limits.context_length, self._eos_ids)
        if sequence.needed_blocks > self.pool.total:
            raise RequestError(
                f"the request needs {sequence.needed_blocks} cache blocks (a prompt of "
                f"{len(request.prompt)} tokens and up to "
                f"{sequence.most_tokens - len(request.prompt)} more), the cache has "
                f"{self.pool.total}; ask for fewer tokens or load with room for more"
            )
        self._waiting.append(sequence)
        return sequence

    def schedule(self, step_tokens: int | None = None) -> StepPlan | None:
        """The next step over everything that is admitted, or None when nothing waits or runs.

        `step_tokens` makes this step smaller than the limits allow.
        """
        self._admit()
        self._planned = []
        self._wanted = []
        token_ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        rows: list[int] = []
        budget = min(self.limits.step_tokens, step_tokens or self.limits.step_tokens)
        for sequence in self._running:
            computed, known = sequence.computed, len(sequence.tokens)
            end = min(known, computed + budget)
            if end == computed:
                break
            budget -= end - computed
            token_ids += sequence.tokens[computed:end]
            positions += range(computed, end)
            starts.append(len(token_ids))
            missing = blocks_for(end) - len(sequence.blocks)
            if missing:
                sequence.blocks += self.pool.take(missing)
                self._promised -= missing
            self._planned.append((sequence, end - computed))
            if end == known:
                rows.append(len(token_ids) - 1)
                self._wanted.append(sequence)
        if not self._planned:
            return None
        return StepPlan(
            token_ids=np.array(token_ids, np.int32),
            positions=np.array(positions, np.int32),
            starts=np.array(starts, np.int32),
            block_tables=self._tables(),
            rows=np.array(rows, np.int32),
            sampling=self._sampling() if rows else None,
        )

    def commit(self, result: StepResult) -> list[Sequence]:
        """Takes in the result of the plan made last; returns the sequences that gained a token.

        A sequence that ended has given its blocks back by then, and its `finish_reason` is set.
        """
        for sequence, count in self._planned:
            sequence.computed += count
        wanted = self._wanted
        tokens = result.tokens.tolist() if wanted else []
        for row, (sequence, token) in enumerate(zip(wanted, tokens, strict=True)):
            sequence.record(result, row)
            sequence.append(token)
            if sequence.finish_reason is not None:
                self._release(sequence)
        self._planned = []
        self._wanted = []
        return wanted

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a sequence between two steps: a stop string was met, or nobody waits for it.

        One that has ended already stays as it is, except that a stop string in the last token that
        `max_tokens` allows counts as a stop.
        """
        if sequence.finish_reason is not None:
            if (sequence.finish_reason, reason) == ("length", "stop"):
                sequence.finish_reason = reason
            return
        sequence.finish_reason = reason
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._release(sequence)

    def check(self) -> None:
        """Raises `ValueError` unless every held block belongs to exactly one running sequence."""
        self.pool.check()
        tables = [block for sequence in self._running for block in sequence.blocks]
        needed = sum(sequence.needed_blocks for sequence in self._running)
        if len(set(tables)) != len(tables) or len(tables) != self.pool.held:
            raise ValueError(f"{self.pool.held} blocks are held, the tables list {len(tables)}")
        if needed != len(tables) + self._promised or needed > self.pool.total:
            raise ValueError(f"{needed} blocks are needed, {self._promised} are promised")

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._most_running:
            if self._waiting[0].needed_blocks > self.pool.free - self._promised:
                break
            sequence = self._waiting.popleft()
            self._promised += sequence.needed_blocks
            self._running.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._promised -= sequence.needed_blocks - len(sequence.blocks)
        self.pool.give(sequence.blocks)
        sequence.blocks = []

    def _tables(self) -> NDArray[np.int32]:
        """Shape (sequences, blocks of the longest), padded with -1."""
        tables = [sequence.blocks for sequence, _ in self._planned]
        width = max(map(len, tables))
        return np.array([table + [-1] * (width - len(table)) for table in tables], np.int32)

    def _sampling(self) -> SamplingRows:
        if self._fixed_for != self._wanted:
            self._fixed = FixedRows(
                [(s.request.sampling, s.seed, s.request.choice) for s in self._wanted]
            )
            self._fixed_for = self._wanted
        return self._fixed.at(
            [len(sequence.tokens) for sequence in self._wanted],
            [sequence.adjustments for sequence in self._wanted],
        )

    def _refuse_impossible(self, request: Request) -> None:
        limits, sampling, prompt = self.limits, request.sampling, request.prompt
        if not prompt:
            raise RequestError("the prompt is empty: it must have at least one token")
        if len(prompt) >= limits.context_length:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, and the context holds "
                f"{limits.context_length} with at least one for the answer; shorten the prompt or "
                f"load with a longer context"
            )
        if len(prompt) + (sampling.max_tokens or 1) > limits.context_length:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, "
                f"together more than the context of {limits.context_length}; lower max_tokens to "
                f"{limits.context_length - len(prompt)} or load with a longer context"
            )
        for what, ids in (
            ("the prompt", prompt),
            ("stop_token_ids", sampling.stop_token_ids),
            ("logit_bias", sampling.logit_bias),
        ):
            outside = [token for token in ids if not 0 <= token < limits.vocabulary_size]
            if outside:
                raise RequestError(
                    f"{what} names token {outside[0]}, and the model's vocabulary has "
                    f"{limits.vocabulary_size} tokens, numbered from 0"
                )
