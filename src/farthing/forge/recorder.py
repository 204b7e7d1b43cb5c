"""A backend that keeps, of each token it samples, what it was drawn from: a student's soft labels.

The engine samples as ever. A row is known by its request's seed and the position that its token
takes, so each text must have a seed of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.wrapped import WrappedBackend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.core import StepPlan, StepResult

KEPT = 64
"""Of each distribution the likeliest tokens are kept, and the sum over all."""


@dataclass(frozen=True)
class Distribution:
    """The likeliest tokens in any order, their log-probabilities at temperature 1, and the
    logarithm of the sum of all tokens' probabilities, each to the power of 1 / temperature.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float16]
    log_total: float


class RecordingBackend(WrappedBackend):
    """Runs another backend and keeps `taken`, by (seed, position), for rows that are sampled.

    `temperature` is that of the labels. It has no more tokens than the vocabulary to keep.
    """

    def __init__(self, backend: Backend, temperature: float = 1.0) -> None:
        super().__init__(backend)
        self.taken: dict[tuple[int, int], Distribution] = {}
        self._temperature = temperature

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """A step of the other backend, of which the distributions are kept."""
        recorded = plan.sampling is not None and len(plan.rows) > 0
        result = super().run(plan, want_logits or recorded)
        if plan.sampling is not None and result.logits is not None and recorded:
            keys = zip(plan.sampling.seed.tolist(), plan.sampling.position.tolist(), strict=True)
            found = distributions(result.logits, self._temperature)
            self.taken.update(zip(keys, found, strict=True))
        return result


def distributions(logits: NDArray[np.float32], temperature: float) -> list[Distribution]:
    """What is kept of each row of `logits` (R, V): of the likeliest at most `KEPT` tokens."""
    kept = min(KEPT, logits.shape[1])
    below = logits - logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(below).sum(axis=1, dtype=np.float64))
    softened = log_total
    if temperature != 1.0:
        softened = np.log(np.exp(below / np.float32(temperature)).sum(axis=1, dtype=np.float64))
    places = np.argpartition(below, logits.shape[1] - kept, axis=1)[:, -kept:]
    logprobs = np.take_along_axis(below, places, axis=1) - log_total[:, None]
    # In units of the normalised probabilities, whose logarithms are `log_total` lower.
    totals = softened - log_total / temperature
    return [
        Distribution(ids, found, float(total))
        for ids, found, total in zip(
            places.astype(np.int32), logprobs.astype(np.float16), totals, strict=True
        )
    ]
