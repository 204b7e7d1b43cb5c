"""Multiply-accumulates and bytes of generating a text with and without a key-value cache, counted.

No machine enters: what is counted follows from the Program alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.models.program import Program


@dataclass(frozen=True)
class Products:
    """Multiply-accumulates of the last step of a text of `tokens` tokens, and of all its steps.

    Step t makes token t + 1 from t tokens of context, one row of logits each. With the cache it
    feeds the newest token; without, all of them.
    """

    tokens: int
    cached_step: int
    recomputed_step: int
    cached: int
    recomputed: int

    @property
    def ratio(self) -> float:
        """How many times more all steps take without the cache."""
        return self.recomputed / self.cached


def count_products(program: Program, tokens: int) -> Products:
    """Counts the steps of a text that begins with one token and ends with `tokens`.

    Products with weights, query times key, and softmax weight times value; nothing else multiplies
    pairwise.
    """
    per_token = per_row = 0
    attended = np.zeros(tokens, np.int64)
    for op in program.ops:
        if op.kind in ("linear", "logits"):
            outputs, inputs = program.weights[op.weights[0]].shape
            if program.values[op.output].wanted:
                per_row += outputs * inputs
            else:
                per_token += outputs * inputs
        elif op.kind == "attend":
            visible = np.arange(1, tokens + 1)
            if op.attributes["window"]:
                visible = np.minimum(visible, op.attributes["window"])
            attended += 2 * op.attributes["heads"] * op.attributes["head_dim"] * visible
    cached = _sum(attended) + tokens * (per_token + per_row)
    # Step t attends for positions 1 to t: position p is attended for in all steps from p on.
    again = int(np.dot(attended.astype(object), np.arange(tokens, 0, -1)))
    recomputed = again + per_token * (tokens * (tokens + 1) // 2) + tokens * per_row
    return Products(
        tokens,
        int(attended[-1]) + per_token + per_row,
        _sum(attended) + tokens * per_token + per_row,
        cached,
        recomputed,
    )


def _sum(counts: NDArray[np.int64]) -> int:
    return int(counts.sum(dtype=object))


def score_bytes(context: int, recomputed: bool) -> int:
    """Bytes of one head's attention scores at this context in fp32: of every token, or of one."""
    return 4 * context * (context if recomputed else 1)
