"""GPTQ: each column's rounding error is made good by the columns that are not rounded yet.

Frantar et al. 2022, "GPTQ: Accurate post-training quantization for generative pre-trained
transformers". With H the damped Hessian of the inputs and U the upper Cholesky factor of its
inverse (H^-1 = U^T U), columns are rounded in turn, and column k's error e_k = (w_k - q_k) / U_kk
is taken from each later column j as e_k U_kj. Scales are chosen before ("static groups"), so that
the order of columns is free: by falling diagonal of H, those that matter most come first, while
there are still others to make good for them ("act-order").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import FarthingError
from farthing.quant.hessian import check_hessian
from farthing.quant.rounding import Rounder
from farthing.quant.triangular import inverse_factor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 128
"""Columns whose errors reach all later ones in one matrix product."""

_PIECE_WEIGHTS = 1 << 21
"""Weights worked on at once; rows do not depend on each other."""


def encode_gptq(
    weights: NDArray[np.float32],
    name: str,
    hessian: NDArray[Any],
    damping: float = 0.01,
    *,
    by_importance: bool = True,
    ranges_of: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """The bytes of float32 weights (N, K) in a format, in the layout of `encode`.

    `hessian` is the mean of x x^T over calibration tokens, (K, K); `damping` times the mean of its
    diagonal is added to the diagonal. An input that was always zero is rounded on its own.
    `by_importance` rounds columns by falling diagonal rather than from left to right. `ranges_of`
    are weights for which scales are chosen in place of the true ones, such as clipped ones.
    Raises `FarthingError`: for a format whose codes are not chosen one by one, weights that it
    cannot store, and a Hessian of another shape, with a NaN or an infinity, or that is not positive
    definite.
    """
    rows, inputs = weights.shape
    check_hessian(hessian, inputs)
    order = _order(hessian, by_importance)
    factor = _inverse_factor(hessian, order, damping)
    spanned = weights if ranges_of is None else ranges_of
    if spanned.shape != weights.shape:
        raise FarthingError(
            f"weights of {weights.shape} cannot take their scales from weights of {spanned.shape}: "
            "give the same matrix, clipped"
        )
    largest = float(np.abs(spanned).max(initial=0))
    importance = hessian.diagonal().astype(np.float32)
    step = max(1, _PIECE_WEIGHTS // inputs)
    pieces = [
        _encode_rows(
            weights[first : first + step],
            Rounder(spanned[first : first + step], name, largest=largest, importance=importance),
            order,
            factor,
        )
        for first in range(0, rows, step)
    ]
    return np.concatenate(pieces)


def _order(hessian: NDArray[Any], by_importance: bool) -> NDArray[np.intp]:
    if by_importance:
        return np.argsort(-hessian.diagonal(), kind="stable")
    return np.arange(len(hessian))


def _inverse_factor(
    hessian: NDArray[Any], order: NDArray[np.intp], damping: float
) -> NDArray[np.float32]:
    """The upper U with (H + damping)^-1 = U^T U, for the inputs in that order."""
    if not damping >= 0:
        raise FarthingError(f"the damping must be a number from 0, not {damping!r:.40}")
    damped = hessian[np.ix_(order, order)].astype(np.float64, copy=False)
    diagonal = damped.diagonal()
    added = np.where(diagonal == 0, 1.0, damping * diagonal.mean())
    damped[np.diag_indices_from(damped)] += added
    try:
        factor = inverse_factor(damped).astype(np.float32)
    except np.linalg.LinAlgError:
        factor = np.full_like(damped, np.nan, np.float32)
    if not np.isfinite(factor).all():
        raise FarthingError(
            f"the Hessian is not positive definite with a damping of {damping:g}: calibrate with "
            "more tokens than the linear has inputs, or raise the damping (0.01 is usual)"
        )
    return factor


def _encode_rows(
    weights: NDArray[np.float32],
    rounder: Rounder,
    order: NDArray[np.intp],
    factor: NDArray[np.float32],
) -> NDArray[np.uint8]:
    columns = np.ascontiguousarray(weights.T[order])
    codes = np.empty(weights.shape[::-1], np.uint8)
    inputs = len(columns)
    errors = np.empty((min(_BLOCK, inputs), len(weights)), np.float32)
    for first in range(0, inputs, _BLOCK):
        end = min(first + _BLOCK, inputs)
        for k in range(first, end):
            done = k - first
            column = columns[k] - factor[first:k, k] @ errors[:done]
            codes[order[k]], rounded = rounder.nearest(column, int(order[k]))
            errors[done] = (column - rounded) / factor[k, k]
        columns[end:] -= factor[first:end, end:].T @ errors[: end - first]
    return rounder.pack(np.ascontiguousarray(codes.T))
