"""What weights could be stored as, by the names that people use, and the bits that each takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from farthing.core import RequestError, UnsupportedModelError
from farthing.files.formats import (
    STORAGE_FORMATS,
    BlockFormat,
    as_spelled,
    format_for,
    spelling,
    stored_bytes,
)
from farthing.plan.packed import PACKED_FORMATS

if TYPE_CHECKING:
    from farthing.models.load import Model

STORED = "stored"
"""In place of a precision: as the model's file holds them."""

# A short name's storage format, and its bits where only a number of parameters is known: those of
# the codes and of scales by group; a scale for a row, whose length is not known, is left out.
_SHORT = {
    "fp32": ("F32", 32.0),
    "fp16": ("F16", 16.0),
    "bf16": ("BF16", 16.0),
    "int8": ("INT8_ROW", 8.0),
    "int4": ("INT4_G128", 4 + 16 / 128),
    "nf4": ("NF4_B64", 4 + 16 / 64),
}


@dataclass(frozen=True)
class Precision:
    """`format` is the storage format of all matrices, None for each one's own.

    `bits` a weight are for a model of which no more than the number of parameters is known; None
    where they are not known without the shapes.
    """

    name: str
    format: str | None
    bits: float | None


AS_STORED = Precision(STORED, None, None)


def _known() -> dict[str, Precision]:
    known = {name: Precision(name, *described) for name, described in _SHORT.items()}
    for name, storage in STORAGE_FORMATS.items():
        # GGUF's and farthing's own; of the latter the ones with short names say their bits.
        if name in PACKED_FORMATS or not isinstance(storage, BlockFormat):
            spelled = spelling(name)
            known.setdefault(spelled, Precision(spelled, name, _bits(storage.bits)))
    known[STORED] = AS_STORED
    return known


def _bits(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


PRECISIONS = MappingProxyType(_known())
"""By the name that is typed: the short ones, and every format that can run."""


def precision(name: str) -> Precision:
    """The precision called `name`; raises `RequestError` naming those there are."""
    found = PRECISIONS.get(as_spelled(name.strip()))
    if found is None:
        raise RequestError(
            f"no weights are called {name.strip()!r:.40}; known are {', '.join(PRECISIONS)}"
        )
    return found


def fallbacks(model: Model, wanted: Precision) -> dict[str, int]:
    """The other formats that `stored_as` gives some matrices, with the number of them."""
    matrices = [each.shape for each in model.program.weights.values() if len(each.shape) == 2]
    if wanted.format is None:
        return {}
    stored = Counter(format_for(wanted.format, shape[1]) for shape in matrices)
    return {name: count for name, count in stored.items() if name != wanted.format}


def stored_as(model: Model, wanted: Precision) -> Model:
    """`model` as if quantised to the format of `wanted`: for planning only.

    A matrix whose rows are no whole blocks gets the format that it would be written in instead.
    Raises `UnsupportedModelError` where there is none.
    """
    if wanted.format is None:
        return model
    formats = dict(model.formats)
    for name, weight in model.program.weights.items():
        if len(weight.shape) == 2:
            stored = format_for(wanted.format, weight.shape[1])
            try:
                stored_bytes(stored, weight.shape)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"{model.name}: the matrix {name}: {error}") from None
            formats[name] = stored
    return replace(model, formats=MappingProxyType(formats))
