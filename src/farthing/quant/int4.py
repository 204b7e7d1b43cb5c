"""INT4 with one float16 scale a tensor, a row, or a group of 32, 64 or 128 inputs.

    symmetric    scale = max |W| / 7            code = clamp(round(W / scale), -8, 7)
                 w = code * scale
    asymmetric   scale = (high - low) / 15      code = clamp(round(W / scale) + zero, 0, 15)
                 zero = round(-low / scale)     w = (code - zero) * scale

high and low are the group's largest and smallest weight and 0, so that the zero fits 4 bits and a
weight of 0 is exact. A scale is rounded to float16 before a code is chosen with it; round takes
halves to even, and W / scale is W times the rounded 1 / scale, as in torchao's affine quantisation.
A group too small for a float16 scale (below 2^-25 after the division) becomes zeros.

A stored row is its codes, two a byte, element 2 i in the lower half (symmetric: code + 8); then its
scales; then, asymmetric, its zeros, two a byte in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import (
    grouped,
    half_bytes,
    halves,
    inverse,
    pack_pairs,
    pairs,
    spread,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decode_int4(rows: NDArray[np.uint8], inputs: int, group: int) -> NDArray[np.float32]:
    """(n, bytes) -> (n, inputs) float32; `group` 0: a scale for the row."""
    codes, tail = _codes(rows, inputs)
    return (codes - np.float32(8)) * spread(halves(tail), group, inputs)


def decode_int4_asymmetric(rows: NDArray[np.uint8], inputs: int, group: int) -> NDArray[np.float32]:
    """(n, bytes) -> (n, inputs) float32."""
    codes, tail = _codes(rows, inputs)
    groups = -(-inputs // group)
    zeros = pairs(tail[:, 2 * groups :], groups).astype(np.float32)
    scales = halves(tail[:, : 2 * groups])
    return (codes - spread(zeros, group, inputs)) * spread(scales, group, inputs)


def encode_int4(
    weights: NDArray[np.float32], group: int, largest: np.float32 | None = None
) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, bytes).

    `largest` is the largest magnitude that the scale spans, where it is not the group's own.
    Raises `OverflowError` for a scale beyond float16.
    """
    groups = grouped(weights, group)
    if largest is None:
        magnitudes = np.abs(groups).max(axis=2)
    else:
        magnitudes = np.full(groups.shape[:2], largest)
    stored = half_bytes(magnitudes / np.float32(7))
    codes = np.rint(groups * inverse(halves(stored))[:, :, None])
    return np.concatenate([_packed(np.clip(codes, -8, 7) + 8, weights.shape), stored], axis=1)


def encode_int4_asymmetric(weights: NDArray[np.float32], group: int) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, bytes). Raises `OverflowError` for a scale beyond float16."""
    groups = grouped(weights, group)
    low = np.minimum(groups.min(axis=2), 0)
    with np.errstate(over="ignore"):
        stored = half_bytes((np.maximum(groups.max(axis=2), 0) - low) / np.float32(15))
    scales = halves(stored)
    zeros = np.divide(-low, scales, out=np.zeros_like(low), where=scales != 0)
    zeros = np.clip(np.rint(zeros), 0, 15)
    codes = np.rint(groups * inverse(scales)[:, :, None]) + zeros[:, :, None]
    return np.concatenate(
        [
            _packed(np.clip(codes, 0, 15), weights.shape),
            stored,
            pack_pairs(zeros.astype(np.uint8)),
        ],
        axis=1,
    )


def _codes(rows: NDArray[np.uint8], inputs: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The codes of rows as they are stored, and the bytes behind them."""
    end = -(-inputs // 2)
    return pairs(rows[:, :end], inputs).astype(np.float32), rows[:, end:]


def _packed(codes: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """(n, groups, group) codes -> the (n, inputs) of `shape`, packed."""
    return pack_pairs(codes.astype(np.uint8).reshape(shape[0], -1)[:, : shape[1]])
