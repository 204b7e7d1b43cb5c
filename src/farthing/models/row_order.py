"""llama.cpp's order of query and key rows, and the one that rotation here works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor
from farthing.files.pages import release_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray


def half_split(tensor: StoredTensor, heads: int) -> StoredTensor:
    """Undoes llama.cpp's order of query and key rows; 0 heads: the tensor itself.

    Such a file has the rows of a head's dimension pairs (i, i + head_dim/2) adjacent. Rows move
    whole, so this loses nothing in any storage format.
    """
    if heads == 0:
        return tensor
    data = tensor.data.reshape(tensor.shape[0], -1)[_half_split_order(tensor, heads)].reshape(-1)
    release_pages(tensor.data)
    return StoredTensor(tensor.name, tensor.format, tensor.shape, data)


def interleaved(tensor: StoredTensor, heads: int) -> StoredTensor:
    """Undoes `half_split`."""
    if heads == 0:
        return tensor
    data = tensor.data.reshape(tensor.shape[0], -1)[interleaved_order(tensor.shape[0], heads)]
    return StoredTensor(tensor.name, tensor.format, tensor.shape, data.reshape(-1))


def interleaved_order(rows: int, heads: int) -> NDArray[np.intp]:
    """For each of so many rows in llama.cpp's order, which one of the Program's form it is."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def _half_split_order(tensor: StoredTensor, heads: int) -> NDArray[np.intp]:
    """For each row of the Program's form, which row of llama.cpp's it is."""
    return np.arange(tensor.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
