"""A tensor in a format of farthing taken apart by what its contract says, without the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor
from farthing.quant.formats import decode, encode
from farthing.quant.nf4 import DYNAMIC_MAP

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT8 = ["INT8_TENSOR", "INT8_ROW"]
SYMMETRIC = ["INT4_TENSOR", "INT4_ROW", "INT4_G32", "INT4_G64", "INT4_G128"]
ASYMMETRIC = ["INT4_G32_ASYM", "INT4_G64_ASYM", "INT4_G128_ASYM"]
NF4 = ["NF4_B64", "NF4_B128"]
DOUBLE = "NF4_B64_DOUBLE"
OWN = [*INT8, *SYMMETRIC, *ASYMMETRIC, *NF4, DOUBLE]


def group_length(name: str, inputs: int) -> int:
    """Inputs under one scale, by the format's name."""
    digits = "".join(c for c in name.split("_")[1] if c.isdigit())
    return int(digits) if digits else inputs


@dataclass(frozen=True)
class Rows:
    """Codes (n, inputs), and for each group of `group` inputs its scale and its zero, (n, groups).

    Codes are as stored; `zeros` is None where the format has none.
    """

    codes: NDArray[np.int32]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int32] | None
    group: int


def take_apart(data: NDArray[np.uint8], name: str, shape: tuple[int, int]) -> Rows:
    """Reads each value by hand, one at a time: slow and plain."""
    outputs, inputs = shape
    group = group_length(name, inputs)
    groups = -(-inputs // group)
    codes, scales, zeros = [], [], []
    for row in data.reshape(outputs, -1).tolist():
        if name in INT8:
            codes.append([byte - 256 if byte > 127 else byte for byte in row[:inputs]])
            scales.append(np.frombuffer(bytes(row[inputs:]), "<f4"))
            continue
        codes.append([row[i // 2] >> (i % 2 * 4) & 15 for i in range(inputs)])
        tail = row[(inputs + 1) // 2 :]
        if name == DOUBLE:
            assert len(tail) == groups + 4
            scale, mean = np.frombuffer(bytes(tail[groups:]), "<f2").astype(np.float32)
            with np.errstate(invalid="ignore"):
                absmax = [mean + scale * DYNAMIC_MAP[byte] for byte in tail[:groups]]
                scales.append(np.clip(absmax, 0, 65504).astype(np.float16))
            continue
        scales.append(np.frombuffer(bytes(tail[: 2 * groups]), "<f2"))
        zeros.append(
            [tail[2 * groups + i // 2] >> (i % 2 * 4) & 15 for i in range(groups)]
            if name in ASYMMETRIC
            else []
        )
        assert len(tail) == 2 * groups + ((groups + 1) // 2 if name in ASYMMETRIC else 0)
    return Rows(
        np.array(codes, np.int32),
        np.array(scales, np.float32),
        np.array(zeros, np.int32) if name in ASYMMETRIC else None,
        group,
    )


def encoded(weights: NDArray[np.float32], name: str) -> Rows:
    """The weights in the format, taken apart."""
    return take_apart(encode(weights, name), name, weights.shape)


def decoded(weights: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """The weights after a round trip through the format."""
    return decode(StoredTensor("weights", name, weights.shape, encode(weights, name)))


def random_weights(
    seed: int, outputs: int, inputs: int, scale: float = 0.02
) -> NDArray[np.float32]:
    """Normal, with a few far out, as weights are."""
    generator = np.random.default_rng(seed)
    weights = generator.standard_normal((outputs, inputs)) * scale
    far = generator.random((outputs, inputs)) < 0.003
    return np.where(far, weights * 8, weights).astype(np.float32)
