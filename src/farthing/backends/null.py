"""A backend without arithmetic: a script says what follows a prefix. For tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from farthing.backends.blocks import copy_blocks
from farthing.backends.logits import logits_only
from farthing.core import BLOCK_TOKENS, StepPlan, StepResult

Script = Callable[[NDArray[np.int32]], "int | NDArray[np.float32]"]
"""From a prefix's token ids to the token that follows, or to its logits (vocabulary)."""


class NullBackend:
    """Gives what `script` says of each wanted row's prefix.

    Its cache is real, only small: each block holds the token ids of its 32 positions, and a
    prefix is read back through the block table. So a block that two sequences write, or one that
    is reused too early, changes what the script sees. A StepPlan that breaks its contract raises
    `ValueError`: that is a fault of the engine, never of a user. The hidden state of a token is
    made of its whole prefix: 1 / (1 + id) of the token, its position, and the sum and a weighted
    sum of all ids.
    """

    samples = False
    hidden_size = 4

    def __init__(
        self,
        script: Script,
        vocabulary_size: int,
        total_blocks: int = 64,
        context_length: int = 1024,
        max_step_tokens: int = 512,
        max_step_rows: int = 64,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.total_blocks = total_blocks
        self.context_length = context_length
        self.max_step_tokens = max_step_tokens
        self.max_step_rows = max_step_rows
        self.steps = 0
        self._script = script
        self._blocks = np.full((total_blocks, BLOCK_TOKENS), -1, np.int32)

    @property
    def identity(self) -> Mapping[str, str]:
        """What a block holds depends on nothing: token ids are what they are."""
        return {"backend": "null", "block": f"{BLOCK_TOKENS} token ids"}

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The blocks, (total_blocks, 128), writable."""
        return self._blocks.view(np.uint8)

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """One step; gives logits always and leaves tokens to the caller."""
        self._check(plan)
        copy_blocks(self._blocks, plan.copies)
        lengths = []
        for index, (start, stop) in enumerate(zip(plan.starts[:-1], plan.starts[1:], strict=True)):
            positions = plan.positions[start:stop]
            blocks = plan.block_tables[index][positions // BLOCK_TOKENS]
            if blocks.min() < 0 or blocks.max() >= self.total_blocks:
                raise ValueError(f"sequence {index} writes to a block that is none of the pool's")
            self._blocks[blocks, positions % BLOCK_TOKENS] = plan.token_ids[start:stop]
            lengths.append(positions + 1)
        owners = np.repeat(np.arange(len(lengths)), np.diff(plan.starts))
        known = np.concatenate(lengths)

        def prefix(token: int) -> NDArray[np.int32]:
            return self._prefix(plan.block_tables[owners[token]], int(known[token]))

        logits = np.full((len(plan.rows), self.vocabulary_size), -100.0, np.float32)
        for row, token in enumerate(plan.rows.tolist()):
            says = self._script(prefix(token))
            if isinstance(says, np.ndarray):
                logits[row] = says
            else:
                logits[row, says] = 0.0
        hidden = np.empty((len(plan.hidden_rows), self.hidden_size), np.float32)
        for row, token in enumerate(plan.hidden_rows.tolist()):
            hidden[row] = _hidden_state(prefix(token))
        self.steps += 1
        return logits_only(logits, hidden)

    def close(self) -> None:
        """Forgets all blocks."""
        self._blocks[:] = -1

    def _prefix(self, table: NDArray[np.int32], length: int) -> NDArray[np.int32]:
        blocks = table[: -(-length // BLOCK_TOKENS)]
        if blocks.min() < 0:
            raise ValueError("a block table ends before its sequence does")
        prefix = self._blocks[blocks].reshape(-1)[:length]
        if prefix.min() < 0:
            raise ValueError("a sequence reads positions that nobody has computed")
        return prefix

    def _check(self, plan: StepPlan) -> None:
        tokens, wanted = len(plan.token_ids), len(plan.rows)
        if not 0 < tokens <= self.max_step_tokens or wanted > self.max_step_rows:
            raise ValueError(f"a step of {tokens} tokens and {wanted} rows is out of bounds")
        if plan.starts[0] != 0 or plan.starts[-1] != tokens or np.diff(plan.starts).min() < 1:
            raise ValueError(f"starts {plan.starts} do not divide {tokens} tokens")
        same = np.repeat(plan.positions[plan.starts[:-1]] - plan.starts[:-1], np.diff(plan.starts))
        if not np.array_equal(plan.positions, same + np.arange(tokens)):
            raise ValueError("a sequence's positions must be consecutive")
        if plan.positions.min() < 0 or plan.positions.max() >= self.context_length:
            raise ValueError("a position is outside the context")
        for rows in (plan.rows, plan.hidden_rows):
            if np.diff(rows).min(initial=1) < 1 or not np.all(rows < tokens):
                raise ValueError(f"rows {rows} must be ascending token indices")
        if plan.token_ids.min() < 0 or plan.token_ids.max() >= self.vocabulary_size:
            raise ValueError("a token id is outside the vocabulary")


def _hidden_state(prefix: NDArray[np.int32]) -> tuple[float, float, float, float]:
    weighted = float(np.sqrt(1.0 + np.arange(len(prefix))) @ prefix)
    return 1 / (1 + int(prefix[-1])), len(prefix) - 1, int(prefix.sum()), weighted
