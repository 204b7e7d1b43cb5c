"""NF4: blocks of 64 or 128 inputs with their largest magnitude, and 16 levels between -1 and 1.

The levels are quantiles of the normal distribution (Dettmers et al. 2023, "QLoRA", appendix E), in
the figures of bitsandbytes' table; a code is the number of the level nearest to W / absmax, the
lower one of two that are equally near.

A stored row is its codes, two a byte, element 2 i in the lower half; then its blocks' absmax in
float16: w = level[code] * absmax. Codes are chosen with the absmax as it was before that rounding,
which is how bitsandbytes, keeping float32, chooses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import grouped, half_bytes, halves, pack_pairs, pairs, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

NF4_LEVELS = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)

_BOUNDS = (NF4_LEVELS[1:] + NF4_LEVELS[:-1]) / np.float32(2)

_TINIEST = np.float32(1e-38)
"""Blocks below it are zeros: its inverse is the largest that float32 can be trusted with."""


def decode_nf4(rows: NDArray[np.uint8], inputs: int, block: int) -> NDArray[np.float32]:
    """(n, bytes) -> (n, inputs) float32."""
    end = -(-inputs // 2)
    return NF4_LEVELS[pairs(rows[:, :end], inputs)] * spread(halves(rows[:, end:]), block, inputs)


def encode_nf4(weights: NDArray[np.float32], block: int) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, bytes). Raises `OverflowError` for an absmax beyond float16."""
    blocks = grouped(weights, block)
    absmax = np.abs(blocks).max(axis=2)
    scaled = blocks * (np.float32(1) / np.maximum(absmax, _TINIEST))[:, :, None]
    # Fifteen passes over data in the cache are faster than a search for each weight.
    codes = np.zeros(scaled.shape, np.uint8)
    for bound in _BOUNDS:
        codes += scaled > bound
    codes = codes.reshape(len(weights), -1)[:, : weights.shape[1]]
    return np.concatenate([pack_pairs(codes), half_bytes(absmax)], axis=1)
