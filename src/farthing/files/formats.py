"""The storage formats of tensors: their names, and how many bytes a row of weights takes.

GGUF's formats store a row as blocks; the figures are those of ggml's type table, and tests compare
them with the `gguf` package. farthing's own formats store a row's codes together and its scales
behind them, so that a group need not divide the row. Decoding them is the work of `quant/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from farthing.core import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class BlockFormat:
    """A row is blocks of `block_length` weights in `block_bytes` bytes each.

    `gguf_type` is the format's number in a GGUF tensor table.
    """

    name: str
    gguf_type: int
    block_length: int
    block_bytes: int

    def run_length(self, inputs: int) -> int:
        """Weights that are stored together, whatever surrounds them: a block's."""
        return self.block_length

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row. Raises `UnsupportedModelError` when it is not whole blocks."""
        if inputs % self.block_length:
            raise UnsupportedModelError(
                f"rows of {inputs} weights cannot be stored as {self.name}, whose blocks hold "
                f"{self.block_length}; choose a format whose block divides the row, such as F16"
            )
        return inputs // self.block_length * self.block_bytes

    @property
    def bits(self) -> str:
        """Bits for one weight, for people: exact whatever the row."""
        return f"{8 * self.block_bytes / self.block_length:g}"


@dataclass(frozen=True)
class RowFormat:
    """A row is its codes, its scales, its zeros, its own scale, each part padded to whole bytes.

    `group` inputs share a scale (and a zero of `zero_bits`, where there are any), the last group
    being as short as the row leaves it; 0: the row is one group. `whole_tensor`: all rows have the
    same scale, which is stored in each. `row_scale_bytes` are what the scales are codes under.
    """

    name: str
    code_bits: int
    group: int
    scale_bytes: int
    zero_bits: int = 0
    whole_tensor: bool = False
    row_scale_bytes: int = 0

    def run_length(self, inputs: int) -> int:
        """Weights that are stored together, whatever surrounds them: a row's."""
        return inputs

    def groups(self, inputs: int) -> int:
        """Groups in a row, a short last one included."""
        return -(-inputs // self.group) if self.group else 1

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row, of any length."""
        groups = self.groups(inputs)
        codes = -(-inputs * self.code_bits // 8)
        zeros = -(-groups * self.zero_bits // 8)
        return codes + groups * self.scale_bytes + zeros + self.row_scale_bytes

    @property
    def bits(self) -> str:
        """Bits for one weight, for people: exact for rows of K weights in whole groups."""
        shared = 8 * self.scale_bytes + self.zero_bits
        if not self.group:
            return f"{self.code_bits} + {shared}/K"
        grouped = f"{self.code_bits + shared / self.group:g}"
        return f"{grouped} + {8 * self.row_scale_bytes}/K" if self.row_scale_bytes else grouped


StorageFormat: TypeAlias = BlockFormat | RowFormat

GGUF_FORMATS: dict[str, BlockFormat] = {
    name: BlockFormat(name, gguf_type, block_length, block_bytes)
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

FORMAT_OF_GGUF_TYPE: dict[int, BlockFormat] = {
    storage.gguf_type: storage for storage in GGUF_FORMATS.values()
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


OWN_FORMATS: dict[str, RowFormat] = {
    storage.name: storage
    for storage in (
        RowFormat("INT8_TENSOR", 8, 0, 4, whole_tensor=True),
        RowFormat("INT8_ROW", 8, 0, 4),
        RowFormat("INT4_TENSOR", 4, 0, 2, whole_tensor=True),
        RowFormat("INT4_ROW", 4, 0, 2),
        RowFormat("INT4_G32", 4, 32, 2),
        RowFormat("INT4_G64", 4, 64, 2),
        RowFormat("INT4_G128", 4, 128, 2),
        RowFormat("INT4_G32_ASYM", 4, 32, 2, zero_bits=4),
        RowFormat("INT4_G64_ASYM", 4, 64, 2, zero_bits=4),
        RowFormat("INT4_G128_ASYM", 4, 128, 2, zero_bits=4),
        RowFormat("NF4_B64", 4, 64, 2),
        RowFormat("NF4_B128", 4, 128, 2),
        RowFormat("NF4_B64_DOUBLE", 4, 64, 1, row_scale_bytes=4),
    )
}
"""farthing's own: what a folder of safetensors names in `farthing.formats`."""

STORAGE_FORMATS: dict[str, StorageFormat] = {**GGUF_FORMATS, **OWN_FORMATS}

FALLBACKS = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What a matrix is stored as whose rows are no whole blocks of 256: llama.cpp's own choice."""


def format_for(wanted: str, inputs: int) -> str:
    """What a matrix is written as whose rows have so many weights, where `wanted` is asked for."""
    fallback = FALLBACKS.get(wanted)
    if fallback is None or inputs % GGUF_FORMATS[wanted].block_length == 0:
        return wanted
    return fallback


def spelling(format_name: str) -> str:
    """INT4_G128 as a person types it, int4-g128; GGUF's names keep their underscore: q4_k."""
    spelled = format_name.lower()
    return spelled.replace("_", "-") if format_name in OWN_FORMATS else spelled


def as_spelled(typed: str) -> str:
    """The spelling of the format that is typed, be it Q4_K, q4-k or q4_k; any other word in lower
    case.
    """
    name = typed.upper().replace("-", "_")
    return spelling(name) if name in STORAGE_FORMATS else typed.lower()


def stored_bytes(format_name: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor takes. `shape` is in weights, outermost first.

    Raises `UnsupportedModelError` for a format that is not in the table, and when a row cannot be
    stored in it.
    """
    storage = STORAGE_FORMATS.get(format_name)
    if storage is None:
        raise UnsupportedModelError(
            f"no storage format is called {format_name!r:.40}; known: {', '.join(STORAGE_FORMATS)}"
        )
    return prod(shape[:-1]) * storage.row_bytes(shape[-1] if shape else 1)
