"""The storage formats of tensors: GGUF's type numbers, names, and how many bytes a block takes.

A row of a quantised tensor is a whole number of blocks, each of `block_length` weights in
`block_bytes` bytes. The figures are those of ggml's type table; tests compare them with the `gguf`
package. Decoding them is the work of `quant/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from farthing.core import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class StorageFormat:
    """How one kind of tensor is laid out. `gguf_type` is its number in a GGUF tensor table."""

    name: str
    gguf_type: int
    block_length: int
    block_bytes: int


STORAGE_FORMATS: dict[str, StorageFormat] = {
    name: StorageFormat(name, gguf_type, block_length, block_bytes)
    for name, gguf_type, block_length, block_bytes in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q8_1", 9, 32, 40),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("I64", 27, 1, 8),
        ("F64", 28, 1, 8),
        ("IQ1_M", 29, 256, 56),
        ("BF16", 30, 1, 2),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
        ("Q1_0", 41, 128, 18),
    )
}

FORMAT_OF_GGUF_TYPE: dict[int, StorageFormat] = {
    storage.gguf_type: storage for storage in STORAGE_FORMATS.values()
}

RETIRED_GGUF_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that older files carry and ggml no longer reads: known only to be named in errors."""


def stored_bytes(format_name: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor takes. `shape` is in weights, outermost first.

    Raises `UnsupportedModelError` for a format that is not in the table, and when a row is not a
    whole number of blocks.
    """
    storage = STORAGE_FORMATS.get(format_name)
    if storage is None:
        raise UnsupportedModelError(
            f"no storage format is called {format_name!r}; known: {', '.join(STORAGE_FORMATS)}"
        )
    row = shape[-1] if shape else 1
    if row % storage.block_length:
        raise UnsupportedModelError(
            f"rows of {row} weights cannot be stored as {format_name}, whose blocks hold "
            f"{storage.block_length}; choose a format whose block divides the row, such as F16"
        )
    return prod(shape) // storage.block_length * storage.block_bytes
