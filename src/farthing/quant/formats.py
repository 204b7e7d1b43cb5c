"""The formats whose weights farthing can read, and those it can write.

`decode(tensor)` gives the weights, `decode(tensor, rows=slice(0, 1024))` those of some rows, and
`encode(weights, "Q8_0")` the bytes that a file stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.files.formats import STORAGE_FORMATS, stored_bytes
from farthing.quant import floats, iq4, kquants, legacy

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from farthing.core import StoredTensor

_PIECE_WEIGHTS = 1 << 17
"""Weights decoded at once: temporaries stay in the processor's cache whatever the tensor's size."""


@dataclass(frozen=True)
class Format:
    """One readable format: (n, `block_bytes`) uint8 against (n, `block_length`) float32."""

    name: str
    block_length: int
    block_bytes: int
    decode_blocks: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
    encode_blocks: Callable[[NDArray[np.float32]], NDArray[np.uint8]] | None = None

    @property
    def bits_per_weight(self) -> float:
        """Exact: block lengths are powers of two."""
        return 8 * self.block_bytes / self.block_length


FORMATS: dict[str, Format] = {
    name: Format(
        name,
        STORAGE_FORMATS[name].block_length,
        STORAGE_FORMATS[name].block_bytes,
        decode_blocks,
        encode_blocks,
    )
    for name, decode_blocks, encode_blocks in (
        ("F32", floats.decode_f32, floats.encode_f32),
        ("F16", floats.decode_f16, floats.encode_f16),
        ("BF16", floats.decode_bf16, floats.encode_bf16),
        ("Q8_0", legacy.decode_q8_0, legacy.encode_q8_0),
        ("Q4_0", legacy.decode_q4_0, legacy.encode_q4_0),
        ("Q4_1", legacy.decode_q4_1, legacy.encode_q4_1),
        ("Q5_0", legacy.decode_q5_0, legacy.encode_q5_0),
        ("Q5_1", legacy.decode_q5_1, legacy.encode_q5_1),
        ("Q2_K", kquants.decode_q2_k, None),
        ("Q3_K", kquants.decode_q3_k, None),
        ("Q4_K", kquants.decode_q4_k, None),
        ("Q5_K", kquants.decode_q5_k, None),
        ("Q6_K", kquants.decode_q6_k, None),
        ("IQ4_NL", iq4.decode_iq4_nl, None),
    )
}


def format_named(name: str) -> Format:
    """The format of that name. Raises `UnsupportedModelError` listing the readable ones."""
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"weights stored as {name!r:.40} cannot be read; farthing reads {', '.join(FORMATS)}: "
            "use a file in one of these"
        )
    return found


def bits_per_weight(name: str) -> float:
    """Stored bits for one weight, scales included, exact. Raises `UnsupportedModelError`."""
    return format_named(name).bits_per_weight


def decode(tensor: StoredTensor, rows: slice | None = None) -> NDArray[np.float32]:
    """The tensor's weights as float32 in its shape, or those of `rows` of its first dimension.

    `rows` has step 1 and needs a tensor of two dimensions or more; the result's first dimension is
    then the number of rows chosen. The result never shares memory with the file.
    Raises `UnsupportedModelError` for a format that cannot be read, and `FileFormatError` when the
    tensor's bytes are not as many as its shape needs.
    """
    found = FORMATS.get(tensor.format)
    if found is None:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r:.80} is stored as {tensor.format}, which farthing cannot read: "
            f"use a file in one of {', '.join(FORMATS)}"
        )
    needed = stored_bytes(tensor.format, tensor.shape)
    if tensor.data.nbytes != needed:
        raise FileFormatError(
            f"tensor {tensor.name!r:.80} of shape {tensor.shape} needs {needed} bytes as "
            f"{tensor.format} and has {tensor.data.nbytes}"
        )
    shape, data = tensor.shape, tensor.data
    if rows is not None:
        start, stop, step = rows.indices(shape[0])
        if step != 1 or len(shape) < 2:
            raise ValueError("rows must have step 1, and the tensor at least two dimensions")
        count = max(0, stop - start)
        row_bytes = stored_bytes(tensor.format, shape[1:])
        shape, data = (count, *shape[1:]), data[start * row_bytes : (start + count) * row_bytes]
    blocks = data.reshape(-1, found.block_bytes)
    weights = np.empty((len(blocks), found.block_length), np.float32)
    piece = _PIECE_WEIGHTS // found.block_length
    # Scales may be infinite or NaN in a damaged file; what they give is what the format says.
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(blocks), piece):
            weights[first : first + piece] = found.decode_blocks(blocks[first : first + piece])
    return weights.reshape(shape)


def encode(weights: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """The bytes of float32 weights in a format, one-dimensional. Rows are the last dimension.

    Raises `UnsupportedModelError` for a format that cannot be written here or whose blocks do not
    divide a row, and `FileFormatError` when a format with scales is given an infinity or a NaN.
    """
    found = format_named(name)
    encode_blocks = found.encode_blocks
    if encode_blocks is None:
        writable = ", ".join(each.name for each in FORMATS.values() if each.encode_blocks)
        raise UnsupportedModelError(f"{name} can be read and not written; choose {writable}")
    size = stored_bytes(name, weights.shape)
    if found.block_length > 1 and not np.isfinite(weights).all():
        raise FileFormatError(f"weights hold an infinity or a NaN, which {name} cannot store")
    blocks = np.ascontiguousarray(weights, np.float32).reshape(-1, found.block_length)
    data = np.empty(size, np.uint8).reshape(-1, found.block_bytes)
    piece = _PIECE_WEIGHTS // found.block_length
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(blocks), piece):
            data[first : first + piece] = encode_blocks(blocks[first : first + piece])
    return data.reshape(-1)
