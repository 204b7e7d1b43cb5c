"""ggml's K-quants: 256 weights a block, whose sub-blocks have scales that are themselves codes.

    Q2_K   16 x 16 weights   w = d * s * q - dmin * m    s, m 4 bits   q 2 bits
    Q3_K   16 x 16 weights   w = d * (s - 32) * (q - 4)  s 6 bits      q 3 bits
    Q4_K    8 x 32 weights   w = d * s * q - dmin * m    s, m 6 bits   q 4 bits
    Q5_K    8 x 32 weights   w = d * s * q - dmin * m    s, m 6 bits   q 5 bits
    Q6_K   16 x 16 weights   w = d * s * (q - 32)        s int8        q 6 bits

Layouts are those of ggml-common.h. Each decoder takes (n, block bytes) and gives (n, 256) float32;
products are formed in ggml's order, so the floats equal those of the `gguf` package. The encoders
are in `kquants_encoding.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import fields, half

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WEIGHTS = 256


def _scaled(
    scales: NDArray[np.float32], codes: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales as (n, sub-blocks, 1) and codes as (n, sub-blocks, weights of one)."""
    count = len(scales)
    return scales[:, :, None], codes.reshape(count, scales.shape[1], -1)


def _affine(
    scales: NDArray[np.float32], minima: NDArray[np.float32], codes: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Scale times code minus minimum, scales and minima being (n, sub-blocks)."""
    scale, code = _scaled(scales, codes.astype(np.float32))
    return (scale * code - minima[:, :, None]).reshape(-1, _WEIGHTS)


def _six_bit_pairs(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(n, 12) bytes -> the eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their low
    nibbles in bytes 8-11 and their upper two bits at the top of bytes 0-3 and 4-7.
    """
    scales, minima, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (
        np.concatenate([scales & 0x3F, (low & 0x0F) | ((scales >> 2) & 0x30)], axis=1),
        np.concatenate([minima & 0x3F, (low >> 4) | ((minima >> 2) & 0x30)], axis=1),
    )


def decode_q2_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Block: 16 bytes of scale and minimum nibbles | 64 of codes | d f16 | dmin f16."""
    packed, codes = blocks[:, :16], fields(blocks[:, 16:80], 32, 2)
    scales = half(blocks, 80) * (packed & 0x0F).astype(np.float32)
    minima = half(blocks, 82) * (packed >> 4).astype(np.float32)
    return _affine(scales, minima, codes)


def decode_q3_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Block: 32 bytes of third bits | 64 of low bits | 12 of scales | d f16."""
    third, low = fields(blocks[:, :32], 32, 1), fields(blocks[:, 32:96], 32, 2)
    # Low nibbles of the sixteen scales in the first eight bytes, upper two bits in the last four.
    scale_codes = fields(blocks[:, 96:104], 8, 4) | (
        fields(blocks[:, 104:108], 4, 2) << np.uint8(4)
    )
    scales = half(blocks, 108) * (scale_codes.astype(np.float32) - 32)
    scale, code = _scaled(scales, (low | (third << np.uint8(2))).astype(np.float32) - 4)
    return (scale * code).reshape(-1, _WEIGHTS)


def decode_q4_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Block: d f16 | dmin f16 | 12 bytes of scales and minima | 128 of codes."""
    scale_codes, minimum_codes = _six_bit_pairs(blocks[:, 4:16])
    scales = half(blocks, 0) * scale_codes.astype(np.float32)
    minima = half(blocks, 2) * minimum_codes.astype(np.float32)
    return _affine(scales, minima, fields(blocks[:, 16:], 32, 4))


def decode_q5_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Block: d f16 | dmin f16 | 12 bytes of scales and minima | 32 of fifth bits | 128 of low."""
    scale_codes, minimum_codes = _six_bit_pairs(blocks[:, 4:16])
    scales = half(blocks, 0) * scale_codes.astype(np.float32)
    minima = half(blocks, 2) * minimum_codes.astype(np.float32)
    codes = fields(blocks[:, 48:], 32, 4) | (fields(blocks[:, 16:48], 32, 1) << np.uint8(4))
    return _affine(scales, minima, codes)


def decode_q6_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Block: 128 bytes of low bits | 64 of upper bits | 16 int8 scales | d f16."""
    codes = fields(blocks[:, :128], 64, 4) | (fields(blocks[:, 128:192], 32, 2) << np.uint8(4))
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    scale, code = _scaled(scales, codes.astype(np.float32) - 32)
    return (scale * code).reshape(-1, _WEIGHTS)
