"""What a request wants of its own prompt's rows: the scores of its tokens, or their mean state.

Either is gathered in token order, however the prompt was cut into steps, and keeps what it has
when its sequence is preempted: positions that were `taken` are not wanted again. What the prefix
index has of a prompt comes without rows, so positions not taken yet are never reused.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from farthing.core import StepResult

_TOP = Struct("=id")


class TokenLogprob:
    """The log-probability of a chosen token, and of the likeliest ones as (id, log-probability).

    A long text has thousands of these, so the others are kept packed. Not to be changed.
    """

    __slots__ = ("_packed", "logprob", "token_id")

    def __init__(self, token_id: int, logprob: float, top: Iterable[tuple[int, float]]) -> None:
        self.token_id = token_id
        self.logprob = logprob
        self._packed = b"".join(_TOP.pack(*each) for each in top)

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The likeliest ones, in falling order."""
        return tuple(_TOP.iter_unpack(self._packed))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenLogprob):
            return NotImplemented
        mine = self.token_id, self.logprob, self.top
        return mine == (other.token_id, other.logprob, other.top)

    def __hash__(self) -> int:
        return hash((self.token_id, self.logprob))

    def __repr__(self) -> str:
        return f"TokenLogprob({self.token_id}, {self.logprob}, {self.top})"


def token_logprob(result: StepResult, row: int, alternatives: int) -> TokenLogprob:
    """What a step's result says of a row, with at most so many of the likeliest."""
    ids = result.top_ids[row, :alternatives].tolist()
    values = result.top_logprobs[row, :alternatives].tolist()
    top = (pair for pair in zip(ids, values, strict=True) if pair[0] >= 0)
    return TokenLogprob(int(result.tokens[row]), float(result.logprob[row]), top)


class PromptScores:
    """The log-probability of each token of a prompt given those before it; the first has none.

    The row of position i, which the head is computed for, scores token i + 1.
    """

    def __init__(self, length: int, alternatives: int) -> None:
        self.entries: list[TokenLogprob | None] = [None]
        self.end = length - 1
        self.alternatives = alternatives

    @property
    def taken(self) -> int:
        """How many positions' rows are in."""
        return len(self.entries) - 1

    def take(self, result: StepResult, row: int) -> None:
        """The row of the next position."""
        self.entries.append(token_logprob(result, row, self.alternatives))


class PromptMean:
    """The mean over a prompt's tokens of their final hidden states.

    The states are added one after another, in token order and float32; the sum is divided by their
    number, and the mean by its Euclidean norm, which is summed in float64.
    """

    def __init__(self, length: int) -> None:
        self.taken = 0
        self.end = length
        self._sum: NDArray[np.float32] | None = None

    def take(self, states: NDArray[np.float32]) -> None:
        """The states (N, hidden size) of the next N positions."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for state in states:
                self._sum += state
        self.taken += len(states)

    def vector(self) -> NDArray[np.float32]:
        """The mean (hidden size,) of length 1, once all states are in.

        Raises `FarthingError` when it is not made of numbers.
        """
        if self._sum is None or self.taken < self.end:
            raise RuntimeError("a mean is asked for before all of its prompt is computed")
        mean = self._sum / np.float32(self.end)
        norm = np.sqrt(np.square(mean, dtype=np.float64).sum())
        if not np.isfinite(norm):
            raise FarthingError(
                "the text has no embedding: the model's hidden states are not numbers. The model "
                "file is damaged, or its weights overflow: fetch it again"
            )
        return mean if norm == 0 else (mean / norm).astype(np.float32)
