"""Memory that a mapped file takes, given back once its bytes have been used."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def release_pages(data: NDArray[np.uint8]) -> None:
    """Takes the pages that hold `data` out of this process; it may be read again, from the file.

    Does nothing for an array that is no view of a mapped file, and on a system that cannot.
    """
    owner: object = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise"):
        return
    start = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
