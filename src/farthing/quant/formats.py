"""The formats whose weights farthing can read, and those it can write.

`decode(tensor)` gives the weights, `decode(tensor, rows=slice(0, 1024))` those of some rows, and
`encode(weights, "Q8_0")` the bytes that a file stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.files.formats import OWN_FORMATS, STORAGE_FORMATS, stored_bytes
from farthing.quant import floats, int4, int8, iq4, kquants, legacy, nf4

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.files.formats import StorageFormat

    Decoder = Callable[[NDArray[np.uint8], int], NDArray[np.float32]]
    Encoder = Callable[[NDArray[np.float32], np.float32], NDArray[np.uint8]]

_PIECE_WEIGHTS = 1 << 17
"""Weights coded at once: temporaries stay in the processor's cache whatever the tensor's size."""


@dataclass(frozen=True)
class Format:
    """One readable format, in runs: what is stored together, a block or a row of n weights.

    `decode_runs` takes runs as (count, bytes) uint8 and n, and gives (count, n) float32.
    `encode_runs` goes the other way; it is told the largest magnitude in the tensor, which the
    formats with one scale a tensor use, and raises `OverflowError` for a scale beyond float16.
    """

    storage: StorageFormat
    decode_runs: Decoder
    encode_runs: Encoder | None = None

    @property
    def name(self) -> str:
        """The storage format's."""
        return self.storage.name

    @property
    def scaled(self) -> bool:
        """Whether weights are stored as codes under a scale, which no infinity or NaN has."""
        return self.name not in ("F32", "F16", "BF16")


def _blocks(
    name: str,
    decode_blocks: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    encode_blocks: Callable[[NDArray[np.float32]], NDArray[np.uint8]] | None = None,
) -> Format:
    """A format of GGUF, whose coders need to be told nothing besides the blocks."""
    encode_runs = None if encode_blocks is None else _ignoring_largest(encode_blocks)
    return Format(STORAGE_FORMATS[name], lambda blocks, _: decode_blocks(blocks), encode_runs)


def _groups(
    name: str,
    decode_rows: Callable[[NDArray[np.uint8], int, int], NDArray[np.float32]],
    encode_rows: Callable[[NDArray[np.float32], int], NDArray[np.uint8]],
) -> Format:
    """A format of farthing whose coders are told the group's length."""
    storage = OWN_FORMATS[name]
    return Format(
        storage,
        lambda rows, inputs: decode_rows(rows, inputs, storage.group),
        _ignoring_largest(lambda weights: encode_rows(weights, storage.group)),
    )


def _ignoring_largest(encode_runs: Callable[[NDArray[np.float32]], NDArray[np.uint8]]) -> Encoder:
    return lambda weights, _: encode_runs(weights)


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        _blocks("F32", floats.decode_f32, floats.encode_f32),
        _blocks("F16", floats.decode_f16, floats.encode_f16),
        _blocks("BF16", floats.decode_bf16, floats.encode_bf16),
        _blocks("Q8_0", legacy.decode_q8_0, legacy.encode_q8_0),
        _blocks("Q4_0", legacy.decode_q4_0, legacy.encode_q4_0),
        _blocks("Q4_1", legacy.decode_q4_1, legacy.encode_q4_1),
        _blocks("Q5_0", legacy.decode_q5_0, legacy.encode_q5_0),
        _blocks("Q5_1", legacy.decode_q5_1, legacy.encode_q5_1),
        _blocks("Q2_K", kquants.decode_q2_k),
        _blocks("Q3_K", kquants.decode_q3_k),
        _blocks("Q4_K", kquants.decode_q4_k),
        _blocks("Q5_K", kquants.decode_q5_k),
        _blocks("Q6_K", kquants.decode_q6_k),
        _blocks("IQ4_NL", iq4.decode_iq4_nl),
        Format(OWN_FORMATS["INT8_TENSOR"], int8.decode_int8, int8.encode_int8),
        Format(OWN_FORMATS["INT8_ROW"], int8.decode_int8, _ignoring_largest(int8.encode_int8)),
        Format(
            OWN_FORMATS["INT4_TENSOR"],
            lambda rows, inputs: int4.decode_int4(rows, inputs, 0),
            lambda weights, largest: int4.encode_int4(weights, 0, largest),
        ),
        _groups("INT4_ROW", int4.decode_int4, int4.encode_int4),
        _groups("INT4_G32", int4.decode_int4, int4.encode_int4),
        _groups("INT4_G64", int4.decode_int4, int4.encode_int4),
        _groups("INT4_G128", int4.decode_int4, int4.encode_int4),
        _groups("INT4_G32_ASYM", int4.decode_int4_asymmetric, int4.encode_int4_asymmetric),
        _groups("INT4_G64_ASYM", int4.decode_int4_asymmetric, int4.encode_int4_asymmetric),
        _groups("INT4_G128_ASYM", int4.decode_int4_asymmetric, int4.encode_int4_asymmetric),
        _groups("NF4_B64", nf4.decode_nf4, nf4.encode_nf4),
        _groups("NF4_B128", nf4.decode_nf4, nf4.encode_nf4),
    )
}

WRITABLE_FORMATS = tuple(each.name for each in FORMATS.values() if each.encode_runs is not None)
"""The formats that `encode` writes."""


def format_named(name: str) -> Format:
    """The format of that name. Raises `UnsupportedModelError` listing the readable ones."""
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"weights stored as {name!r:.40} cannot be read; farthing reads {', '.join(FORMATS)}: "
            "use a file in one of these"
        )
    return found


def bits_per_weight(name: str, shape: Sequence[int]) -> float:
    """Stored bits for one weight of a tensor, scales and zeros included, exact.

    Raises `UnsupportedModelError` for a format that cannot be read or cannot store such rows.
    """
    return 8 * stored_bytes(format_named(name).name, shape) / prod(shape)


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
    length = found.storage.run_length(shape[-1] if shape else 1)
    runs = data.reshape(-1, found.storage.row_bytes(length))
    weights = np.empty((len(runs), length), np.float32)
    piece = max(1, _PIECE_WEIGHTS // length)
    # Scales may be infinite or NaN in a damaged file; what they give is what the format says.
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(runs), piece):
            weights[first : first + piece] = found.decode_runs(runs[first : first + piece], length)
    return weights.reshape(shape)


def encode(
    weights: NDArray[np.float32], name: str, *, largest: float | None = None
) -> NDArray[np.uint8]:
    """The bytes of float32 weights in a format, one-dimensional. Rows are the last dimension.

    `largest` is the largest magnitude in the whole tensor, for formats with one scale a tensor,
    where `weights` are only some of its rows.
    Raises `UnsupportedModelError` for a format that cannot be written here or whose blocks do not
    divide a row, and `FileFormatError` for weights that it cannot store: an infinity or a NaN under
    a scale, or a magnitude beyond float16.
    """
    found = format_named(name)
    encode_runs = found.encode_runs
    if encode_runs is None:
        writable = ", ".join(WRITABLE_FORMATS)
        raise UnsupportedModelError(f"{name} can be read and not written; choose {writable}")
    size = stored_bytes(name, weights.shape)
    if size == 0:
        return np.empty(0, np.uint8)
    own_largest = np.float32(max(weights.max(), -weights.min()))
    if found.scaled and not np.isfinite(own_largest):
        raise FileFormatError(f"weights hold an infinity or a NaN, which {name} cannot store")
    length = found.storage.run_length(weights.shape[-1] if weights.shape else 1)
    runs = np.ascontiguousarray(weights, np.float32).reshape(-1, length)
    data = np.empty((len(runs), size // len(runs)), np.uint8)
    piece = max(1, _PIECE_WEIGHTS // length)
    spanned = own_largest if largest is None else np.float32(largest)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(runs), piece):
                data[first : first + piece] = encode_runs(runs[first : first + piece], spanned)
    except OverflowError:
        raise FileFormatError(
            f"weights as large as {own_largest:g} cannot be stored as {name}, which keeps float16 "
            "numbers (up to 65,504): choose INT8_ROW, BF16 or F32"
        ) from None
    return data.reshape(-1)
