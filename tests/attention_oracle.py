"""Softmax attention in float64, rounded where a bf16 cache's is, and a paged cache over numpy
memory that the native kernels fill.

The cache is as hostile as the real one: every byte that no token wrote is garbage, blocks lie in
any order, and the block table names no block that the queries may not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

kernels = _native.kernels
TIERS: list[str] = _native.available_tiers()

BLOCK = 32
CHUNK = 256
CACHE_TYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3, "int4-keys": 4}
CODED = ("int8", "int4-keys")
"""Those in which a NaN need not stay one."""
# Read as a block's number it lies terabytes before the pool: a kernel that reads it dies.
NO_BLOCK = -(2**31)


def round_bf16(x: Floats) -> Floats:
    """To the nearest bf16, halves to even; finite, normal x."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def int8_codes(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Codes and scales, one scale for the last axis."""
    scale = np.abs(x).max(axis=-1) / np.float32(127)
    divisor = np.where(scale > 0, scale, np.float32(1))[..., None]
    return np.clip(np.rint(x / divisor), -127, 127).astype(np.int8), scale


def head_size(cache_type: str, head_dim: int) -> int:
    """The largest head up to `head_dim` that the cache takes: rotated ones are powers of two."""
    return 1 << head_dim.bit_length() - 1 if cache_type == "int4-keys" else head_dim


def rotated(x: Floats) -> Floats:
    """The last axis times the normalised Hadamard matrix, in float32 and the kernels' order."""
    count = x.shape[-1]
    x = x * (np.float32(1) / np.sqrt(np.float32(count)))
    half = 1
    while half < count:
        pairs = x.reshape(*x.shape[:-1], count // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
        half *= 2
    return x


def int4_codes(x: Floats) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Codes 0 ... 15 and scales of rotated keys, one scale for the last axis."""
    scale = (np.abs(x).max(axis=-1) / np.float32(8)).astype(np.float16)
    divisor = np.where(scale > 0, scale, np.float16(1)).astype(np.float32)[..., None]
    return np.clip(np.rint(x / divisor + np.float32(7.5)), 0, 15).astype(np.uint8), scale


def int4_numbers(codes: NDArray[np.uint8], scale: NDArray[np.float16]) -> NDArray[np.float64]:
    """What codes and scales of `int4_codes` stand for."""
    return (codes - 7.5) * scale.astype(np.float64)[..., None]


def keys_in_cache(cache_type: str, keys: Floats) -> NDArray[np.float64]:
    """What a plain query's products are with: int4 keys are rotated back."""
    if cache_type != "int4-keys":
        return values_in_cache(cache_type, keys)
    codes, scale = int4_codes(rotated(keys))
    size = keys.shape[-1]
    shared = np.bitwise_and.outer(np.arange(size), np.arange(size))
    hadamard = np.where(np.bitwise_count(shared) % 2, -1.0, 1.0) / np.sqrt(size)
    return int4_numbers(codes, scale) @ hadamard


def values_in_cache(cache_type: str, x: Floats) -> NDArray[np.float64]:
    """What the cache holds of values [..., head_dim], and of keys that are not rotated."""
    if cache_type == "fp16":
        return x.astype(np.float16).astype(np.float64)
    if cache_type == "bf16":
        return round_bf16(x).astype(np.float64)
    if cache_type in CODED:
        codes, scale = int8_codes(x)
        return codes.astype(np.float64) * scale[..., None]
    return x.astype(np.float64)


def softmax_attention(
    query: Floats,
    keys: NDArray[np.float64],
    values: NDArray[np.float64],
    first_position: int,
    window: int,
    scale: float,
) -> NDArray[np.float64]:
    """query [queries, group, head_dim] over keys and values [positions, head_dim]."""
    out = np.empty(query.shape)
    for i in range(len(query)):
        end = first_position + i + 1
        begin = max(0, end - window) if window else 0
        scores = scale * (query[i].astype(np.float64) @ keys[begin:end].T)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[i] = weights @ values[begin:end] / weights.sum(axis=-1, keepdims=True)
    return out


def scaled_query(cache_type: str, query: Floats, scale: float) -> NDArray[np.float64]:
    """What scores are made with: their exponents are of base 2, and bf16 keys meet a bf16 query."""
    if cache_type != "bf16":
        return query.astype(np.float64) * scale * np.log2(np.e)
    return round_bf16(query * (np.float32(scale) * np.float32(1.44269504))).astype(np.float64)


def rounded_attention(
    query: Floats,
    keys: NDArray[np.float64],
    values: NDArray[np.float64],
    first_position: int,
    window: int,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """softmax_attention with the query rounded to bf16, and, within each chunk, the weights.

    Besides, how far a row [queries, group] may be off because some weight is so near the middle of
    two bf16 numbers that the kernel's float32 may take the other.
    """
    exponents = scaled_query("bf16", query, scale)
    out, slack = np.empty(query.shape), np.zeros(query.shape[:2])
    for i in range(len(query)):
        end = first_position + i + 1
        begin = max(0, end - window) if window else 0
        scores = exponents[i] @ keys[begin:end].T
        chunk = np.arange(begin, end) // CHUNK
        largest = np.full(scores.shape, -np.inf)
        for each in np.unique(chunk):
            largest[:, chunk == each] = scores[:, chunk == each].max(axis=-1, keepdims=True)
        exact = np.exp2(scores - largest).astype(np.float32)
        to_middle = (exact.view(np.uint32) & 0xFFFF).astype(np.int64) - 0x8000
        merged = np.exp2(largest - largest.max(axis=-1, keepdims=True))
        weights = round_bf16(exact) * merged
        out[i] = weights @ values[begin:end] / weights.sum(axis=-1, keepdims=True)
        doubtful = np.where(np.abs(to_middle) < 64, exact * merged, 0).sum(axis=-1)
        slack[i] = 2.0**-7 * doubtful / weights.sum(axis=-1) * 2 * np.abs(values[begin:end]).max()
    return out, slack


@dataclass
class PagedCache:
    """One KV head of one layer of one sequence."""

    tier: str
    cache_type: str
    head_dim: int
    pool: NDArray[np.uint8]  # [blocks, bytes of a block and what lies between]
    table: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        tier: str,
        cache_type: str,
        keys: Floats,
        values: Floats,
        *,
        seed: int = 0,
        garbage: int | None = 0xFF,
        spare_blocks: int = 3,
    ) -> PagedCache:
        """Holds keys and values [positions, head_dim]. Bytes that no token writes are `garbage`,
        0xFF making a NaN of every floating type, or random; `seed` also places the blocks.
        """
        positions, head_dim = keys.shape
        rng = np.random.default_rng(seed)
        stride = kernels.head_block_bytes(CACHE_TYPES[cache_type], head_dim) + 64 * (seed % 3)
        count = -(-positions // BLOCK)
        pool = rng.integers(0, 256, (count + spare_blocks, stride), np.uint8)
        if garbage is not None:
            pool[:] = garbage
        table = rng.permutation(count + spare_blocks)[:count].astype(np.int32)
        cache = cls(tier, cache_type, head_dim, pool, table)
        for position in range(positions):
            cache.write(position, keys[position], values[position])
        return cache

    def write(self, position: int, key: Floats, value: Floats) -> None:
        block = self.pool[self.table[position // BLOCK]]
        slot = position % BLOCK
        kernels.cache_write(self.tier, CACHE_TYPES[self.cache_type], block, slot, key, value)

    def chunk(
        self, query: Floats, first_position: int, window: int, scale: float, chunk: int
    ) -> Floats:
        """partial [queries * group, partial_floats] of one tile of queries."""
        queries, group, head_dim = query.shape
        first = max(0, first_position - window + 1) // BLOCK if window else 0
        end = (first_position + queries - 1) // BLOCK + 1
        table = np.full(max(end, (chunk + 1) * CHUNK // BLOCK), NO_BLOCK, np.int32)
        table[first:end] = self.table[first:end]
        partial = np.full((queries * group, kernels.partial_floats(head_dim)), np.nan, np.float32)
        kernels.attend_chunk(
            self.tier, CACHE_TYPES[self.cache_type], np.ascontiguousarray(query), self.pool, table,
            first_position, window, scale, chunk, partial,
        )  # fmt: skip
        return partial

    def attend(
        self,
        query: Floats,
        first_position: int,
        *,
        window: int = 0,
        scale: float | None = None,
        tiles: Sequence[int] | None = None,
        reverse: bool = False,
    ) -> Floats:
        """query [queries, group, head_dim] in tiles of so many queries, chunks merged in order."""
        queries, group, head_dim = query.shape
        if scale is None:
            scale = head_dim**-0.5
        out = np.empty(query.shape, np.float32)
        begin = 0
        for size in tiles or full_tiles(queries):
            position = first_position + begin
            tile = query[begin : begin + size]
            first = max(0, position - window + 1) // CHUNK if window else 0
            chunks = list(range(first, (position + size - 1) // CHUNK + 1))
            partials = [self.chunk(tile, position, window, scale, i) for i in chunks]
            state = merge(self.tier, partials[::-1] if reverse else partials, head_dim)
            for row, floats in enumerate(state):
                finished = out[begin + row // group, row % group]
                kernels.attend_finish(self.tier, floats, finished)
            begin += size
        assert begin == queries
        return out


def full_tiles(queries: int) -> list[int]:
    return [min(8, queries - i) for i in range(0, queries, 8)]


def merge(tier: str, partials: Sequence[Floats], head_dim: int) -> Floats:
    """Into a state that has seen nothing, one by one."""
    state = np.zeros_like(partials[0])
    for partial in partials:
        kernels.attend_merge(tier, head_dim, state, partial)
    return state


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def relative_error(out: Floats, expected: NDArray[np.float64]) -> float:
    """The worst row's: largest difference by largest element."""
    difference = np.abs(out - expected).max(axis=-1)
    return float((difference / np.abs(expected).max(axis=-1)).max())


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
