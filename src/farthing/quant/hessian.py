"""Second moments of a linear's inputs: what says how much an error in a weight changes the output.

The matrix H = mean over tokens of x x^T, (K, K) for K inputs, is called the Hessian, since that of
the mean squared output error of each row of weights is 2 H (Frantar et al. 2022, "GPTQ").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import FarthingError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_hessian(hessian: NDArray[Any], inputs: int) -> None:
    """Raises `FarthingError` unless this can be the mean of x x^T for x of `inputs` numbers."""
    if hessian.shape != (inputs, inputs):
        raise FarthingError(
            f"weights with {inputs} inputs need a Hessian of shape {(inputs, inputs)}, not "
            f"{hessian.shape}: calibrate this linear's own input"
        )
    if not np.isfinite(hessian).all():
        raise FarthingError(
            "the Hessian holds an infinity or a NaN: the model's activations overflow on the "
            "calibration text; calibrate in a wider precision, or with another text"
        )
    diagonal = hessian.diagonal()
    if (diagonal < 0).any() or np.abs(hessian - hessian.T).max() > 1e-3 * diagonal.max():
        raise FarthingError(
            "the Hessian is not symmetric with a diagonal of squares, so it is no mean of x x^T: "
            "collect it again"
        )


def output_error(difference: NDArray[np.float32], hessian: NDArray[Any]) -> float:
    """The mean over tokens of |D x|^2, which is tr(D H D^T), of a difference D (N, K) in weights.

    In float32 with a float64 sum.
    """
    second = hessian.astype(np.float32, copy=False)
    return float(np.einsum("nk,nk->", difference @ second, difference, dtype=np.float64))


def divided_hessian(hessian: NDArray[Any], scales: NDArray[np.float32]) -> NDArray[Any]:
    """The Hessian of the inputs x / `scales`, scales being (K,)."""
    divided: NDArray[Any] = hessian / np.outer(scales, scales).astype(hessian.dtype)
    return divided
