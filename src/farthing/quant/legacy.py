"""ggml's 32-weight blocks with one scale, or a scale and a minimum: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

    Q8_0   w = d * q              d f16 | 32 int8
    Q4_0   w = d * (q - 8)        d f16 | 16 bytes of nibbles
    Q4_1   w = d * q + m          d f16 | m f16 | 16 bytes of nibbles
    Q5_0   w = d * (q - 16)       d f16 | 32 fifth bits | 16 bytes of nibbles
    Q5_1   w = d * q + m          d f16 | m f16 | 32 fifth bits | 16 bytes of nibbles

Byte i of the nibbles holds weight i below and weight i + 16 above. The layouts and the rounding are
those of ggml's reference quantisers (ggml-quants.c); bytes and floats equal the `gguf` package's.
With an importance of each weight, (n, 32), the scale is searched for, as ggml does with its matrix
of them, and kept where it loses less than the rounding without.
Encoders raise `OverflowError` for a scale or a minimum beyond float16, where those store infinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.quant.packing import half, half_bytes, inverse, nibbles, pack_nibbles
from farthing.quant.scale_search import affine_scales, symmetric_scales

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WEIGHTS = 32

_OFFSETS = [-0.9 + 0.05 * step for step in range(37)]
"""The candidates of a search with an importance, as ggml's."""


def decode_q8_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 34) bytes -> (n, 32) float32."""
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def decode_q4_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18) bytes -> (n, 32) float32."""
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def decode_q4_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 20) bytes -> (n, 32) float32."""
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def decode_q5_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 22) bytes -> (n, 32) float32."""
    return half(blocks, 0) * (_five_bits(blocks[:, 2:]).astype(np.float32) - 16)


def decode_q5_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 24) bytes -> (n, 32) float32."""
    return half(blocks, 0) * _five_bits(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def _five_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    fifth = np.unpackbits(packed[:, :4], axis=1, bitorder="little")
    return nibbles(packed[:, 4:]) | (fifth << np.uint8(4))


def encode_q8_0(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 34) bytes."""
    scale = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    scaled = weights * inverse(scale)
    # Half away from zero: numpy's own rounding takes halves to even.
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    codes = np.copysign(whole + np.floor(2 * (magnitude - whole)), scaled)
    return np.concatenate([half_bytes(scale), codes.astype(np.int8).view(np.uint8)], axis=1)


def encode_q4_0(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 18) bytes."""
    scale, codes = _weighed_symmetric(weights, importance, 8)
    return np.concatenate([half_bytes(scale), pack_nibbles(codes)], axis=1)


def encode_q4_1(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 20) bytes."""
    scale, minimum, codes = _weighed_affine(weights, importance, 15)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), pack_nibbles(codes)], axis=1)


def encode_q5_0(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 22) bytes."""
    scale, codes = _weighed_symmetric(weights, importance, 16)
    return np.concatenate([half_bytes(scale), _pack_fifths(codes), pack_nibbles(codes)], axis=1)


def encode_q5_1(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """(n, 32) float32 -> (n, 24) bytes."""
    scale, minimum, codes = _weighed_affine(weights, importance, 31)
    return np.concatenate(
        [half_bytes(scale), half_bytes(minimum), _pack_fifths(codes), pack_nibbles(codes)], axis=1
    )


def _symmetric(
    weights: NDArray[np.float32], zero: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The weight farthest from zero, sign and all, gets code 0, and zero gets code `zero`."""
    farthest = np.take_along_axis(weights, np.abs(weights).argmax(axis=1, keepdims=True), axis=1)
    scale = farthest / np.float32(-zero)
    codes = np.trunc(weights * inverse(scale) + np.float32(zero + 0.5))
    return scale, np.minimum(codes.astype(np.uint8), np.uint8(2 * zero - 1))


def _affine(
    weights: NDArray[np.float32], highest: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
    minimum = weights.min(axis=1, keepdims=True)
    scale = (weights.max(axis=1, keepdims=True) - minimum) / np.float32(highest)
    codes = np.trunc((weights - minimum) * inverse(scale) + np.float32(0.5))
    return scale, minimum, np.minimum(codes.astype(np.uint8), np.uint8(highest))


def _weighed_symmetric(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None, zero: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """As `_symmetric`, or with the scale of a search where that loses less of what counts."""
    scale, codes = _symmetric(weights, zero)
    if importance is None:
        return scale, codes
    weighed = _weighed(weights, importance)
    found = symmetric_scales(_columns(weights), _columns(weighed), zero)[:, None]
    levels = np.rint(weights * inverse(_stored(found)))
    found_codes = (np.clip(levels, -zero, zero - 1) + np.float32(zero)).astype(np.uint8)

    def error(scales: NDArray[np.float32], chosen: NDArray[np.uint8]) -> NDArray[np.float32]:
        decoded = _stored(scales) * (chosen.astype(np.float32) - np.float32(zero))
        return _error(decoded, weights, weighed)

    better = error(found, found_codes) < error(scale, codes)
    return np.where(better, found, scale), np.where(better, found_codes, codes)


def _weighed_affine(
    weights: NDArray[np.float32], importance: NDArray[np.float32] | None, highest: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
    """As `_affine`, or with the scale and minimum of a search where these lose less."""
    scale, minimum, codes = _affine(weights, highest)
    if importance is None:
        return scale, minimum, codes
    weighed = _weighed(weights, importance)
    scales, below = affine_scales(_columns(weights), _columns(weighed), highest, _OFFSETS)
    found, found_minimum = scales[:, None], -below[:, None]
    levels = np.rint((weights - _stored(found_minimum)) * inverse(_stored(found)))
    found_codes = np.clip(levels, 0, highest).astype(np.uint8)

    def error(
        scales: NDArray[np.float32], minima: NDArray[np.float32], chosen: NDArray[np.uint8]
    ) -> NDArray[np.float32]:
        decoded = _stored(scales) * chosen.astype(np.float32) + _stored(minima)
        return _error(decoded, weights, weighed)

    better = error(found, found_minimum, found_codes) < error(scale, minimum, codes)
    return (
        np.where(better, found, scale),
        np.where(better, found_minimum, minimum),
        np.where(better, found_codes, codes),
    )


def _weighed(weights: NDArray[np.float32], importance: NDArray[np.float32]) -> NDArray[np.float32]:
    """An importance q gives q sqrt(mean w^2 + w^2), with the block's mean; ggml's is the row's."""
    squares = np.square(weights)
    weighed: NDArray[np.float32] = importance * np.sqrt(
        squares.mean(axis=1, keepdims=True) + squares
    )
    return weighed


def _columns(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """One weight of each block after the other, as the searches take them."""
    return np.ascontiguousarray(blocks.T)


def _stored(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """What float16 keeps of them."""
    return numbers.astype(np.float16).astype(np.float32)


def _error(
    decoded: NDArray[np.float32], weights: NDArray[np.float32], weighed: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The weighed squared error of each block, (n, 1)."""
    error: NDArray[np.float32] = (weighed * np.square(decoded - weights)).sum(axis=1, keepdims=True)
    return error


def _pack_fifths(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
