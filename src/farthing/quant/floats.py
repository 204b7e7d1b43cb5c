"""The formats without codes: F32, F16 and BF16. Blocks are single weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decode_f32(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 4) bytes -> (n, 1) float32."""
    return blocks.view("<f4")


def decode_f16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2) bytes -> (n, 1) float32, exact."""
    return blocks.view("<f2").astype(np.float32)


def decode_bf16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2) bytes, the upper half of a float32 each -> (n, 1) float32, exact."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def encode_f32(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(n, 1) float32 -> (n, 4) bytes."""
    return weights.astype("<f4").view(np.uint8)


def encode_f16(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(n, 1) float32 -> (n, 2) bytes, rounded to nearest even.

    Raises `OverflowError` for a finite number beyond float16: from 65,520 on.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        halves = weights.astype("<f2")
    if (np.isinf(halves) & np.isfinite(weights)).any():
        raise OverflowError("beyond float16")
    return halves.view(np.uint8)


def encode_bf16(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(n, 1) float32 -> (n, 2) bytes, rounded to nearest even; a NaN is made quiet."""
    bits = weights.view(np.uint32)
    # Half of the last kept bit's weight, less one where that bit is even, carries into it.
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, quiet, rounded).astype("<u2").view(np.uint8)
