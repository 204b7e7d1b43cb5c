"""AWQ: inputs that matter are scaled up before rounding, and groups' ranges are clipped.

Lin et al. 2023, "AWQ: Activation-aware weight quantization". With s = magnitude^r per input, W s is
rounded and the inputs are divided by s, so that the error of a weight whose input is large weighs
less; r is the one of a grid that leaves the least output error. Then each group of each row gets
the range, cut by up to 45 %, that leaves its own output error least. Output errors are taken from
the Hessian (see `hessian.py`), which equals running the calibration tokens through.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import FarthingError, StoredTensor
from farthing.files.formats import RowFormat
from farthing.quant.formats import decode, encode, format_named
from farthing.quant.hessian import check_hessian, output_error
from farthing.quant.packing import grouped, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_RATIOS = tuple(index / 20 for index in range(20))
_SHARES = tuple(1 - index / 20 for index in range(10))
_SMALLEST_SCALE = np.float32(1e-4)

_PIECE_WEIGHTS = 1 << 20
"""Weights whose ranges are searched at once; rows do not depend on each other."""


@dataclass(frozen=True)
class AwqResult:
    """What the search found for matrices that share their input.

    `scales` (K,) multiply the weights and divide the input; `ratio` is the r they come from. `loss`
    is the mean squared output error with them, summed over all outputs, and `plain_loss` that
    without.
    """

    scales: NDArray[np.float32]
    ratio: float
    loss: float
    plain_loss: float


def search_awq(
    matrices: Sequence[NDArray[np.float32]],
    name: str,
    hessian: NDArray[Any],
    magnitudes: NDArray[np.float32],
    workers: int = 1,
) -> AwqResult:
    """Scales for weights (N, K) that read one input, to be stored in a format.

    `hessian` is the mean of x x^T over calibration tokens, (K, K), and `magnitudes` the mean of
    |x|, (K,). Where inputs have to share scales, give them one magnitude. So many `workers` try
    ratios at once, each of which holds a few copies of a matrix.
    Raises `FarthingError` for matrices, Hessian or magnitudes that do not fit each other or are not
    finite, and where the format cannot store the weights.
    """
    if not matrices:
        raise FarthingError("AWQ has no matrix to search scales for: give those of one input")
    inputs = matrices[0].shape[1]
    check_hessian(hessian, inputs)
    _check(matrices, magnitudes)
    second = hessian.astype(np.float32)

    def loss_with(ratio: float) -> float:
        scales = _scales(magnitudes, ratio)
        return sum(_loss(weights, name, second, scales) for weights in matrices)

    with ThreadPoolExecutor(workers) as pool:
        losses = list(pool.map(loss_with, _RATIOS))
    best = int(np.argmin(losses))
    return AwqResult(_scales(magnitudes, _RATIOS[best]), _RATIOS[best], losses[best], losses[0])


def search_clip(
    weights: NDArray[np.float32], name: str, hessian: NDArray[Any]
) -> NDArray[np.float32]:
    """The weights (N, K) with each group's range cut to what leaves the least error in its output.

    That is the part of the output that the group alone gives; `hessian` is of the weights' inputs,
    (K, K), divided where the weights are scaled. Formats without a range for a group (one for a
    whole tensor, or floats) and K-quants, which search for theirs when they are encoded, get the
    weights as they are. Where codes are chosen with a Hessian, as in GPTQ, the result is for the
    scales only.
    Raises `FarthingError` where the format cannot store the weights.
    """
    check_hessian(hessian, weights.shape[1])
    group = _clip_group(name, weights.shape[1])
    if group == 0:
        return weights
    blocks = _diagonal_blocks(hessian, group)
    step = max(1, _PIECE_WEIGHTS // weights.shape[1])
    pieces = [
        _clipped(weights[first : first + step], name, blocks, group)
        for first in range(0, len(weights), step)
    ]
    return np.concatenate(pieces)


def _clipped(
    weights: NDArray[np.float32], name: str, blocks: NDArray[np.float32], group: int
) -> NDArray[np.float32]:
    largest = np.abs(grouped(weights, group)).max(axis=2)
    best = weights
    least = np.full(largest.shape, np.inf, np.float32)
    for share in _SHARES:
        limits = spread(largest * np.float32(share), group, weights.shape[1])
        clipped = np.clip(weights, -limits, limits)
        difference = grouped(_rounded(clipped, name) - weights, group).swapaxes(0, 1)
        error = np.einsum("gnk,gnk->ng", difference @ blocks, difference)
        better = spread(error < least, group, weights.shape[1])
        best = np.where(better, clipped, best)
        least = np.minimum(error, least)
    return best


def _clip_group(name: str, inputs: int) -> int:
    """How many inputs share a range that can be clipped; 0: none."""
    storage = format_named(name).storage
    if isinstance(storage, RowFormat):
        return 0 if storage.whole_tensor else storage.group or inputs
    return storage.block_length if 1 < storage.block_length <= 32 else 0


def _check(matrices: Sequence[NDArray[np.float32]], magnitudes: NDArray[np.float32]) -> None:
    inputs = matrices[0].shape[1]
    if any(weights.shape[1] != inputs for weights in matrices) or magnitudes.shape != (inputs,):
        raise FarthingError(
            f"AWQ was given matrices of {[weights.shape for weights in matrices]} and "
            f"{magnitudes.shape} magnitudes: all must have the number of inputs they share"
        )
    if not (np.isfinite(magnitudes) & (magnitudes >= 0)).all():
        raise FarthingError(
            "the mean magnitudes of AWQ's inputs must be finite numbers from 0: the model's "
            "activations overflow on the calibration text; calibrate with another text"
        )


def _scales(magnitudes: NDArray[np.float32], ratio: float) -> NDArray[np.float32]:
    """Magnitudes to the power of `ratio`, centred on 1 so that weights keep their size."""
    scales = np.maximum(np.power(magnitudes, np.float32(ratio)), _SMALLEST_SCALE)
    centred: NDArray[np.float32] = scales / np.sqrt(scales.max() * scales.min())
    return centred


def _loss(
    weights: NDArray[np.float32],
    name: str,
    hessian: NDArray[np.float32],
    scales: NDArray[np.float32],
) -> float:
    return output_error(_rounded(weights * scales, name) / scales - weights, hessian)


def _rounded(weights: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    return decode(StoredTensor("weights", name, weights.shape, encode(weights, name)))


def _diagonal_blocks(hessian: NDArray[Any], group: int) -> NDArray[np.float32]:
    """(K, K) -> (groups, group, group), a short last block filled up with zeros."""
    inputs = len(hessian)
    blocks = np.zeros((-(-inputs // group), group, group), np.float32)
    for number, block in enumerate(blocks):
        part = hessian[number * group : (number + 1) * group, number * group : (number + 1) * group]
        block[: len(part), : len(part)] = part
    return blocks
