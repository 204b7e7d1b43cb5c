"""SmoothQuant's and AWQ's scales for a model's layers, and the rotation of its stream, folded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from farthing.files.pages import release_pages
from farthing.forge.folding import Folding, fold_head_rotation, fold_rotation, fold_scales
from farthing.models.graph import linear_groups
from farthing.plan.machine import usable_cores
from farthing.quant.awq import search_awq
from farthing.quant.formats import decode, format_named
from farthing.quant.hessian import divided_hessian
from farthing.quant.rotation import rotation
from farthing.quant.smoothing import smooth_scales

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.forge.input_sums import InputStatistics
    from farthing.models.graph import LinearGroup
    from farthing.models.load import Model
    from farthing.models.program import Program

_SEED = 0


@dataclass(frozen=True)
class Scaled:
    """A folding of scales, and what each matrix's input is divided by, (K,), by Program name."""

    folding: Folding
    divisors: Mapping[str, NDArray[np.float32]]


NOT_SCALED = Scaled(Folding(), {})


def scalable_groups(program: Program) -> list[LinearGroup]:
    """The groups of linear operations whose input can be scaled; a head's is left alone."""
    heads = {op.weights[0] for op in program.ops if op.kind == "logits"}
    return [
        group
        for group in linear_groups(program)
        if group.origin is not None and not heads & set(group.weights)
    ]


def rotate(model: Model) -> Folding:
    """Rotates the residual stream, and each head's values.

    Raises `UnsupportedModelError` for a model whose stream cannot be rotated.
    """
    width = model.program.values[model.program.ops[0].output].width
    folding = fold_rotation(model, rotation(width, _SEED))
    for group in linear_groups(model.program):
        if group.origin is not None and group.origin.kind == "value":
            turned = rotation(group.origin.run, _SEED)
            folding = folding.then(fold_head_rotation(group, turned))
    return folding


def smooth(
    model: Model, groups: Iterable[LinearGroup], statistics: Mapping[str, InputStatistics]
) -> Scaled:
    """SmoothQuant for these groups; `statistics` are by matrix.

    Groups are taken from the last to the first, so that a matrix whose rows take up one group's
    scales has them when its columns are measured for another.
    """
    folding = Folding()
    divisors: dict[str, NDArray[np.float32]] = {}
    for group in reversed(list(groups)):
        largest = _shared(group, statistics[group.weights[0]].largest)
        current = folding.apply(model).tensors
        columns = [np.abs(_weights(current[name])).max(axis=0) for name in group.weights]
        scales = smooth_scales(largest, _shared(group, np.max(columns, axis=0)))
        folding = folding.then(fold_scales(group, scales))
        divisors.update(dict.fromkeys(group.weights, scales))
    return Scaled(folding, divisors)


def weigh(
    model: Model,
    groups: Iterable[LinearGroup],
    statistics: Mapping[str, InputStatistics],
    formats: Mapping[str, str],
) -> Scaled:
    """AWQ for these groups, one after another; `statistics` are by matrix and have a Hessian.

    A group's scales are searched for its matrices that are to be stored as codes, in the format of
    the first of them.
    """
    folding = Folding()
    divisors: dict[str, NDArray[np.float32]] = {}
    for group in groups:
        coded = [name for name in group.weights if format_named(formats[name]).scaled]
        coded = [name for name in coded if formats[name] == formats[coded[0]]]
        if not coded:
            continue
        current = folding.apply(model).tensors
        found = statistics[group.weights[0]]
        assert found.hessian is not None
        result = search_awq(
            [_weights(current[name]) for name in coded],
            formats[coded[0]],
            found.hessian,
            _shared(group, found.magnitude),
            workers=usable_cores(),
        )
        folding = folding.then(fold_scales(group, result.scales))
        divisors.update(dict.fromkeys(group.weights, result.scales))
    return Scaled(folding, divisors)


def divided(statistics: InputStatistics, divisors: NDArray[np.float32]) -> InputStatistics:
    """The statistics of an input divided by (K,)."""
    hessian = statistics.hessian
    return replace(
        statistics,
        largest=statistics.largest / divisors,
        magnitude=statistics.magnitude / divisors,
        square=(statistics.square / np.square(divisors)).astype(np.float32),
        hessian=None if hessian is None else divided_hessian(hessian, divisors),
    )


def _weights(tensor: StoredTensor) -> NDArray[np.float32]:
    weights = decode(tensor)
    release_pages(tensor.data)
    return weights


def _shared(group: LinearGroup, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """(K,), the largest of each where several inputs come from one number."""
    assert group.origin is not None
    return group.origin.spread(group.origin.gather(numbers).max(axis=0))
