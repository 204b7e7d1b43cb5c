"""The bytes of a model's tensors in other formats, worked out a few million weights at a time.

A tensor is a list of tasks, each of which gives a piece of it; `in_order` runs a few at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from farthing.core import FarthingError, StoredTensor
from farthing.files.formats import OWN_FORMATS
from farthing.files.pages import release_pages
from farthing.quant.formats import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Task: TypeAlias = Callable[[], NDArray[np.uint8]]

PIECE_WEIGHTS = 1 << 21
PIECE_BYTES = 1 << 24


def in_order(tasks: Iterable[Task], workers: int) -> Iterator[NDArray[np.uint8]]:
    """What the tasks give, in their order, while `workers` of them run at once.

    As many results again may wait to be taken. What has not begun is dropped when a task raises or
    the caller stops asking.
    """
    begun: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for task in tasks:
                begun.append(pool.submit(task))
                if len(begun) == 2 * workers:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


def copied(tensor: StoredTensor, order: NDArray[np.intp] | None = None) -> list[Task]:
    """The tensor as it stands in its file, or with its rows in an order of their own."""
    if order is not None:
        return [partial(_picked_bytes, tensor, order[rows]) for rows in _row_ranges(tensor)]
    return [
        partial(tensor.data.__getitem__, slice(first, first + PIECE_BYTES))
        for first in range(0, tensor.data.nbytes, PIECE_BYTES)
    ]


def encoded(
    tensor: StoredTensor,
    format_name: str,
    importance: NDArray[np.float32] | None = None,
    order: NDArray[np.intp] | None = None,
) -> list[Task]:
    """The tensor in another format, rows at a time. `importance` is as in `encode`.

    `order` says of each row of the result which one of the tensor's it is. The tasks raise
    `FarthingError` naming the tensor where its weights cannot be stored.
    """
    storage = OWN_FORMATS.get(format_name)
    whole = storage is not None and storage.whole_tensor
    largest = _Largest(tensor) if whole else None
    return [
        partial(_encode_rows, tensor, rows, order, format_name, largest, importance)
        for rows in _row_ranges(tensor)
    ]


class _Largest:
    """The largest magnitude in a tensor, NaN where it holds one, found when it is first asked for.

    Several tasks may ask at once.
    """

    def __init__(self, tensor: StoredTensor) -> None:
        self._tensor = tensor
        self._lock = Lock()
        self._found: float | None = None

    def __call__(self) -> float:
        with self._lock:
            if self._found is None:
                parts = [
                    np.abs(decode(self._tensor, rows)).max() for rows in _row_ranges(self._tensor)
                ]
                self._found = float(np.max(parts))
            return self._found


def _encode_rows(
    tensor: StoredTensor,
    rows: slice,
    order: NDArray[np.intp] | None,
    format_name: str,
    largest: _Largest | None,
    importance: NDArray[np.float32] | None,
) -> NDArray[np.uint8]:
    try:
        data = encode(
            decode(tensor, rows) if order is None else decode(_picked(tensor, order[rows])),
            format_name,
            largest=None if largest is None else largest(),
            importance=importance,
        )
    except FarthingError as error:
        raise type(error)(f"the tensor {tensor.name}: {error}") from error
    # Rows in an order of their own lie anywhere; the whole tensor is let go of when it is written.
    if order is None:
        row_bytes = tensor.data.nbytes // tensor.shape[0]
        release_pages(tensor.data[rows.start * row_bytes : rows.stop * row_bytes])
    return data


def _picked(tensor: StoredTensor, rows: NDArray[np.intp]) -> StoredTensor:
    """Some of the tensor's rows, in that order: a copy."""
    data = tensor.data.reshape(tensor.shape[0], -1)[rows].reshape(-1)
    return StoredTensor(tensor.name, tensor.format, (len(rows), *tensor.shape[1:]), data)


def _picked_bytes(tensor: StoredTensor, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    return _picked(tensor, rows).data


def _row_ranges(tensor: StoredTensor) -> Iterator[slice]:
    outputs, inputs = tensor.shape[0], prod(tensor.shape[1:])
    step = max(1, PIECE_WEIGHTS // inputs)
    for first in range(0, outputs, step):
        yield slice(first, min(first + step, outputs))
