"""Orthogonal matrices that spread what is large in a few dimensions evenly over all.

Ashkboos et al. 2024, "QuaRot": a Hadamard matrix with random signs. A width of m * 2^k is the
Kronecker product of an orthogonal matrix for m and Sylvester's Hadamard matrix for 2^k. For m it
takes Paley's Hadamard matrices (1933) of order q + 1 and 2 (q + 1), q a prime, where one fits, as
for 576 = 36 * 16, 896 = 28 * 32 and 1536 = 12 * 128; and a random orthogonal matrix otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import FarthingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDEST = 1 << 14


def rotation(width: int, seed: int) -> NDArray[np.float32]:
    """An orthogonal (width, width) matrix; x @ rotation is the rotated x. Equal seeds, equal bits.

    Raises `FarthingError` for a width below 1 or above 16,384.
    """
    if not 1 <= width <= _WIDEST:
        raise FarthingError(f"a rotation is made for a width of 1 to {_WIDEST}, not {width}")
    generator = np.random.default_rng(seed)
    signs = generator.choice(np.array([-1.0, 1.0]), width)
    odd = width // (width & -width)
    matrix = _hadamard(width, odd)
    if matrix is None:
        matrix = np.kron(_random_orthogonal(odd, generator), _sylvester(width // odd))
    # Columns of a Hadamard matrix have the length of the square root of their number.
    scaled: NDArray[np.float64] = signs[:, None] * matrix / np.linalg.norm(matrix[:, 0])
    return scaled.astype(np.float32)


def _hadamard(width: int, odd: int) -> NDArray[Any] | None:
    """A matrix of +-1 with orthogonal columns, where the constructions used here have one."""
    if odd == 1:
        return _sylvester(width)
    order = odd
    while order <= width:
        if width % order == 0 and order % 4 == 0:
            paley = _paley(order)
            if paley is not None:
                return np.kron(paley, _sylvester(width // order))
        order *= 2
    return None


def _sylvester(order: int) -> NDArray[np.float64]:
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix


def _paley(order: int) -> NDArray[np.float64] | None:
    if _is_prime(order - 1):  # of the form 4 n + 3
        skew = _bordered(order - 1, -1.0)
        return np.eye(order) + skew
    half = order // 2 - 1
    if half % 4 == 1 and _is_prime(half):
        symmetric = _bordered(half, 1.0)
        return np.kron(symmetric, np.array([[1.0, 1.0], [1.0, -1.0]])) + np.kron(
            np.eye(len(symmetric)), np.array([[1.0, -1.0], [-1.0, -1.0]])
        )
    return None


def _bordered(prime: int, corner: float) -> NDArray[np.float64]:
    """Jacobsthal's matrix of differences that are squares modulo `prime`, with a border of ones."""
    character = np.full(prime, -1.0)
    character[np.arange(1, prime) ** 2 % prime] = 1.0
    character[0] = 0.0
    numbers = np.arange(prime)
    matrix = np.zeros((prime + 1, prime + 1))
    matrix[0, 1:] = 1.0
    matrix[1:, 0] = corner
    matrix[1:, 1:] = character[(numbers[:, None] - numbers) % prime]
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _random_orthogonal(order: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Uniform over rotations and reflections: QR of normal numbers, R's diagonal made positive."""
    q, r = np.linalg.qr(generator.standard_normal((order, order)))
    uniform: NDArray[np.float64] = q * np.sign(r.diagonal())
    return uniform
