"""IQ4_NL: 32 weights, one scale, and 16 levels that are not evenly spaced.

Layout: d f16 | 16 bytes of nibbles (weight i below, weight i + 16 above); w = d * level[q]. The
levels are ggml's `kvalues_iq4nl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import half, nibbles

if TYPE_CHECKING:
    from numpy.typing import NDArray

IQ4_NL_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def decode_iq4_nl(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18) bytes -> (n, 32) float32."""
    return half(blocks, 0) * IQ4_NL_LEVELS[nibbles(blocks[:, 2:])]
