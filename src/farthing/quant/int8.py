"""INT8, symmetric, one scale a row or a tensor: INT8_ROW and INT8_TENSOR.

    scale = max |W| / 127
    code  = clamp(round(W / scale), -128, 127)
    w     = code * scale

A stored row is K int8 codes, then the scale in float32; with one scale a tensor, each row holds it.
round takes halves to even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decode_int8(rows: NDArray[np.uint8], inputs: int) -> NDArray[np.float32]:
    """(n, inputs + 4) bytes -> (n, inputs) float32."""
    scale: NDArray[np.float32] = np.ascontiguousarray(rows[:, inputs:]).view("<f4")
    return rows[:, :inputs].view(np.int8) * scale


def encode_int8(
    weights: NDArray[np.float32], largest: np.float32 | None = None
) -> NDArray[np.uint8]:
    """(n, inputs) float32 -> (n, inputs + 4) bytes.

    `largest` is the largest magnitude that the scale spans, where it is not the row's own.
    """
    if largest is None:
        magnitudes = np.abs(weights).max(axis=1, keepdims=True)
    else:
        magnitudes = np.full((len(weights), 1), largest)
    scale = magnitudes / np.float32(127)
    scaled = np.divide(weights, scale, out=np.zeros_like(weights), where=scale != 0)
    codes = np.clip(np.rint(scaled), -128, 127).astype(np.int8)
    return np.concatenate([codes.view(np.uint8), scale.astype("<f4").view(np.uint8)], axis=1)
