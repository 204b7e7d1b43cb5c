"""LLM.int8(): the few inputs with large activations are multiplied apart, in full precision.

Dettmers et al. 2022, "LLM.int8()". There the batch at hand says which inputs these are. Here
calibration fixes them, so that no neighbour in a batch changes a token's bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def outlier_columns(largest: NDArray[np.float32], threshold: float = 6.0) -> NDArray[np.int32]:
    """The inputs, ascending, whose activations reached `threshold` in calibration.

    `largest` is the largest magnitude of each input over calibration tokens, (K,). Raises
    `FarthingError` for magnitudes that are negative or not finite, and a threshold not above 0.
    """
    if not 0 < threshold < np.inf:
        raise FarthingError(f"the threshold of outliers must be above 0, not {threshold!r:.40}")
    if largest.ndim != 1 or not (np.isfinite(largest) & (largest >= 0)).all():
        raise FarthingError(
            "the largest magnitudes of a linear's inputs must be one row of finite numbers from 0: "
            "the model's activations overflow on the calibration text; calibrate with another text"
        )
    return np.flatnonzero(largest >= threshold).astype(np.int32)


def split_columns(
    weights: NDArray[np.float32], columns: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (N, K) with zeros in `columns` (n,), and what stood there, (N, n).

    Raises `FarthingError` unless the columns ascend and the weights have them.
    """
    inputs = weights.shape[1]
    if columns.size and (
        columns[0] < 0 or columns[-1] >= inputs or not (np.diff(columns) > 0).all()
    ):
        raise FarthingError(
            f"the outlier columns {columns.tolist()!s:.80} must ascend from 0 and be fewer than "
            f"the {inputs} inputs: calibrate this linear's own input"
        )
    rest = weights.copy()
    rest[:, columns] = 0
    return rest, weights[:, columns]
