"""Encoding ggml's K-quants, whose blocks `kquants.py` describes.

Every sub-block's scale is searched for first, in float32; these scales (and minima) become codes
under the block's float16 scale; last, the weights' codes are rounded under what these codes say.
Candidates, and the importance that a weight's error has, are those of ggml's reference quantisers
(ggml-quants.c), without an importance matrix and with one:

            without                              with one, of q for each input
    Q2_K    |w|, absolute errors                 q sqrt(mean w^2 + w^2)
    Q3_K    w^2, one candidate and descent       q sqrt(2 mean w^2 + w^2)
    Q4_K    |w| + root of the sub-block's mean   q sqrt(2 mean w^2 + w^2)
    Q5_K    as Q4_K                              as Q4_K
    Q6_K    w^2                                  q

The means are those of a block's 256 weights. With an importance matrix, the scales' codes are
searched for too. Encoders take (n, 256) float32 weights, and (n, 256) float32 importances or None,
and give (n, block bytes). They raise `OverflowError` for a scale beyond float16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from farthing.quant.packing import half_bytes, halves, pack_fields
from farthing.quant.scale_search import (
    affine_scales,
    descended_scales,
    positive_scale,
    symmetric_scales,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bytes: TypeAlias = "NDArray[np.uint8]"
    Floats: TypeAlias = "NDArray[np.float32]"

_WIDE = [-0.9 + 0.05 * step for step in range(37)]
"""The candidates of the affine formats where there is an importance matrix."""


def encode_q2_k(weights: Floats, importance: Floats | None) -> Bytes:
    """(n, 256) -> (n, 84)."""
    parts = _sub_blocks(weights, 16)
    if importance is None:
        offsets = [-0.5 + 0.1 * step for step in range(16)]
        scales, minima = affine_scales(parts, np.abs(parts), 3, offsets, absolute=True)
        sums = None
    else:
        weighed = _sub_blocks(_weighed(weights, importance, 1), 16)
        scales, minima = affine_scales(parts, weighed, 3, _WIDE)
        sums = weighed.sum(axis=0)
    d, scale_codes = _scale_codes(scales, sums, 16, 15)
    dmin, minimum_codes = _scale_codes(minima, sums, 16, 15)
    codes = _affine_codes(weights, d, scale_codes, dmin, minimum_codes, 3)
    return np.concatenate(
        [scale_codes | (minimum_codes << np.uint8(4)), pack_fields(codes, 32, 2), d, dmin], axis=1
    )


def encode_q3_k(weights: Floats, importance: Floats | None) -> Bytes:
    """(n, 256) -> (n, 110)."""
    parts = _sub_blocks(weights, 16)
    if importance is None:
        scales = descended_scales(parts, np.square(parts), 4).reshape(-1, 16)
        d = half_bytes(_largest(scales) / np.float32(-32))
        scale_codes = _quotients(scales, _largest(scales) / np.float32(-32))
    else:
        weighed = _sub_blocks(_weighed(weights, importance, 2), 16)
        scales = symmetric_scales(parts, weighed, 4).reshape(-1, 16)
        step = symmetric_scales(
            np.ascontiguousarray(scales.T), _sub_blocks(weighed.sum(axis=0)[:, None], 16), 32
        )[:, None]
        d = half_bytes(step)
        scale_codes = _quotients(scales, step)
    scale_codes = np.clip(scale_codes, -32, 31)
    codes = _symmetric_codes(weights, halves(d) * scale_codes, 4)
    stored = (scale_codes + 32).astype(np.uint8)
    return np.concatenate(
        [
            pack_fields(codes >> np.uint8(2), 32, 1),
            pack_fields(codes & np.uint8(3), 32, 2),
            pack_fields(stored & np.uint8(15), 8, 4),
            pack_fields(stored >> np.uint8(4), 4, 2),
            d,
        ],
        axis=1,
    )


def encode_q4_k(weights: Floats, importance: Floats | None) -> Bytes:
    """(n, 256) -> (n, 144)."""
    offsets = [-1 + 0.1 * step for step in range(21)]
    head, codes = _six_bit_affine(weights, importance, 15, offsets)
    return np.concatenate([head, pack_fields(codes, 32, 4)], axis=1)


def encode_q5_k(weights: Floats, importance: Floats | None) -> Bytes:
    """(n, 256) -> (n, 176)."""
    offsets = [-0.5 + 0.1 * step for step in range(16)]
    head, codes = _six_bit_affine(weights, importance, 31, offsets)
    fifth = pack_fields(codes >> np.uint8(4), 32, 1)
    return np.concatenate([head, fifth, pack_fields(codes & np.uint8(15), 32, 4)], axis=1)


def encode_q6_k(weights: Floats, importance: Floats | None) -> Bytes:
    """(n, 256) -> (n, 210)."""
    parts = _sub_blocks(weights, 16)
    weighed = np.square(parts) if importance is None else _sub_blocks(importance, 16)
    scales = symmetric_scales(parts, weighed, 32).reshape(-1, 16)
    step = _largest(scales) / np.float32(-128)
    d = half_bytes(step)
    scale_codes = np.clip(_quotients(scales, step), -128, 127)
    codes = _symmetric_codes(weights, halves(d) * scale_codes, 32)
    return np.concatenate(
        [
            pack_fields(codes & np.uint8(15), 64, 4),
            pack_fields(codes >> np.uint8(4), 32, 2),
            scale_codes.astype(np.int8).view(np.uint8),
            d,
        ],
        axis=1,
    )


def _six_bit_affine(
    weights: Floats, importance: Floats | None, highest: int, offsets: Sequence[float]
) -> tuple[Bytes, Bytes]:
    """The first 16 bytes of a block of Q4_K or Q5_K, and its 256 codes."""
    parts = _sub_blocks(weights, 32)
    if importance is None:
        weighed = np.sqrt(np.square(parts).mean(axis=0)) + np.abs(parts)
        scales, minima = affine_scales(parts, weighed, highest, offsets)
        sums = None
    else:
        weighed = _sub_blocks(_weighed(weights, importance, 2), 32)
        scales, minima = affine_scales(parts, weighed, highest, _WIDE)
        sums = weighed.sum(axis=0)
    d, scale_codes = _scale_codes(scales, sums, 8, 63)
    dmin, minimum_codes = _scale_codes(minima, sums, 8, 63)
    codes = _affine_codes(weights, d, scale_codes, dmin, minimum_codes, highest)
    packed = _pack_six_bit_pairs(scale_codes, minimum_codes)
    return np.concatenate([d, dmin, packed], axis=1), codes


def _pack_six_bit_pairs(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight 6-bit scales and minima -> 12 bytes, as `kquants.py` takes them apart."""
    tops = np.uint8(4)
    return np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> tops << np.uint8(6)),
            minima[:, :4] | (minima[:, 4:] >> tops << np.uint8(6)),
            (scales[:, 4:] & np.uint8(15)) | (minima[:, 4:] << tops),
        ],
        axis=1,
    )


def _sub_blocks(values: Floats, length: int) -> Floats:
    """(n, inputs) -> (length, n * inputs / length), as the search wants them."""
    return np.ascontiguousarray(values.reshape(-1, length).T)


def _weighed(weights: Floats, importance: Floats, share: int) -> Floats:
    squares = np.square(weights)
    weighed: Floats = importance * np.sqrt(share * squares.mean(axis=1, keepdims=True) + squares)
    return weighed


def _scale_codes(
    scales: Floats, importance: Floats | None, count: int, highest: int
) -> tuple[Bytes, Bytes]:
    """(n * count,) scales of zero or more -> (n, 2) bytes of d, and (n, count) codes under it."""
    if importance is not None:
        step, codes = positive_scale(
            _sub_blocks(np.maximum(scales, 0), count), _sub_blocks(importance, count), highest
        )
        return half_bytes(step[:, None]), np.ascontiguousarray(codes.T)
    blocks = np.maximum(scales.reshape(-1, count), 0)
    step = blocks.max(axis=1, keepdims=True) / np.float32(highest)
    return half_bytes(step), np.minimum(_quotients(blocks, step), highest).astype(np.uint8)


def _affine_codes(
    weights: Floats, d: Bytes, scales: Bytes, dmin: Bytes, minima: Bytes, highest: int
) -> Bytes:
    steps = halves(d) * scales
    shifted = _parted(weights, scales) + (halves(dmin) * minima)[:, :, None]
    codes = np.clip(_quotients(shifted, steps[:, :, None]), 0, highest)
    return codes.astype(np.uint8).reshape(weights.shape)


def _symmetric_codes(weights: Floats, steps: Floats, zero: int) -> Bytes:
    """Codes of -zero to zero - 1 under (n, sub-blocks) steps, plus `zero`."""
    codes = _quotients(_parted(weights, steps), steps[:, :, None])
    stored = np.clip(codes, -zero, zero - 1) + np.float32(zero)
    return stored.astype(np.uint8).reshape(weights.shape)


def _parted(weights: Floats, per_part: NDArray[np.generic]) -> Floats:
    return weights.reshape(*per_part.shape, -1)


def _quotients(values: Floats, steps: Floats) -> Floats:
    """Rounded. Under a step of zero every code is zero, as it is under an infinite one."""
    rounded: Floats = np.rint(values / np.where(steps == 0, np.float32(np.inf), steps))
    return rounded


def _largest(scales: Floats) -> Floats:
    """(n, count) -> (n, 1): of the largest magnitude, with its sign."""
    positions = np.abs(scales).argmax(axis=1)[:, None]
    return np.take_along_axis(scales, positions, axis=1)
