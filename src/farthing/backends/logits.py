"""The result of a backend that does not sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farthing.core import StepResult


def logits_only(
    logits: NDArray[np.float32], hidden: NDArray[np.float32] | None = None
) -> StepResult:
    """A StepResult of `logits` (R, vocabulary) float32 whose tokens are left to the caller."""
    return StepResult(
        tokens=np.empty(0, np.int32),
        logprob=np.empty(0, np.float32),
        top_ids=np.empty((0, 0), np.int32),
        top_logprobs=np.empty((0, 0), np.float32),
        logits=logits,
        hidden=hidden,
    )
