"""The bytes of a model's tensors in other formats, a few million weights at a time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError
from farthing.files.formats import OWN_FORMATS
from farthing.quant.formats import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.files.writing import TensorPlan

PIECE_WEIGHTS = 1 << 22
PIECE_BYTES = 1 << 24


class EncodedPieces:
    """Gives the bytes of planned tensors, made from the `tensors` of the same names.

    A tensor that has its planned format already is passed on bit for bit. `progress` is told the
    name of each tensor and the share of all weights that is done.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        progress: Callable[[str, float], None] | None,
    ) -> None:
        self._tensors = tensors
        self._weights = sum(prod(tensor.shape) for tensor in tensors.values())
        self._progress = progress
        self._done = 0

    def __call__(self, plan: TensorPlan) -> Iterator[NDArray[np.uint8]]:
        """Raises `FarthingError` naming the tensor where its weights cannot be stored."""
        tensor = self._tensors[plan.name]
        if self._progress is not None:
            self._progress(plan.name, self._done / self._weights)
        if plan.format == tensor.format:
            for first in range(0, tensor.data.nbytes, PIECE_BYTES):
                yield tensor.data[first : first + PIECE_BYTES]
        else:
            yield from _encoded(tensor, plan.format)
        self._done += prod(plan.shape)


def _encoded(tensor: StoredTensor, format_name: str) -> Iterator[NDArray[np.uint8]]:
    try:
        storage = OWN_FORMATS.get(format_name)
        largest = _largest(tensor) if storage is not None and storage.whole_tensor else None
        for rows in _row_ranges(tensor):
            yield encode(decode(tensor, rows), format_name, largest=largest)
    except FarthingError as error:
        raise type(error)(f"the tensor {tensor.name}: {error}") from error


def _largest(tensor: StoredTensor) -> float:
    """The largest magnitude in the tensor; NaN where it holds one."""
    return float(np.max([np.abs(decode(tensor, rows)).max() for rows in _row_ranges(tensor)]))


def _row_ranges(tensor: StoredTensor) -> Iterator[slice]:
    outputs, inputs = tensor.shape
    step = max(1, PIECE_WEIGHTS // inputs)
    for first in range(0, outputs, step):
        yield slice(first, min(first + step, outputs))
