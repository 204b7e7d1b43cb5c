"""NF4: blocks of 64 or 128 inputs with their largest magnitude, and 16 levels between -1 and 1.

The levels are quantiles of the normal distribution (Dettmers et al. 2023, "QLoRA", appendix E), in
the figures of bitsandbytes' table; a code is the number of the level nearest to W / absmax, the
lower one of two that are equally near.

A stored row is its codes, two a byte, element 2 i in the lower half; then its blocks' absmax in
float16: w = level[code] * absmax. Codes are chosen with the absmax as it was before that rounding,
which is how bitsandbytes, keeping float32, chooses them.

Double quantisation (QLoRA, section 3; bitsandbytes' `compress_statistics`) stores each absmax in a
byte. A row holds, behind its codes, a byte for each block, then two float16, scale and mean:

    absmax = mean + scale * map[byte], at least 0 and at most 65,504, rounded to float16

where mean is that of the row's absmax and scale the largest distance from it. map is bitsandbytes'
"dynamic" one: a sign, a decade from 1e-6 to 1, and in that the more evenly spaced values the higher
it is. There, one mean serves a tensor and one scale 256 blocks: here both serve a row, which
can so be read alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import grouped, half_bytes, halves, inverse, pack_pairs, pairs, spread

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


def _dynamic_map() -> NDArray[np.float32]:
    """256 ascending values from -0.993 to 1: the middles of 2^i parts of each decade, and 0 and 1.

    They are bitsandbytes' `create_dynamic_map()`.
    """
    positive = [np.zeros(1)]
    for exponent in range(7):
        edges = np.linspace(0.1, 1, 2**exponent + 1)
        positive.append(10.0 ** (exponent - 6) * (edges[1:] + edges[:-1]) / 2)
    values = np.concatenate(positive)
    return np.sort(np.concatenate([values, -values[1:], [1.0]])).astype(np.float32)


DYNAMIC_MAP = _dynamic_map()
_MAP_BOUNDS = (DYNAMIC_MAP[1:] + DYNAMIC_MAP[:-1]) / np.float32(2)


def decode_nf4(rows: NDArray[np.uint8], inputs: int, block: int) -> NDArray[np.float32]:
    """(n, bytes) -> (n, inputs) float32."""
    end = -(-inputs // 2)
    return NF4_LEVELS[pairs(rows[:, :end], inputs)] * spread(halves(rows[:, end:]), block, inputs)


def decode_nf4_double(rows: NDArray[np.uint8], inputs: int, block: int) -> NDArray[np.float32]:
    """(n, bytes) -> (n, inputs) float32."""
    return decode_nf4(with_absmax(rows, inputs, block), inputs, block)


def with_absmax(rows: NDArray[np.uint8], inputs: int, block: int) -> NDArray[np.uint8]:
    """Double-quantised rows (n, bytes) -> the rows without it that decode to the same weights."""
    end = -(-inputs // 2)
    scale, mean = np.split(halves(rows[:, -4:]), 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        absmax = np.clip(mean + scale * DYNAMIC_MAP[rows[:, end:-4]], 0, 65504).astype("<f2")
    return np.concatenate([rows[:, :end], absmax.view(np.uint8)], axis=1)


def encode_nf4(weights: NDArray[np.float32], block: int) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, bytes). Raises `OverflowError` for an absmax beyond float16."""
    absmax, codes = _coded(weights, block)
    return np.concatenate([codes, half_bytes(absmax)], axis=1)


def encode_nf4_double(weights: NDArray[np.float32], block: int) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, bytes). Raises `OverflowError` for an absmax beyond float16."""
    absmax, codes = _coded(weights, block)
    half_bytes(absmax.max(axis=1, keepdims=True))
    mean = half_bytes(absmax.mean(axis=1, keepdims=True))
    distance = absmax - halves(mean)
    scale = half_bytes(np.abs(distance).max(axis=1, keepdims=True))
    share = distance * inverse(halves(scale))
    positions = np.searchsorted(_MAP_BOUNDS, share).astype(np.uint8)
    return np.concatenate([codes, positions, scale, mean], axis=1)


def _coded(
    weights: NDArray[np.float32], block: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """(n, blocks) absmax as they are before rounding, and the codes, packed."""
    blocks = grouped(weights, block)
    absmax = np.abs(blocks).max(axis=2)
    scaled = blocks * (np.float32(1) / np.maximum(absmax, _TINIEST))[:, :, None]
    # Fifteen passes over data in the cache are faster than a search for each weight.
    codes = np.zeros(scaled.shape, np.uint8)
    for bound in _BOUNDS:
        codes += scaled > bound
    return absmax, pack_pairs(codes.reshape(len(weights), -1)[:, : weights.shape[1]])
