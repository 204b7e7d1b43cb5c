"""What the writers of model files share: a tensor that is to be written, and its bytes in pieces.

A file's layout is known before the first byte of a tensor is: sizes follow from formats. So tensors
are written one after another as they are made, and none need be held whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written. `format` and `shape` are as in `StoredTensor`."""

    name: str
    format: str
    shape: tuple[int, ...]
    bytes: int


Pieces: TypeAlias = Callable[[TensorPlan], Iterable[NDArray[np.uint8]]]
"""Gives a planned tensor's bytes, in order, in any number of pieces."""


def write_tensors(
    file: BinaryIO, plans: Sequence[TensorPlan], pieces: Pieces, alignment: int
) -> None:
    """Writes the tensors from here on, each filled up to the alignment, and waits for the disk.

    Raises `ValueError` for pieces that are not the planned number of bytes.
    """
    for plan in plans:
        written = 0
        for piece in pieces(plan):
            written += file.write(piece.data)
        if written != plan.bytes:
            raise ValueError(f"{plan.name}: {written} bytes were given and {plan.bytes} planned")
        file.write(bytes(-written % alignment))
    file.flush()
    os.fsync(file.fileno())
