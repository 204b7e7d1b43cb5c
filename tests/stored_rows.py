"""Weight rows as files store them, in every format: random ones, special ones, and their values.

The values are those of the gguf package, and for farthing's own formats those of `quant/`, whose
tests hold them against other peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf
import numpy as np

from farthing.core import StoredTensor
from farthing.files import formats
from farthing.files.formats import stored_bytes
from farthing.quant.formats import decode, packable
from farthing.quant.nf4 import NF4_LEVELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Block:
    """Where a GGUF block has what: fp16 scale and minimum, 8-bit data about scales, codes."""

    length: int
    size: int
    halves: int
    halves_at: int
    codes: tuple[int, int]
    scales: tuple[int, int] = (0, 0)
    unit: tuple[int, ...] = ()
    """Bytes at `scales` that make every scale, and every minimum, one."""


BLOCKS = {
    "Q8_0": Block(32, 34, 1, 0, (2, 34)),
    "Q4_0": Block(32, 18, 1, 0, (2, 18)),
    "Q4_1": Block(32, 20, 2, 0, (4, 20)),
    "Q5_0": Block(32, 22, 1, 0, (2, 22)),
    "Q5_1": Block(32, 24, 2, 0, (4, 24)),
    "IQ4_NL": Block(32, 18, 1, 0, (2, 18)),
    "Q4_K": Block(256, 144, 2, 0, (16, 144), (4, 16), (1,) * 8 + (0x11,) * 4),
    "Q5_K": Block(256, 176, 2, 0, (16, 176), (4, 16), (1,) * 8 + (0x11,) * 4),
    "Q6_K": Block(256, 210, 1, 208, (0, 192), (192, 208), (1,) * 16),
    "Q2_K": Block(256, 84, 2, 80, (16, 80), (0, 16), (0x11,) * 16),
    "Q3_K": Block(256, 110, 1, 108, (0, 96), (96, 108), (0x11,) * 8 + (0xAA,) * 4),
}
FLOAT_FORMATS = ["F32", "F16", "BF16"]
# Those that are packed as they are stored.
OWN_FORMATS = {n: each for n, each in formats.OWN_FORMATS.items() if n != "NF4_B64_DOUBLE"}
STORED_FORMATS = [*FLOAT_FORMATS, *BLOCKS, *OWN_FORMATS]


def whole_inputs(name: str, inputs: int) -> int:
    """The least row length from `inputs` on that the format can store."""
    length = BLOCKS[name].length if name in BLOCKS else 1
    return -(-inputs // length) * length


def round_bf16(x: Floats) -> NDArray[np.uint16]:
    """To the nearest bf16, halves to even, as its bits; finite, normal x."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def source_rows(
    name: str, outputs: int, inputs: int, rng: np.random.Generator, spread: float = 0.02
) -> Bytes:
    """[outputs, bytes of a row]: any codes, scales and minima of that spread."""
    if name in FLOAT_FORMATS:
        values = rng.normal(0, 1, (outputs, inputs)).astype(np.float32)
        if name == "F32":
            return values.view(np.uint8)
        if name == "F16":
            return values.astype(np.float16).view(np.uint8)
        return round_bf16(values).view(np.uint8)
    rows = rng.integers(0, 256, (outputs, stored_bytes(name, (inputs,))), dtype=np.uint8)
    count = scale_bytes(name, rows, inputs).nbytes // (4 if name.startswith("INT8") else 2)
    return with_scales(name, rows, inputs, rng.normal(0, spread, count))


def scale_bytes(name: str, rows: Bytes, inputs: int) -> Bytes:
    """A copy of the bytes of rows that are scales or minima, (outputs, blocks or 1, bytes)."""
    first, end, shape = _scale_place(name, rows, inputs)
    return rows.reshape(shape)[..., first:end].copy()


def with_scales(name: str, rows: Bytes, inputs: int, values: NDArray[np.floating]) -> Bytes:
    """The rows with other scales and minima, `values` being broadcast to these."""
    first, end, shape = _scale_place(name, rows, inputs)
    changed = rows.reshape(shape).copy()
    dtype = np.float32 if name.startswith("INT8") else np.float16
    place = changed[..., first:end].copy().view(dtype)
    wanted = np.asarray(values, dtype)
    place[:] = wanted.reshape(place.shape) if wanted.size == place.size else wanted
    changed[..., first:end] = place.view(np.uint8)
    return changed.reshape(rows.shape)


def with_codes(name: str, rows: Bytes, inputs: int, low_end: bool) -> Bytes:
    """The rows with the smallest or the largest code everywhere."""
    changed = rows.copy()
    signed = name == "Q8_0" or name.startswith("INT8")
    value = (0x80 if signed else 0x00) if low_end else (0x7F if signed else 0xFF)
    if name in BLOCKS:
        first, end = BLOCKS[name].codes
        changed.reshape(len(rows), -1, BLOCKS[name].size)[..., first:end] = value
    else:
        changed[:, : _own_codes(name, inputs)] = value
    return changed


def with_unit_scales(name: str, rows: Bytes, inputs: int) -> Bytes:
    """The rows with scales (and magnitudes of minima) that make every product an integer."""
    if name not in BLOCKS:
        return with_scales(name, rows, inputs, np.float32(127 if name.startswith("NF4") else 1))
    block = BLOCKS[name]
    changed = rows.reshape(len(rows), -1, block.size).copy()
    changed[..., slice(*block.scales)] = block.unit
    halves = np.array([1.0, -3.0][: block.halves])
    return with_scales(name, changed.reshape(rows.shape), inputs, halves)


def dequantised(name: str, rows: Bytes, inputs: int) -> Floats:
    """[outputs, inputs] float32: what the rows stand for."""
    if name in formats.OWN_FORMATS:
        return decode(_tensor(name, rows, inputs))
    return np.asarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]), np.float32)


def multiplied(name: str, rows: Bytes, inputs: int) -> NDArray[np.float64]:
    """What a product with int8 activations takes the rows for: NF4's levels have 8 bits there."""
    if not name.startswith("NF4"):
        return dequantised(name, rows, inputs).astype(np.float64)
    if name == "NF4_B64_DOUBLE":
        rows = packable(_tensor(name, rows, inputs)).reshape(len(rows), -1)
        return multiplied("NF4_B64", rows, inputs)
    # With a scale of one, the levels themselves.
    levels = dequantised(name, with_scales(name, rows, inputs, np.float32(1)), inputs)
    nearest = np.rint(NF4_LEVELS * np.float32(127))
    codes = nearest[np.searchsorted(NF4_LEVELS, levels)]
    absmax = scale_bytes(name, rows, inputs)[:, 0].view(np.float16).astype(np.float32)
    scales = np.repeat(absmax * np.float32(1 / 127), OWN_FORMATS[name].group, axis=1)[:, :inputs]
    return codes.astype(np.float64) * scales


def _tensor(name: str, rows: Bytes, inputs: int) -> StoredTensor:
    return StoredTensor("rows", name, (len(rows), inputs), rows.reshape(-1))


def magnitudes(name: str, rows: Bytes, inputs: int) -> NDArray[np.float64]:
    """That of scale times code plus that of the minimum, for every weight: the two may cancel."""
    block = BLOCKS.get(name)
    if block is None or block.halves == 1:
        return np.abs(multiplied(name, rows, inputs))
    halves = np.abs(scale_bytes(name, rows, inputs).view(np.float16))
    halves[..., 1] *= -1 if name.endswith("_K") else 1  # a K-quant's minimum is subtracted
    return np.abs(multiplied(name, with_scales(name, rows, inputs, halves), inputs))


def _own_codes(name: str, inputs: int) -> int:
    return inputs if name.startswith("INT8") else -(-inputs // 2)


def _scale_place(name: str, rows: Bytes, inputs: int) -> tuple[int, int, tuple[int, ...]]:
    """First byte and end of scales and minima within blocks, or within rows; and that shape."""
    if name in BLOCKS:
        block = BLOCKS[name]
        first = block.halves_at
        return first, first + 2 * block.halves, (len(rows), -1, block.size)
    first = _own_codes(name, inputs)
    if name.startswith("INT8"):
        return first, first + 4, (len(rows), 1, -1)
    return first, first + 2 * OWN_FORMATS[name].groups(inputs), (len(rows), 1, -1)
