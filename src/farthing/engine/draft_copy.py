"""A model whose matrices are stored again in another format: a draft made of the target itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError, StoredTensor, UnsupportedModelError
from farthing.files.formats import stored_bytes
from farthing.plan.precision import PRECISIONS
from farthing.quant.formats import WRITABLE_FORMATS, bits_per_weight, decode, encode

if TYPE_CHECKING:
    from farthing.models.load import Model

_DECODED_WEIGHTS = 1 << 20
"""How many weights are in float32 at a time."""

_WIDE_BITS = 16
"""Weights of fewer bits are as cheap to read as a copy of theirs would be."""


def copy_in(model: Model, scheme: str) -> Model:
    """The model with every matrix in the format that `scheme` spells: int4, int4-g64, q4_0, ...

    Raises `RequestError` for a scheme that is none, that does not divide a row, or that makes
    nothing smaller: of a model that is quantised already.
    """
    short = PRECISIONS.get(scheme.lower())
    name = (short and short.format) or scheme.upper().replace("-", "_")
    if name not in WRITABLE_FORMATS:
        known = ", ".join(each.lower().replace("_", "-") for each in WRITABLE_FORMATS)
        raise RequestError(f"--speculate self={scheme:.40}: no such scheme; there are {known}")
    narrow = narrow_matrix(model)
    if narrow is not None:
        raise RequestError(
            f"--speculate self={scheme}: {model.name} has its weights as {model.formats[narrow]}, "
            "and a copy of them would be no cheaper to run: this is for models of 16 bits; name a "
            "smaller model (draft=MODEL) or look up (ngram)"
        )
    try:
        return stored_again(model, name)
    except UnsupportedModelError as error:
        raise RequestError(f"--speculate self={scheme}: {error}") from None


def narrow_matrix(model: Model) -> str | None:
    """The first matrix of fewer than 16 bits a weight, None where there is none."""
    return next(
        (
            weight
            for weight, shape in _matrices(model).items()
            if bits_per_weight(model.formats[weight], shape) < _WIDE_BITS
        ),
        None,
    )


def stored_again(model: Model, name: str) -> Model:
    """The model with every matrix in the format of that name.

    A matrix is encoded each time it is read, which a backend does once, as it packs it. Raises
    `UnsupportedModelError` where the format's blocks do not divide the rows of one.
    """
    matrices = _matrices(model)
    for weight, shape in matrices.items():
        try:
            stored_bytes(name, shape)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{weight}: {error}") from None
    return replace(
        model,
        name=f"{model.name} as {name}",
        tensors=_Copies(model, frozenset(matrices), name),
        formats=MappingProxyType({**model.formats, **dict.fromkeys(matrices, name)}),
    )


def _matrices(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        weight: declared.shape
        for weight, declared in model.program.weights.items()
        if len(declared.shape) == 2
    }


class _Copies(Mapping[str, StoredTensor]):
    """A model's tensors, the matrices among them encoded as they are asked for."""

    def __init__(self, model: Model, matrices: frozenset[str], name: str) -> None:
        self._tensors = model.tensors
        self._matrices = matrices
        self._format = name

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self._tensors[name]
        return _encoded(tensor, self._format) if name in self._matrices else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _encoded(tensor: StoredTensor, name: str) -> StoredTensor:
    count, width = tensor.shape
    rows = max(1, _DECODED_WEIGHTS // width)
    pieces = [slice(first, first + rows) for first in range(0, count, rows)]
    largest = max(float(np.abs(decode(tensor, piece)).max()) for piece in pieces)
    data = [encode(decode(tensor, piece), name, largest=largest) for piece in pieces]
    return StoredTensor(tensor.name, name, tensor.shape, np.concatenate(data))
