"""Inputs of a linear as calibration meets them, and what they say about weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray


def random_inputs(seed: int, tokens: int, inputs: int) -> NDArray[np.float32]:
    """Correlated, of widely different sizes, and in a few dimensions far larger."""
    generator = np.random.default_rng(seed)
    mixed = generator.standard_normal((tokens, inputs)) @ (
        generator.standard_normal((inputs, inputs)) / np.sqrt(inputs)
    )
    sizes = np.exp(0.7 * generator.standard_normal(inputs))
    sizes[:: max(1, inputs // 4)] *= 8
    return (mixed * sizes).astype(np.float32)


def hessian_of(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean of x x^T."""
    wide = x.astype(np.float64)
    return wide.T @ wide / len(wide)


def stored(data: NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """What bytes of a format decode to."""
    return decode(StoredTensor("weights", name, shape, data))


def error_of(
    rounded: NDArray[np.floating], weights: NDArray[np.float32], x: NDArray[np.float32]
) -> float:
    """The mean squared error of the output, summed over outputs, by running the inputs through."""
    difference = rounded.astype(np.float64) - weights
    return float(np.square(x.astype(np.float64) @ difference.T).sum(axis=1).mean())
