"""What the blocks of several formats have in common: half-precision scales and packed codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, b) bytes -> (n, 2 b) values of 0 to 15: all lower halves, then all upper ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def half(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """The float16 at byte `start` of every block, as (n, 1) float32."""
    return blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)
