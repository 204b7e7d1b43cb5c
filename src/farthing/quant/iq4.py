"""IQ4_NL: 32 weights, one scale, and 16 levels that are not evenly spaced.

Layout: d f16 | 16 bytes of nibbles (weight i below, weight i + 16 above); w = d * level[q]. The
levels are ggml's `kvalues_iq4nl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import half, half_bytes, nibbles, pack_nibbles
from farthing.quant.scale_search import inverse_or_zero

if TYPE_CHECKING:
    from numpy.typing import NDArray

IQ4_NL_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

# All bounds between levels are multiples of a half, so the level nearest to a number, the upper of
# two, is that of the multiple of a half below it.
_MULTIPLES = np.arange(-128, 128, 0.5)
_BOUNDS = (IQ4_NL_LEVELS[1:] + IQ4_NL_LEVELS[:-1]) / 2
_CODES = np.searchsorted(_BOUNDS, _MULTIPLES, side="right").astype(np.uint8)
_ROUNDED = IQ4_NL_LEVELS[_CODES]

_CANDIDATES = (127, *range(-134, -119))
"""What the weight farthest from zero is scaled to."""


def decode_iq4_nl(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18) bytes -> (n, 32) float32."""
    return half(blocks, 0) * IQ4_NL_LEVELS[nibbles(blocks[:, 2:])]


def encode_iq4_nl(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 18) bytes.

    As ggml's reference: of 16 candidates, the scale of the least error weighted with w^2, or, where
    there is an (n, 32) importance q, with q sqrt(2 mean w^2 + w^2).
    Raises `OverflowError` for a scale beyond float16.
    """
    squares = np.square(weights)
    if importance is None:
        weighed = squares
    else:
        weighed = importance * np.sqrt(2 * squares.mean(axis=1, keepdims=True) + squares)
    farthest = np.take_along_axis(weights, np.abs(weights).argmax(axis=1)[:, None], axis=1)
    # One weight of each block after the other: sums over a block are sums of rows.
    columns = np.ascontiguousarray(weights.T), np.ascontiguousarray(weighed.T)
    scale = _best_scale(*columns, inverse_or_zero(farthest[:, 0]))[:, None]
    codes = _CODES[_below(weights * inverse_or_zero(scale))]
    return np.concatenate([half_bytes(scale), pack_nibbles(codes)], axis=1)


def _best_scale(
    weights: NDArray[np.float32], weighed: NDArray[np.float32], per_farthest: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(32, count), their importance, and the inverse of the farthest weight -> (count,)."""
    pulls = weighed * weights
    levels, squares = np.empty_like(weights), np.empty_like(weights)
    scales, best = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
    for candidate in _CANDIDATES:
        np.take(_ROUNDED, _below(weights * (candidate * per_farthest)), out=levels, mode="clip")
        product = np.einsum("lc,lc->c", pulls, levels).astype(np.float64)
        np.multiply(levels, levels, out=squares)
        energy = np.einsum("lc,lc->c", weighed, squares).astype(np.float64)
        scale = np.divide(product, energy, out=np.zeros_like(product), where=energy > 0)
        better = scale * product > best
        best[better] = (scale * product)[better]
        scales[better] = scale[better]
    return scales.astype(np.float32)


def _below(scaled: NDArray[np.float32]) -> NDArray[np.intp]:
    """The position in `_MULTIPLES` of the one below each."""
    positions = np.clip(2 * scaled + 256, 0, len(_MULTIPLES) - 1)
    return positions.astype(np.intp)
