"""Matrices in every format, and the native matrix kernels as functions that return arrays.

Every array that a kernel writes to stands between sentinels: writing past its end fails the test.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import stored_rows
from farthing import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

kernels = _native.kernels
TIERS: list[str] = _native.available_tiers()

GROUP, TILE = 32, 16
MODES = {"FP32": 0, "BF16": 1, "INT8": 2}


class Kind(NamedTuple):
    """A packed format as the kernels know it, and the format of the rows that it packs."""

    number: int
    mode: str
    stored: str
    group: int | None = 0
    """Inputs under one scale where the packed format leaves it open; None: a row's."""


_NUMBERS = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K",
    "Q3_K", "IQ4_NL", "INT8", "INT4", "INT4_ASYM", "NF4", "NF4_EXACT",
]  # fmt: skip
_GROUPED = [
    ("INT4_TENSOR", "INT4", None), ("INT4_ROW", "INT4", None), ("INT4_G32", "INT4", 32),
    ("INT4_G64", "INT4", 64), ("INT4_G128", "INT4", 128), ("INT4_G32_ASYM", "INT4_ASYM", 32),
    ("INT4_G64_ASYM", "INT4_ASYM", 64), ("INT4_G128_ASYM", "INT4_ASYM", 128),
    ("NF4_B64", "NF4", 64), ("NF4_B128", "NF4", 128),
]  # fmt: skip
FLOAT_FORMATS = stored_rows.FLOAT_FORMATS
FORMATS: dict[str, Kind] = {
    **{name: Kind(_NUMBERS.index(name), "FP32", name) for name in ("F32", "F16")},
    "BF16": Kind(_NUMBERS.index("BF16"), "BF16", "BF16"),
    **{name: Kind(_NUMBERS.index(name), "INT8", name) for name in stored_rows.BLOCKS},
    **{name: Kind(_NUMBERS.index("INT8"), "INT8", name) for name in ("INT8_TENSOR", "INT8_ROW")},
    **{name: Kind(_NUMBERS.index(kept), "INT8", name, group) for name, kept, group in _GROUPED},
    "NF4_B64_EXACT": Kind(_NUMBERS.index("NF4_EXACT"), "FP32", "NF4_B64", 64),
    "NF4_B128_EXACT": Kind(_NUMBERS.index("NF4_EXACT"), "FP32", "NF4_B128", 128),
}
"""By the stored format's name; NF4_*_EXACT are NF4 rows multiplied exactly."""
QUANTISED = [name for name, kind in FORMATS.items() if kind.mode == "INT8"]
"""Those that are multiplied with int8 activations."""

SENTINEL = 0xA5


def mode_of(format_name: str) -> str:
    """The activations that a product with the format takes."""
    return FORMATS[format_name].mode


def group_of(format_name: str, inputs: int) -> int:
    """The `group` that the kernels are given."""
    group = FORMATS[format_name].group
    return -(-inputs // GROUP) * GROUP if group is None else group


def whole_inputs(format_name: str, inputs: int) -> int:
    """The least row length from `inputs` on that the format can store."""
    return stored_rows.whole_inputs(FORMATS[format_name].stored, inputs)


def source_rows(
    format_name: str, outputs: int, inputs: int, rng: np.random.Generator, spread: float = 0.02
) -> Bytes:
    """[outputs, bytes of a row] as files store them: any codes, scales of that spread."""
    return stored_rows.source_rows(FORMATS[format_name].stored, outputs, inputs, rng, spread)


def dequantised(format_name: str, source: Bytes, inputs: int) -> Floats:
    """[outputs, inputs]: what stored rows stand for."""
    return stored_rows.dequantised(FORMATS[format_name].stored, source, inputs)


@contextmanager
def guarded(count: int, dtype: type[np.generic]) -> Iterator[NDArray[np.generic]]:
    """An array of `count` elements whose surroundings must stay as they are."""
    size = count * np.dtype(dtype).itemsize
    memory = np.full(size + 256, SENTINEL, np.uint8)
    yield memory[128 : 128 + size].view(dtype)
    assert np.all(memory[:128] == SENTINEL), "wrote before the array"
    assert np.all(memory[128 + size :] == SENTINEL), "wrote past the array"


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
        kind = FORMATS[format_name].number, group_of(format_name, inputs)
        tiles = -(-outputs // TILE)
        with guarded(kernels.matrix_bytes(*kind, outputs, inputs), np.uint8) as data:
            kernels.pack(tier, *kind, source.reshape(-1), outputs, inputs, 0, tiles, data)
        return cls(tier, format_name, outputs, inputs, data)

    @property
    def kind(self) -> tuple[int, int]:
        """Format and group, as the kernels take them."""
        return FORMATS[self.format_name].number, group_of(self.format_name, self.inputs)

    def unpack(self) -> Floats:
        rows = np.empty((self.outputs, self.inputs), np.float32)
        for output in range(self.outputs):
            with guarded(self.inputs, np.float32) as row:
                kernels.unpack_row(
                    self.tier, *self.kind, self.data, self.outputs, self.inputs, output, row
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
    def of(
        cls,
        tier: str,
        mode: str,
        x: Floats,
        columns: list[int] | None = None,
        row_cuts: list[int] | None = None,
        fixed_scale: float = 0.0,
    ) -> Prepared:
        """`columns` and `row_cuts`: where one call ends and the next begins."""
        rows, inputs = x.shape
        number = MODES[mode]
        with guarded(kernels.prepared_bytes(number, rows, inputs), np.uint8) as memory:
            for row, row_end in pairwise([0, *(row_cuts or []), rows]):
                for column, end in pairwise([0, *(columns or []), inputs]):
                    part = np.ascontiguousarray(x[row:row_end]).reshape(-1)[column:]
                    kernels.prepare(
                        tier, number, rows, inputs, memory, row, row_end, column, part, inputs,
                        end - column, float(fixed_scale),
                    )  # fmt: skip
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

    def _plane(self, number: int, dtype: type[np.generic], parts: int = 1) -> NDArray[np.generic]:
        """[rows, groups], or [rows, groups, parts], from the plane of that number on."""
        groups = self.padded // GROUP
        size = 4 * self.rows * groups
        start = -(-self.rows * self.padded // 64) * 64 + number * (-(-size // 64) * 64)
        plane = self.memory[start : start + parts * size].view(dtype)
        return plane.reshape((self.rows, groups, parts) if parts > 1 else (self.rows, groups))

    @property
    def scale(self) -> Floats:
        return self._plane(0, np.float32)

    @property
    def scaled_sum(self) -> Floats:
        return self._plane(1, np.float32)

    @property
    def negative_sum(self) -> NDArray[np.int32]:
        return self._plane(2, np.int32)

    @property
    def negative_half_sum(self) -> NDArray[np.int32]:
        """[rows, groups, 2]"""
        return self._plane(3, np.int32, 2)


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
                    packed.tier, *packed.kind, packed.data, packed.outputs, packed.inputs,
                    MODES[x.mode], x.rows, x.memory, row, row_end, tile, tile_end, piece, stride,
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
