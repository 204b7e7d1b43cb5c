"""Sizes of what the native core holds: packed matrices, prepared activations, cache blocks.

The formulas of native/kernels.h, which a test compares with these number by number.
"""

from __future__ import annotations

from dataclasses import dataclass

from farthing.core import BLOCK_TOKENS, ActivationMode, KVDtype

TILE = 16
"""Outputs in one tile of a packed matrix."""

GROUP = 32
"""Inputs that share one weight scale and one activation scale."""

_CODE_BYTES = {  # of one group of one tile
    "F32": GROUP * TILE * 4,
    "F16": GROUP * TILE * 2,
    "BF16": GROUP * TILE * 2,
    "Q8_0": GROUP * TILE,
    "Q4_0": GROUP * TILE // 2,
    "Q4_1": GROUP * TILE // 2,
    "Q5_0": GROUP * TILE // 2 + GROUP * TILE // 8,
    "Q5_1": GROUP * TILE // 2 + GROUP * TILE // 8,
}
_SCALE_PLANES = {"Q8_0": 1, "Q4_0": 1, "Q5_0": 1, "Q4_1": 2, "Q5_1": 2}
_MODES = {"F32": ActivationMode.FP32, "F16": ActivationMode.FP32, "BF16": ActivationMode.BF16}
_MODE_BYTES = {ActivationMode.FP32: 4, ActivationMode.BF16: 2, ActivationMode.INT8: 1}
_KV_BYTES = {KVDtype.FP32: 4, KVDtype.FP16: 2, KVDtype.BF16: 2, KVDtype.INT8: 1}

PACKED_FORMATS = tuple(_CODE_BYTES)
"""Formats with a packed layout of their own; the position is native/kernels.h's `Format`."""


@dataclass(frozen=True)
class PackedFormat:
    """How a matrix is held while it runs. `lossless`: exactly the stored weights."""

    name: str
    mode: ActivationMode
    lossless: bool


def packed_format(stored: str, activations: ActivationMode | None) -> PackedFormat:
    """The packed format of a matrix stored as `stored`, for the wanted activation mode.

    None leaves each format its own: int8 activations for 4- to 8-bit weights, bf16 for BF16, fp32
    for F16 and F32. Other stored formats (the K-quants, IQ4_NL) have no packed layout yet and are
    held as BF16. Weights of 16 and 32 bits keep their own width when int8 activations are wanted:
    there is nothing to multiply codes with.
    """
    if activations is ActivationMode.FP32:
        name = stored if stored in ("F16", "F32") else "F32"
    elif activations is ActivationMode.BF16 or stored not in _CODE_BYTES:
        name = "BF16"
    else:
        name = stored
    lossless = name == stored or name == "F32"
    return PackedFormat(name, _MODES.get(name, ActivationMode.INT8), lossless)


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def matrix_bytes(packed: str, outputs: int, inputs: int) -> int:
    """Bytes of a packed matrix: whole tiles of 16 outputs, whole groups of 32 inputs."""
    groups = -(-inputs // GROUP)
    tile = groups * (_CODE_BYTES[packed] + _SCALE_PLANES.get(packed, 0) * TILE * 2)
    return -(-outputs // TILE) * round_up(tile, 64)


def prepared_bytes(mode: ActivationMode, rows: int, inputs: int) -> int:
    """Bytes of `rows` rows of activations as a product takes them, with scales and sums."""
    padded = round_up(inputs, GROUP)
    size = round_up(rows * padded * _MODE_BYTES[mode], 64)
    if mode is ActivationMode.INT8:
        size += 3 * round_up(rows * (padded // GROUP) * 4, 64)
    return size


def head_block_bytes(kv_dtype: KVDtype, head_dim: int) -> int:
    """Bytes of one KV head's keys and values in one block of 32 positions."""
    scales = 2 * BLOCK_TOKENS * 4 if kv_dtype is KVDtype.INT8 else 0
    return round_up(2 * BLOCK_TOKENS * head_dim * _KV_BYTES[kv_dtype] + scales, 64)


def token_bytes(kv_dtype: KVDtype, kv_heads: int, head_dim: int) -> int:
    """Bytes that one token of context takes in one layer: the formula of textbooks.

    2 * kv_heads * head_dim * bytes per element, and for int8 an fp32 scale for each key and value.
    """
    scales = 2 * 4 if kv_dtype is KVDtype.INT8 else 0
    return kv_heads * (2 * head_dim * _KV_BYTES[kv_dtype] + scales)


def partial_floats(head_dim: int) -> int:
    """float32 numbers that one row's share of one chunk of attention takes."""
    return round_up(head_dim + 2, TILE)


def sampling_scratch_bytes(vocabulary: int) -> int:
    """Bytes that the native sampler needs a thread."""
    padded = round_up(vocabulary, 1024)
    return 12 * padded + padded // 16 + 8192
