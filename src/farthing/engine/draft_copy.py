"""A model whose matrices are stored again in another format: a draft made of the target itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import ActivationMode, RequestError, StoredTensor, UnsupportedModelError
from farthing.files.formats import format_for, spelling, stored_bytes
from farthing.plan.packed import matrix_bytes, packed_format
from farthing.plan.precision import PRECISIONS
from farthing.quant.formats import WRITABLE_FORMATS, bits_per_weight, decode, encode

if TYPE_CHECKING:
    from farthing.models.load import Model

_DECODED_WEIGHTS = 1 << 20
"""How many weights are in float32 at a time."""

_WIDE_BITS = 16
"""Weights of fewer bits are as cheap to read as a copy of theirs would be."""


def copy_in(model: Model, scheme: str, activations: ActivationMode | None = None) -> Model:
    """The model with every matrix in the format that `scheme` spells: int4, int4-g64, q4_0, ...

    One whose rows are no whole blocks of a K-quant gets what farthing quantize would write for it.
    Raises `RequestError` for a scheme that is none, that does not divide a row, or whose copy would
    be read no faster than the model with these `activations`, which is so of all copies of a
    quantised one.
    """
    short = PRECISIONS.get(scheme.lower())
    name = (short and short.format) or scheme.upper().replace("-", "_")
    if name not in WRITABLE_FORMATS:
        known = ", ".join(map(spelling, WRITABLE_FORMATS))
        raise RequestError(f"--speculate self={scheme:.40}: no such scheme; there are {known}")
    narrow = narrow_formats(model)
    if narrow:
        listed = ", ".join(f"{count} as {spelling(each)}" for each, count in narrow.most_common())
        raise RequestError(
            f"--speculate self={scheme}: of its {len(_matrices(model))} matrices {model.name} has "
            f"{listed}, and a copy of them would be no cheaper to run: this is for models of 16 "
            "bits; name a smaller model (draft=MODEL) or look up (ngram)"
        )
    try:
        copy = _copied(
            model,
            name,
            {weight: format_for(name, shape[1]) for weight, shape in _matrices(model).items()},
        )
    except UnsupportedModelError as error:
        raise RequestError(f"--speculate self={scheme}: {error}") from None
    own, other = read_bytes(copy, activations), read_bytes(model, activations)
    if own >= other:
        raise RequestError(
            f"--speculate self={scheme}: a guess would read {own / 1e6:,.1f} MB of weights, and a "
            f"step of {model.name} itself reads {other / 1e6:,.1f} MB: {unexpanded(activations)}"
            "name a scheme of fewer bits (self=int4), or look up (ngram)"
        )
    return copy


def narrow_formats(model: Model) -> Counter[str]:
    """The formats of fewer than 16 bits a weight, and how many matrices have each."""
    return Counter(
        model.formats[weight]
        for weight, shape in _matrices(model).items()
        if bits_per_weight(model.formats[weight], shape) < _WIDE_BITS
    )


def read_bytes(model: Model, activations: ActivationMode | None = None) -> int:
    """Bytes of the matrices that one step multiplies, as they run with these activations (None:
    each format's own). An embedding that is no head is not among them: a token reads one row of it.
    """
    multiplied = {op.weights[0] for op in model.program.ops if op.kind in ("linear", "logits")}
    total = 0
    for weight in multiplied:
        outputs, inputs = model.program.weights[weight].shape
        packed = packed_format(model.formats[weight], activations, inputs)
        total += matrix_bytes(packed, outputs, inputs)
    return total


def unexpanded(activations: ActivationMode | None) -> str:
    """The way out where it may be that codes are read as wider numbers; else empty."""
    if activations in (None, ActivationMode.INT8):
        return ""
    return f"leave out --activations {activations.value}, for which codes are expanded, "


def stored_again(model: Model, name: str) -> Model:
    """The model with every matrix in the format of that name.

    A matrix is encoded each time it is read, which a backend does once, as it packs it. Raises
    `UnsupportedModelError` where the format's blocks do not divide the rows of one.
    """
    return _copied(model, name, dict.fromkeys(_matrices(model), name))


def _copied(model: Model, name: str, formats: Mapping[str, str]) -> Model:
    for weight, each in formats.items():
        try:
            stored_bytes(each, model.program.weights[weight].shape)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{weight}: {error}") from None
    return replace(
        model,
        name=f"{model.name} as {name}",
        tensors=_Copies(model, formats),
        formats=MappingProxyType({**model.formats, **formats}),
    )


def _matrices(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        weight: declared.shape
        for weight, declared in model.program.weights.items()
        if len(declared.shape) == 2
    }


class _Copies(Mapping[str, StoredTensor]):
    """A model's tensors, the matrices among them encoded as they are asked for."""

    def __init__(self, model: Model, formats: Mapping[str, str]) -> None:
        self._tensors = model.tensors
        self._formats = formats

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self._tensors[name]
        return _encoded(tensor, self._formats[name]) if name in self._formats else tensor

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
