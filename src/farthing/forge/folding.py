"""Scales and rotations of activations turned into edits of weights that leave the model's answers.

An edit maps a weight's float32 numbers, whole and in the Program's orientation, to others. In exact
arithmetic the edited model computes what the model did; its activations are easier to round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from farthing.core import FarthingError, StoredTensor, UnsupportedModelError
from farthing.files.pages import release_pages
from farthing.models.graph import HEAD, residual_stream, untied
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.models.graph import LinearGroup
    from farthing.models.load import Model

    WeightEdit: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class Folding:
    """What to do to which weights of the Program, by name; the others stay as they are.

    `made_from` names for each weight that the model does not have yet the one whose numbers its
    edit takes: a head that was the embedding.
    """

    edits: Mapping[str, WeightEdit] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def then(self, later: Folding) -> Folding:
        """Both, `later` being made for a model that this one has been done to."""
        edits = dict(self.edits)
        for name, edit in later.edits.items():
            first = self.edits.get(later.made_from.get(name, name))
            edits[name] = edit if first is None else _chain(first, edit)
        sources = {
            name: self.made_from.get(source, source) for name, source in later.made_from.items()
        }
        return Folding(edits, {**self.made_from, **sources})

    def apply(self, model: Model) -> Model:
        """The model with its edited weights in float32, each made anew when it is asked for."""
        tensors = _EditedTensors(model.tensors, self)
        program, config = model.program, model.config
        if HEAD in self.made_from:
            program, config = untied(program), replace(config, tied=False)
        formats = {name: "F32" if name in self.edits else model.formats[name] for name in tensors}
        return replace(
            model,
            config=config,
            program=program,
            tensors=tensors,
            formats=MappingProxyType(formats),
        )


class _EditedTensors(Mapping[str, StoredTensor]):
    def __init__(self, tensors: Mapping[str, StoredTensor], folding: Folding) -> None:
        self._tensors, self._folding = tensors, folding

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self._tensors[self._folding.made_from.get(name, name)]
        edit = self._folding.edits.get(name)
        if edit is None:
            return tensor
        weights = np.ascontiguousarray(edit(decode(tensor)), np.float32)
        release_pages(tensor.data)
        return StoredTensor(tensor.name, "F32", weights.shape, weights.reshape(-1).view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._tensors, *self._folding.made_from)))

    def __len__(self) -> int:
        return len({*self._tensors, *self._folding.made_from})


def fold_scales(group: LinearGroup, scales: NDArray[np.float32]) -> Folding:
    """Divides the group's input by `scales` (K,), and multiplies its matrices by them.

    Raises `UnsupportedModelError` where nothing takes up the division, and `FarthingError` for
    scales that are not positive and finite, of another number than the inputs, or that differ where
    inputs come from one number.
    """
    if group.origin is None:
        raise UnsupportedModelError(
            f"{group.value} cannot be scaled: {group.reason}; choose a method without scales"
        )
    if scales.shape != (group.width,) or not (np.isfinite(scales) & (scales > 0)).all():
        raise FarthingError(
            f"{group.value} needs {group.width} positive finite scales: calibrate it again"
        )
    copies = group.origin.gather(scales)
    if (copies != copies[0]).any():
        raise FarthingError(
            f"{group.value} has inputs with one origin and different scales: make the scales from "
            "what `Origin.gather` puts together"
        )
    edits: dict[str, WeightEdit] = {name: _scaled_columns(scales) for name in group.weights}
    edits.update({name: _divided_rows(copies[0]) for name in group.origin.weights})
    return Folding(edits)


def fold_rotation(model: Model, rotation: NDArray[np.float32]) -> Folding:
    """Rotates the residual stream by an orthogonal (width, width) matrix; gains become ones.

    A model whose head is its embedding gets a head of its own. Raises `UnsupportedModelError` for
    a model whose stream cannot be rotated, and `FarthingError` for a matrix that is not orthogonal
    or of another width.
    """
    stream = residual_stream(model.program)
    _check_rotation(rotation, stream.width)
    edits: dict[str, WeightEdit] = {name: _rotated_rows(rotation) for name in stream.writers}
    edits.update({name: _rotated_columns(rotation, None) for name in stream.tables})
    made_from: dict[str, str] = {}
    for reader in stream.readers:
        gain = None if reader.gain is None else decode(model.tensors[reader.gain])
        edit = _rotated_columns(rotation, gain)
        if reader.gain is not None:
            edits[reader.gain] = _ones
        if reader.weight in stream.tables:
            made_from[HEAD] = reader.weight
            edits[HEAD] = edit
        else:
            written = edits.get(reader.weight)
            edits[reader.weight] = edit if written is None else _chain(written, edit)
    return Folding(edits, made_from)


def fold_head_rotation(group: LinearGroup, rotation: NDArray[np.float32]) -> Folding:
    """Rotates each value head, and so what attention gives, by one (head_dim, head_dim) matrix.

    Raises `UnsupportedModelError` for a group whose input is not attention's, and `FarthingError`
    as `fold_rotation`.
    """
    origin = group.origin
    if origin is None or origin.kind != "value":
        raise UnsupportedModelError(
            f"{group.value} has no value heads to rotate: {group.reason or 'it is no attention'}"
        )
    _check_rotation(rotation, origin.run)
    edits: dict[str, WeightEdit] = {
        name: _rotated_columns(rotation, None) for name in group.weights
    }
    edits.update({name: _rotated_rows(rotation) for name in origin.weights})
    return Folding(edits)


def _check_rotation(rotation: NDArray[np.float32], width: int) -> None:
    if rotation.shape != (width, width):
        raise FarthingError(
            f"a value of {width} dimensions cannot be rotated by a matrix of {rotation.shape}"
        )
    # Written so that a NaN is refused as well.
    if not np.abs(rotation @ rotation.T - np.eye(width)).max() < 1e-4:
        raise FarthingError(
            "a rotation must be an orthogonal matrix: its rows of length 1 and at "
            "right angles; make it with quant.rotation"
        )


def _chain(first: WeightEdit, second: WeightEdit) -> WeightEdit:
    return lambda weights: second(first(weights))


def _ones(gain: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ones_like(gain)


def _scaled_columns(scales: NDArray[np.float32]) -> WeightEdit:
    return lambda weights: weights * scales


def _divided_rows(entries: NDArray[np.float32]) -> WeightEdit:
    """Of a matrix, or of a vector, whose entries are its rows."""

    def edit(weights: NDArray[np.float32]) -> NDArray[np.float32]:
        divided: NDArray[np.float32] = (weights.T / entries).T
        return divided

    return edit


def _rotated_columns(rotation: NDArray[np.float32], gain: NDArray[np.float32] | None) -> WeightEdit:
    """W diag(gain) R, in as many blocks as the matrix has times the rotation's width."""

    def edit(weights: NDArray[np.float32]) -> NDArray[np.float32]:
        gained: NDArray[np.float32] = weights if gain is None else weights * gain
        rotated: NDArray[np.float32] = gained.reshape(-1, len(rotation)) @ rotation
        return rotated.reshape(weights.shape)

    return edit


def _rotated_rows(rotation: NDArray[np.float32]) -> WeightEdit:
    """R^T W for each block of as many rows, or b R for a vector of them."""

    def edit(weights: NDArray[np.float32]) -> NDArray[np.float32]:
        columns = np.ascontiguousarray(weights.T)
        rotated: NDArray[np.float32] = columns.reshape(-1, len(rotation)) @ rotation
        return rotated.reshape(columns.shape).T

    return edit
