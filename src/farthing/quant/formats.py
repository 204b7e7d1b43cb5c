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
from farthing.files.formats import OWN_FORMATS, STORAGE_FORMATS, BlockFormat, stored_bytes
from farthing.quant import floats, int4, int8, iq4, kquants, kquants_encoding, legacy, nf4

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.files.formats import StorageFormat

    Decoder = Callable[[NDArray[np.uint8], int], NDArray[np.float32]]
    Encoder = Callable[
        [NDArray[np.float32], np.float32, NDArray[np.float32] | None], NDArray[np.uint8]
    ]

_PIECE_WEIGHTS = 1 << 17
"""Weights coded at once: temporaries stay in the processor's cache whatever the tensor's size."""

_SEARCHABLE = np.float32(1 << 29)
"""No format that searches has a scale for more, and what a search sums up stays finite below it."""

_LEAST_IMPORTANCE = np.float32(1e-6)
"""Of the mean: an input that calibration never saw keeps scales of its own weights' size."""


@dataclass(frozen=True)
class Format:
    """One readable format, in runs: what is stored together, a block or a row of n weights.

    `decode_runs` takes runs as (count, bytes) uint8 and n, and gives (count, n) float32.
    `encode_runs` goes the other way; it is told the largest magnitude in the tensor, which the
    formats with one scale a tensor use, and each weight's importance, (count, n) float32 or None.
    `weighed` says whether that changes what is stored, and `searches` whether scales are searched
    for without one, too. Raises `OverflowError` for a scale beyond float16.
    """

    storage: StorageFormat
    decode_runs: Decoder
    encode_runs: Encoder
    searches: bool = False
    weighed: bool = False

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
    encode_blocks: Callable[[NDArray[np.float32]], NDArray[np.uint8]],
) -> Format:
    """A format of GGUF, whose coders need to be told nothing besides the blocks."""
    return Format(
        STORAGE_FORMATS[name], lambda blocks, _: decode_blocks(blocks), _alone(encode_blocks)
    )


def _searched(
    name: str,
    decode_blocks: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    encode_blocks: Callable[[NDArray[np.float32], NDArray[np.float32] | None], NDArray[np.uint8]],
    *,
    always: bool = True,
) -> Format:
    """A format of GGUF whose scales are searched for: `always`, or where there is an importance."""
    return Format(
        STORAGE_FORMATS[name],
        lambda blocks, _: decode_blocks(blocks),
        lambda weights, _, importance: encode_blocks(weights, importance),
        searches=always,
        weighed=True,
    )


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
        _alone(lambda weights: encode_rows(weights, storage.group)),
    )


def _alone(encode_runs: Callable[[NDArray[np.float32]], NDArray[np.uint8]]) -> Encoder:
    """An encoder that needs nothing but the weights."""
    return lambda weights, _largest, _importance: encode_runs(weights)


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        _blocks("F32", floats.decode_f32, floats.encode_f32),
        _blocks("F16", floats.decode_f16, floats.encode_f16),
        _blocks("BF16", floats.decode_bf16, floats.encode_bf16),
        _blocks("Q8_0", legacy.decode_q8_0, legacy.encode_q8_0),
        _searched("Q4_0", legacy.decode_q4_0, legacy.encode_q4_0, always=False),
        _searched("Q4_1", legacy.decode_q4_1, legacy.encode_q4_1, always=False),
        _searched("Q5_0", legacy.decode_q5_0, legacy.encode_q5_0, always=False),
        _searched("Q5_1", legacy.decode_q5_1, legacy.encode_q5_1, always=False),
        _searched("Q2_K", kquants.decode_q2_k, kquants_encoding.encode_q2_k),
        _searched("Q3_K", kquants.decode_q3_k, kquants_encoding.encode_q3_k),
        _searched("Q4_K", kquants.decode_q4_k, kquants_encoding.encode_q4_k),
        _searched("Q5_K", kquants.decode_q5_k, kquants_encoding.encode_q5_k),
        _searched("Q6_K", kquants.decode_q6_k, kquants_encoding.encode_q6_k),
        _searched("IQ4_NL", iq4.decode_iq4_nl, iq4.encode_iq4_nl),
        Format(
            OWN_FORMATS["INT8_TENSOR"],
            int8.decode_int8,
            lambda weights, largest, _: int8.encode_int8(weights, largest),
        ),
        Format(OWN_FORMATS["INT8_ROW"], int8.decode_int8, _alone(int8.encode_int8)),
        Format(
            OWN_FORMATS["INT4_TENSOR"],
            lambda rows, inputs: int4.decode_int4(rows, inputs, 0),
            lambda weights, largest, _: int4.encode_int4(weights, 0, largest),
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
        _groups("NF4_B64_DOUBLE", nf4.decode_nf4_double, nf4.encode_nf4_double),
    )
}

WRITABLE_FORMATS = tuple(FORMATS)
"""The formats that `encode` writes: all."""

_NARROW_BLOCKS = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""In place of a format of 256-weight blocks, as llama.cpp's quantiser replaces it."""


def format_named(name: str) -> Format:
    """The format of that name. Raises `UnsupportedModelError` listing the readable ones."""
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"weights stored as {name!r:.40} cannot be read; farthing reads {', '.join(FORMATS)}: "
            "use a file in one of these"
        )
    return found


def format_for_rows(name: str, inputs: int) -> str:
    """The format itself where rows of `inputs` weights can be stored in it, else its substitute.

    A K-quant gives way to a format of 32-weight blocks and about as many bits or more, and any
    format to F16 where a row is no whole number of such blocks, as in llama.cpp: its files and ours
    have the same formats.
    Raises `UnsupportedModelError` for a format that cannot be read.
    """
    storage = format_named(name).storage
    if not isinstance(storage, BlockFormat) or inputs % storage.block_length == 0:
        return name
    return _NARROW_BLOCKS.get(name, "F16") if inputs % 32 == 0 else "F16"


def packable(tensor: StoredTensor) -> NDArray[np.uint8]:
    """The tensor's bytes as the native core packs them: its own, or those of a format it knows.

    Double-quantised NF4 becomes NF4 with the absmax that it decodes to, in new memory; codes and
    what they decode to stay the same.
    """
    if tensor.format != "NF4_B64_DOUBLE":
        return tensor.data
    outputs, inputs = tensor.shape
    return nf4.with_absmax(tensor.data.reshape(outputs, -1), inputs, 64).reshape(-1)


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
    weights: NDArray[np.float32],
    name: str,
    *,
    largest: float | None = None,
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """The bytes of float32 weights in a format, one-dimensional. Rows are the last dimension.

    `largest` is the largest magnitude in the whole tensor, for formats with one scale a tensor,
    where `weights` are only some of its rows. `importance` says for each input of a row, (inputs,),
    how much the square of its weights' errors counts, in any unit; the formats that can search for
    their scales (`Format.weighed`) use it, the others leave nothing to choose.
    Raises `UnsupportedModelError` for a format that is not known here or whose blocks do not divide
    a row, and `FileFormatError` for weights that it cannot store: an infinity or a NaN under a
    scale, or a magnitude beyond float16.
    """
    found = format_named(name)
    size = stored_bytes(name, weights.shape)
    if size == 0:
        return np.empty(0, np.uint8)
    own_largest = np.float32(max(weights.max(), -weights.min()))
    if found.scaled and not np.isfinite(own_largest):
        raise FileFormatError(f"weights hold an infinity or a NaN, which {name} cannot store")
    length = found.storage.run_length(weights.shape[-1] if weights.shape else 1)
    runs = np.ascontiguousarray(weights, np.float32).reshape(-1, length)
    counted = _importance_of_runs(importance, weights.shape, length) if found.weighed else None
    data = np.empty((len(runs), size // len(runs)), np.uint8)
    piece = max(1, _PIECE_WEIGHTS // length)
    spanned = own_largest if largest is None else np.float32(largest)
    try:
        if (found.searches or counted is not None) and own_largest > _SEARCHABLE:
            raise OverflowError("beyond float16")
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(runs), piece):
                part = runs[first : first + piece]
                numbers = np.arange(first, first + len(part))
                counts = None if counted is None else counted.take(numbers, axis=0, mode="wrap")
                data[first : first + piece] = found.encode_runs(part, spanned, counts)
    except OverflowError:
        raise FileFormatError(
            f"weights as large as {own_largest:g} cannot be stored as {name}, which keeps float16 "
            "numbers (up to 65,504): choose INT8_ROW, BF16 or F32"
        ) from None
    return data.reshape(-1)


def _importance_of_runs(
    importance: NDArray[np.float32] | None, shape: tuple[int, ...], length: int
) -> NDArray[np.float32] | None:
    """(inputs,) -> (runs of one row, length), of mean 1."""
    if importance is None:
        return None
    if importance.shape != shape[-1:]:
        raise ValueError(f"rows of {shape[-1:]} inputs and importances of {importance.shape}")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise FileFormatError("an input's importance is negative, infinite or NaN: calibrate again")
    counted = importance.astype(np.float64)
    mean = counted.mean()
    counted = counted / mean if mean > 0 else np.ones_like(counted)
    return np.maximum(counted, _LEAST_IMPORTANCE).astype(np.float32).reshape(-1, length)
