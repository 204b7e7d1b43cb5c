"""What the writers of model files share: a file whose every byte has its place before it is made.

Sizes follow from formats, so the layout of a file is known before the first byte of a tensor is.
Tensors are written to their places in any order, as they are made, and none need be held whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

_PIECE_BYTES = 1 << 22


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written. `format` and `shape` are as in `StoredTensor`."""

    name: str
    format: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Layout:
    """A file that is to be written: what it begins with, and each tensor with its offset.

    `places` are in file order and do not overlap; `size` is the whole file's. What lies between
    tensors is zeros.
    """

    header: bytes
    places: Mapping[TensorPlan, int]
    size: int

    @property
    def digest(self) -> str:
        """The same for layouts of which each writes the same file."""
        digest = hashlib.blake2b(self.header, digest_size=16)
        digest.update(repr(sorted(self.places.items(), key=lambda item: item[1])).encode())
        return digest.hexdigest()


Pieces: TypeAlias = Callable[[TensorPlan], Iterable[NDArray[np.uint8]]]
"""Gives a planned tensor's bytes, in order, in any number of pieces."""


class LaidFile:
    """A file with a layout, written tensor by tensor. Methods raise `OSError` as writing does.

    Opened again with `go_on`, it keeps the tensors that stand in it: `digest` says what they are.
    """

    def __init__(self, path: Path, layout: Layout, *, go_on: bool = False) -> None:
        self._layout = layout
        self._file = path.open("r+b" if go_on else "w+b")
        self._file.truncate(layout.size)
        self._file.write(layout.header)

    def write(self, plan: TensorPlan, pieces: Iterable[NDArray[np.uint8]]) -> str:
        """Writes a tensor and gives the digest of its bytes.

        Raises `ValueError` for pieces that are not the planned number of bytes.
        """
        digest = hashlib.blake2b(digest_size=16)
        written = 0
        self._file.seek(self._layout.places[plan])
        for piece in pieces:
            written += piece.nbytes
            if written <= plan.bytes:
                self._file.write(piece.data)
                digest.update(piece.data)
        if written != plan.bytes:
            raise ValueError(f"{plan.name}: {written} bytes were given and {plan.bytes} planned")
        self._file.flush()
        return digest.hexdigest()

    def digest(self, plan: TensorPlan) -> str:
        """The digest of the bytes that stand in a tensor's place."""
        digest = hashlib.blake2b(digest_size=16)
        self._file.seek(self._layout.places[plan])
        left = plan.bytes
        while left and (piece := self._file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
        return digest.hexdigest()

    def close(self) -> None:
        """Returns when everything is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> LaidFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


def write_laid(path: Path, layout: Layout, pieces: Pieces) -> None:
    """Writes a whole file, tensor after tensor, and waits for the disk."""
    with LaidFile(path, layout) as file:
        for plan in layout.places:
            file.write(plan, pieces(plan))
