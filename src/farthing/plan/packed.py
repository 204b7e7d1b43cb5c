"""Sizes of what the native core holds: packed matrices, prepared activations, cache blocks.

The formulas of native/formats.h and kernels.h, which a test compares with these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from farthing.core import BLOCK_TOKENS, ActivationMode, KVDtype, RequestError
from farthing.files.formats import OWN_FORMATS

if TYPE_CHECKING:
    from collections.abc import Collection

TILE = 16
"""Outputs in one tile of a packed matrix."""

GROUP = 32
"""Inputs that share one weight scale and one activation scale."""


class _Layout(NamedTuple):
    """A row of the table in native/formats.h."""

    mode: ActivationMode
    bits: int
    upper_bits: int
    span: int | None
    """Inputs under one scale; 0: the group says, None: all."""
    span_bytes: int
    part_bytes: int


_FP32, _BF16, _INT8 = ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8
_LAYOUTS = {
    "F32": _Layout(_FP32, 32, 0, None, 0, 0),
    "F16": _Layout(_FP32, 16, 0, None, 0, 0),
    "BF16": _Layout(_BF16, 16, 0, None, 0, 0),
    "Q8_0": _Layout(_INT8, 8, 0, 32, 32, 0),
    "Q4_0": _Layout(_INT8, 4, 0, 32, 32, 0),
    "Q4_1": _Layout(_INT8, 4, 0, 32, 64, 0),
    "Q5_0": _Layout(_INT8, 4, 1, 32, 32, 0),
    "Q5_1": _Layout(_INT8, 4, 1, 32, 64, 0),
    "Q4_K": _Layout(_INT8, 4, 0, 256, 64, 32),
    "Q5_K": _Layout(_INT8, 4, 1, 256, 64, 32),
    "Q6_K": _Layout(_INT8, 4, 2, 256, 32, 32),
    "Q2_K": _Layout(_INT8, 2, 0, 256, 64, 32),
    "Q3_K": _Layout(_INT8, 2, 1, 256, 32, 32),
    "IQ4_NL": _Layout(_INT8, 4, 0, 32, 32, 0),
    "INT8": _Layout(_INT8, 8, 0, None, 64, 0),
    "INT4": _Layout(_INT8, 4, 0, 0, 32, 0),
    "INT4_ASYM": _Layout(_INT8, 4, 0, 0, 48, 0),
    "NF4": _Layout(_INT8, 4, 0, 0, 32, 0),
    "NF4_EXACT": _Layout(_FP32, 4, 0, 0, 32, 0),
}
_MODE_BYTES = {ActivationMode.FP32: 4, ActivationMode.BF16: 2, ActivationMode.INT8: 1}


class _KVLayout(NamedTuple):
    """Bits of an element of a key and of a value, and bytes of the scale of each."""

    key_bits: int
    value_bits: int
    key_scale_bytes: int = 0
    value_scale_bytes: int = 0

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's key and value in one head."""
        numbers = head_dim * (self.key_bits + self.value_bits) // 8
        return numbers + self.key_scale_bytes + self.value_scale_bytes


_KV_LAYOUTS = {
    KVDtype.FP32: _KVLayout(32, 32),
    KVDtype.FP16: _KVLayout(16, 16),
    KVDtype.BF16: _KVLayout(16, 16),
    KVDtype.INT8: _KVLayout(8, 8, 4, 4),
    KVDtype.INT4_KEYS: _KVLayout(4, 8, 2, 4),
}

MOST_ROTATED = 1024
"""Dimensions of the largest head whose keys can be rotated."""

PACKED_FORMATS = tuple(_LAYOUTS)
"""Formats with a packed layout; the position is native/formats.h's `Format`."""


@dataclass(frozen=True)
class PackedFormat:
    """How a matrix is held while it runs.

    `group` is the number of inputs under one scale where the packed format leaves that open, else
    0. `expanded`: the stored weights are decoded to the numbers that `name` says. `lossless`: a
    product uses exactly the stored weights.
    """

    name: str
    mode: ActivationMode
    lossless: bool
    expanded: bool = False
    group: int = 0


def packed_format(stored: str, activations: ActivationMode | None, inputs: int) -> PackedFormat:
    """The packed format of a matrix stored as `stored`, for the wanted activation mode.

    None leaves each format its own: int8 activations for weights of up to 8 bits, bf16 for BF16,
    fp32 for F16 and F32. These keep their own width when int8 activations are wanted: there is
    nothing to multiply codes with. With wider activations than their own, weights of up to 8 bits
    are expanded to them; but NF4 has exact products with fp32 as it is stored. (With int8 ones,
    its levels are rounded to 8 bits too.)
    """
    name, group = _kept_as(stored, inputs)
    if activations is ActivationMode.FP32 and name == "NF4":
        name = "NF4_EXACT"
    elif activations is ActivationMode.FP32 and name not in ("F16", "F32"):
        return PackedFormat("F32", _FP32, lossless=True, expanded=True)
    elif activations is ActivationMode.BF16 and name != "BF16":
        return PackedFormat("BF16", _BF16, lossless=False, expanded=True)
    return PackedFormat(name, _LAYOUTS[name].mode, lossless=name != "NF4", group=group)


def _kept_as(stored: str, inputs: int) -> tuple[str, int]:
    """The packed format that holds stored rows losslessly, and its group."""
    own = OWN_FORMATS.get(stored)
    if own is None:
        return stored, 0
    if own.code_bits == 8:
        return "INT8", 0
    name = "INT4_ASYM" if own.zero_bits else stored.split("_")[0]
    return name, own.group or round_up(inputs, GROUP)


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def matrix_bytes(packed: PackedFormat, outputs: int, inputs: int) -> int:
    """Bytes of a packed matrix: whole tiles of 16 outputs, whole groups of 32 inputs."""
    layout = _LAYOUTS[packed.name]
    groups = -(-inputs // GROUP)
    spans = 1 if layout.span is None else -(-inputs // (layout.span or packed.group))
    codes = GROUP * TILE * (layout.bits + layout.upper_bits) // 8
    tile = groups * (codes + layout.part_bytes) + spans * layout.span_bytes
    return -(-outputs // TILE) * round_up(tile, 64)


def prepared_bytes(mode: ActivationMode, rows: int, inputs: int) -> int:
    """Bytes of `rows` rows of activations as a product takes them, with scales and sums."""
    padded = round_up(inputs, GROUP)
    size = round_up(rows * padded * _MODE_BYTES[mode], 64)
    if mode is ActivationMode.INT8:
        size += 5 * round_up(rows * (padded // GROUP) * 4, 64)
    return size


def head_block_bytes(kv_dtype: KVDtype, head_dim: int) -> int:
    """Bytes of one KV head's keys and values in one block of 32 positions."""
    return round_up(BLOCK_TOKENS * token_bytes(kv_dtype, 1, head_dim), 64)


def holds_heads(kv_dtype: KVDtype, head_dim: int) -> bool:
    """Whether a cache can hold heads of so many dimensions.

    bf16 has pairs; int4 keys are rotated by a Hadamard matrix, which has a power of two rows.
    """
    if kv_dtype is KVDtype.BF16:
        return head_dim % 2 == 0
    if kv_dtype is not KVDtype.INT4_KEYS:
        return True
    return 2 <= head_dim <= MOST_ROTATED and head_dim.bit_count() == 1


def holding(head_dims: Collection[int]) -> tuple[KVDtype, ...]:
    """The caches that can hold heads of all these dimensions."""
    return tuple(each for each in KVDtype if all(holds_heads(each, size) for size in head_dims))


def refuse_heads(kv_dtype: KVDtype, head_dims: Collection[int]) -> None:
    """Raises `RequestError` where the cache cannot hold one of a model's heads."""
    for size in head_dims:
        if not holds_heads(kv_dtype, size):
            raise RequestError(
                f"a cache of {kv_dtype.value} cannot hold this model's heads of {size} dimensions: "
                f"use --kv-dtype {', '.join(holding(head_dims))}"
            )


def token_bytes(kv_dtype: KVDtype, kv_heads: int, head_dim: int) -> int:
    """Bytes that one token of context takes in one layer: the formula of textbooks.

    2 * kv_heads * head_dim * bytes per element, and the scales of the coded: fp32, int4 keys' fp16.
    """
    return kv_heads * _KV_LAYOUTS[kv_dtype].token_bytes(head_dim)


def partial_floats(head_dim: int) -> int:
    """float32 numbers that one row's share of one chunk of attention takes."""
    return round_up(head_dim + 2, TILE)


def sampling_scratch_bytes(vocabulary: int) -> int:
    """Bytes that the native sampler needs a thread."""
    padded = round_up(vocabulary, 1024)
    return 12 * padded + padded // 16 + 8192
