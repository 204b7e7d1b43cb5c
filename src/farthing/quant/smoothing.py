"""SmoothQuant: part of an input's range is moved from the activations into the weights.

Xiao et al. 2022, "SmoothQuant": input j is divided by s_j = max |x_j|^alpha / max |w_j|^(1-alpha)
and its weights are multiplied by it, so that one scale for all of a token's activations, or for a
whole tensor of them, loses less. Dividing is folded into what makes the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = np.float32(1e5)


def smooth_scales(
    activation_largest: NDArray[np.float32],
    weight_largest: NDArray[np.float32],
    alpha: float = 0.5,
) -> NDArray[np.float32]:
    """What multiplies each input's weights and divides the input, (K,).

    The arguments are the largest magnitude of each input over calibration tokens, and that of its
    weights over all rows of all matrices that read it. `alpha` 0 evens out the weights, 1 the
    activations. An input or a column that is zero throughout is left alone; no scale is beyond
    1e-5 to 1e5.
    Raises `FarthingError` for shapes that differ, magnitudes that are negative or not finite, and
    an alpha outside of 0 to 1.
    """
    if not 0 <= alpha <= 1:
        raise FarthingError(f"SmoothQuant's alpha must be from 0 to 1, not {alpha!r:.40}")
    if activation_largest.ndim != 1 or activation_largest.shape != weight_largest.shape:
        raise FarthingError(
            f"SmoothQuant was given the ranges of {activation_largest.shape} activations and "
            f"{weight_largest.shape} columns of weights: they must be of the same inputs"
        )
    for what, values in (("activations", activation_largest), ("weights", weight_largest)):
        if not (np.isfinite(values) & (values >= 0)).all():
            raise FarthingError(
                f"the largest magnitudes of the {what} must be finite numbers from 0, which these "
                "are not: the model overflows on the calibration text, or its file is damaged"
            )
    zero = (activation_largest == 0) | (weight_largest == 0)
    activations = np.where(zero, 1, activation_largest).astype(np.float64)
    weights = np.where(zero, 1, weight_largest).astype(np.float64)
    scales = activations**alpha / weights ** (1 - alpha)
    return np.clip(scales, 1 / _MOST, _MOST).astype(np.float32)
