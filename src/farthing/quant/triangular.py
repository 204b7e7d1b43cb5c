"""The triangular factor of a matrix's inverse, worked out in the matrix's own memory.

A Hessian of a wide layer is larger than its weights, so a library's copies of it would be what
quantising takes most memory for. Only blocks are copied here; products of blocks do the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 128


def inverse_factor(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper U with matrix^-1 = U^T U, a view of `matrix` (K, K), which is written over.

    With J the exchange of first and last and J M J = L L^T, M is (J L J) (J L J)^T, and J L J is
    the upper triangular inverse of U; so U is J L^-1 J. Raises `np.linalg.LinAlgError` unless the
    matrix, which must be symmetric, is positive definite.
    """
    exchanged = matrix[::-1, ::-1]
    _factorise(exchanged)
    _invert(exchanged)
    return matrix


def _factorise(matrix: NDArray[np.float64]) -> None:
    """Turns a symmetric matrix into its lower Cholesky factor, some columns after others."""
    for first in range(0, len(matrix), _BLOCK):
        end = first + _BLOCK
        columns = matrix[first:, first:end]
        columns -= matrix[first:, :first] @ matrix[first:end, :first].T
        corner = np.linalg.cholesky(columns[:_BLOCK])
        columns[:_BLOCK] = corner
        columns[_BLOCK:] = columns[_BLOCK:] @ np.linalg.inv(corner).T
        matrix[first:end, end:] = 0


def _invert(lower: NDArray[np.float64]) -> None:
    """Turns a lower triangular matrix into its inverse."""
    half = len(lower) // 2
    if len(lower) <= _BLOCK:
        lower[:] = np.tril(np.linalg.inv(lower))
        return
    first, last, corner = lower[:half, :half], lower[half:, half:], lower[half:, :half]
    _invert(first)
    _invert(last)
    corner[:] = last @ (corner @ first)
    corner *= -1
