"""Matrices in GGUF's formats, and the native matrix kernels as functions that return arrays.

Every array that a kernel writes to stands between sentinels: writing past its end fails the test.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import gguf
import numpy as np

from farthing import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

kernels = _native.kernels
TIERS: list[str] = _native.available_tiers()

GROUP, TILE = 32, 16
FORMATS = {"F32": 0, "F16": 1, "BF16": 2, "Q8_0": 3, "Q4_0": 4, "Q4_1": 5, "Q5_0": 6, "Q5_1": 7}
FLOAT_FORMATS = ["F32", "F16", "BF16"]
QUANTISED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
MODES = {"FP32": 0, "BF16": 1, "INT8": 2}
# Of a GGUF block: its bytes, and where fp16 numbers (scale, minimum) stand at its start.
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24}
HALVES = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2}

SENTINEL = 0xA5


def mode_of(format_name: str) -> str:
    """The activations that a product with the format takes."""
    return {"F32": "FP32", "F16": "FP32", "BF16": "BF16"}.get(format_name, "INT8")


@contextmanager
def guarded(count: int, dtype: type[np.generic]) -> Iterator[NDArray[np.generic]]:
    """An array of `count` elements whose surroundings must stay as they are."""
    size = count * np.dtype(dtype).itemsize
    memory = np.full(size + 256, SENTINEL, np.uint8)
    yield memory[128 : 128 + size].view(dtype)
    assert np.all(memory[:128] == SENTINEL), "wrote before the array"
    assert np.all(memory[128 + size :] == SENTINEL), "wrote past the array"


def round_bf16(x: Floats) -> NDArray[np.uint16]:
    """To the nearest bf16, halves to even, as its bits; finite, normal x."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def source_rows(
    format_name: str, outputs: int, inputs: int, rng: np.random.Generator, spread: float = 0.02
) -> Bytes:
    """[outputs, bytes of a row] as GGUF stores them: any codes, halves of that spread."""
    if format_name in FLOAT_FORMATS:
        values = rng.normal(0, 1, (outputs, inputs)).astype(np.float32)
        if format_name == "F32":
            return values.view(np.uint8)
        if format_name == "F16":
            return values.astype(np.float16).view(np.uint8)
        return round_bf16(values).view(np.uint8)
    groups = -(-inputs // GROUP)
    blocks = rng.integers(0, 256, (outputs, groups, BLOCK_BYTES[format_name]), dtype=np.uint8)
    halves = rng.normal(0, spread, (outputs, groups, HALVES[format_name])).astype(np.float16)
    blocks[..., : 2 * HALVES[format_name]] = halves.view(np.uint8)
    return blocks.reshape(outputs, -1)


def dequantised(format_name: str, source: Bytes) -> Floats:
    """[outputs, inputs] by the gguf package."""
    kind = gguf.GGMLQuantizationType[format_name]
    return np.asarray(gguf.quants.dequantize(source, kind), np.float32)


@dataclass(frozen=True)
class Packed:
    """A matrix packed by a tier."""

    tier: str
    format_name: str
    outputs: int
    inputs: int
    data: Bytes

    @property
    def tiles(self) -> int:
        return -(-self.outputs // TILE)

    @classmethod
    def of(cls, tier: str, format_name: str, source: Bytes, inputs: int) -> Packed:
        outputs = len(source)
        number = FORMATS[format_name]
        tiles = -(-outputs // TILE)
        with guarded(kernels.matrix_bytes(number, outputs, inputs), np.uint8) as data:
            kernels.pack(tier, number, source.reshape(-1), outputs, inputs, 0, tiles, data)
        return cls(tier, format_name, outputs, inputs, data)

    def unpack(self) -> Floats:
        number = FORMATS[self.format_name]
        rows = np.empty((self.outputs, self.inputs), np.float32)
        for output in range(self.outputs):
            with guarded(self.inputs, np.float32) as row:
                kernels.unpack_row(
                    self.tier, number, self.data, self.outputs, self.inputs, output, row
                )
            rows[output] = row
        return rows


@dataclass(frozen=True)
class Prepared:
    """Rows of activations prepared by a tier, and the parts of their memory."""

    mode: str
    rows: int
    inputs: int
    memory: Bytes

    @classmethod
    def of(cls, tier: str, mode: str, x: Floats, columns: list[int] | None = None) -> Prepared:
        """`columns`: where one call ends and the next begins."""
        rows, inputs = x.shape
        number = MODES[mode]
        bounds = [0, *(columns or []), inputs]
        with guarded(kernels.prepared_bytes(number, rows, inputs), np.uint8) as memory:
            for row in range(rows):
                for column, end in pairwise(bounds):
                    part = np.ascontiguousarray(x[row, column:end])
                    kernels.prepare(tier, number, rows, inputs, memory, row, column, part)
        return cls(mode, rows, inputs, memory)

    @property
    def padded(self) -> int:
        return -(-self.inputs // GROUP) * GROUP

    @property
    def values(self) -> NDArray[np.generic]:
        """[rows, padded inputs]: float32, the bits of bf16, or int8 codes."""
        dtype = np.dtype({"FP32": np.float32, "BF16": np.uint16, "INT8": np.int8}[self.mode])
        count = self.rows * self.padded
        return self.memory[: count * dtype.itemsize].view(dtype).reshape(self.rows, -1)

    def _plane(self, number: int, dtype: type[np.generic]) -> NDArray[np.generic]:
        shape = (self.rows, self.padded // GROUP)
        size = 4 * shape[0] * shape[1]
        start = -(-self.rows * self.padded // 64) * 64 + number * (-(-size // 64) * 64)
        return self.memory[start : start + size].view(dtype).reshape(shape)

    @property
    def scale(self) -> Floats:
        return self._plane(0, np.float32)

    @property
    def scaled_sum(self) -> Floats:
        return self._plane(1, np.float32)

    @property
    def sum(self) -> NDArray[np.int32]:
        return self._plane(2, np.int32)


def linear(
    packed: Packed,
    x: Prepared,
    row_bounds: list[int] | None = None,
    tile_bounds: list[int] | None = None,
) -> Floats:
    """[rows, padded outputs] of `packed` times `x`, one call for each piece between the bounds."""
    rows = row_bounds or [0, x.rows]
    tiles = tile_bounds or [0, packed.tiles]
    out = np.empty((x.rows, packed.tiles * TILE), np.float32)
    for row, row_end in pairwise(rows):
        for tile, tile_end in pairwise(tiles):
            width = (tile_end - tile) * TILE
            stride = width + 5  # the gap between rows is checked below
            with guarded((row_end - row - 1) * stride + width, np.float32) as piece:
                piece.view(np.uint32)[:] = 0xDEADBEEF
                kernels.linear(
                    packed.tier, FORMATS[packed.format_name], packed.data, packed.outputs,
                    packed.inputs, MODES[x.mode], x.rows, x.memory, row, row_end, tile, tile_end,
                    piece, stride,
                )  # fmt: skip
            lines = np.append(piece, np.full(5, 0xDEADBEEF, np.uint32).view(np.float32))
            lines = lines.reshape(-1, stride)
            assert np.all(lines[:, width:].view(np.uint32) == 0xDEADBEEF), "wrote between rows"
            out[row:row_end, tile * TILE : tile_end * TILE] = lines[:, :width]
    return out


def product(packed: Packed, x: Floats) -> Floats:
    """[rows, outputs] of `packed` times rows of float32."""
    prepared = Prepared.of(packed.tier, mode_of(packed.format_name), x)
    return linear(packed, prepared)[:, : packed.outputs]
