"""What the blocks of several formats have in common: half-precision scales and packed codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, b) bytes -> (n, 2 b) values of 0 to 15: all lower halves, then all upper ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, 2 b) codes, of which four bits are taken -> (n, b) bytes; what `nibbles` undoes."""
    low, high = np.split(codes, 2, axis=1)
    return (low & np.uint8(0x0F)) | (high << np.uint8(4))


def half(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """The float16 at byte `start` of every block, as (n, 1) float32."""
    return blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)


def pairs(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """(n, b) bytes -> (n, count) values of 0 to 15: each byte's lower half, then its upper one."""
    values = np.empty((len(packed), packed.shape[1], 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[:, :, 0])
    np.right_shift(packed, 4, out=values[:, :, 1])
    return values.reshape(len(packed), -1)[:, :count]


def pack_pairs(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, count) values of 0 to 15 -> (n, half of it, rounded up) bytes; what `pairs` undoes."""
    packed = np.zeros((len(values), -(-values.shape[1] // 2)), np.uint8)
    packed |= values[:, 0::2]
    packed[:, : values.shape[1] // 2] |= values[:, 1::2] << np.uint8(4)
    return packed


def fields(packed: NDArray[np.uint8], group: int, bits: int) -> NDArray[np.uint8]:
    """(n, b) bytes -> (n, 8 b / bits) codes.

    The bytes lie in groups; a group gives first the lowest `bits` of each of its bytes, then the
    next ones, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = (packed.reshape(len(packed), -1, 1, group) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1)


def pack_fields(codes: NDArray[np.uint8], group: int, bits: int) -> NDArray[np.uint8]:
    """(n, 8 b / bits) codes below 2^bits -> (n, b) bytes; what `fields` undoes."""
    shares = codes.reshape(len(codes), -1, 8 // bits, group)
    packed = shares[:, :, 0].copy()
    for share in range(1, 8 // bits):
        packed |= shares[:, :, share] << np.uint8(share * bits)
    return packed.reshape(len(codes), -1)


def halves(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2 m) bytes -> (n, m) float32, exact."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def half_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(n, m) float32 -> (n, 2 m) bytes of float16, rounded to nearest even.

    Raises `OverflowError` where float16 has no such number: from 65,520 on.
    """
    with np.errstate(over="ignore"):
        rounded = values.astype("<f2")
    if not np.isfinite(rounded).all():
        raise OverflowError("beyond float16")
    return rounded.view(np.uint8)


def inverse(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, and 0 for 0: a group of zeros has the scale 0 and keeps it."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def grouped(weights: NDArray[np.float32], group: int) -> NDArray[np.float32]:
    """(n, inputs) -> (n, groups, `group`), a short last group filled up with zeros; 0: one group.

    A zero changes no group's largest magnitude, and no range that holds zero.
    """
    rows, inputs = weights.shape
    group = group or inputs
    groups = -(-inputs // group)
    if groups * group != inputs:
        weights = np.pad(weights, ((0, 0), (0, groups * group - inputs)))
    return weights.reshape(rows, groups, group)


def spread(per_group: NDArray[np.float32], group: int, inputs: int) -> NDArray[np.float32]:
    """(n, groups) -> (n, inputs), or (n, 1) where there is one group: a value for each weight."""
    if per_group.shape[1] == 1:
        return per_group
    return np.repeat(per_group, group, axis=1)[:, :inputs]
