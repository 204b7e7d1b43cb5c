"""What becomes of each weight: how its numbers change before they are rounded, and how they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError, StoredTensor
from farthing.files.pages import release_pages
from farthing.forge.folding import Folding
from farthing.forge.pieces import copied, encoded
from farthing.models.remedies import INPUT_SCALE, OUTLIER_COLUMNS
from farthing.models.row_order import interleaved, interleaved_order
from farthing.quant.awq import search_clip
from farthing.quant.formats import decode, encode, format_named
from farthing.quant.gptq import encode_gptq
from farthing.quant.outlier_columns import split_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from farthing.files.checkpoint import Checkpoint
    from farthing.forge.outline import Destination, Job
    from farthing.forge.pieces import Task
    from farthing.models.load import Model, StoredForm


@dataclass(frozen=True)
class Treatment:
    """What methods found for some of a model's weights, by Program name.

    `folding` edits numbers. `columns` are inputs that stay out of a matrix's codes, `input_scales`
    the scale of a product's int8 inputs. Of the matrices that have one of `hessians`, (K, K), the
    ranges of those in `clipped` are searched with it, and those in `compensated` are rounded by
    GPTQ. The search of a format that has one is weighed with `importance`, (K,).
    """

    folding: Folding = field(default_factory=Folding)
    columns: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    input_scales: Mapping[str, np.float32] = field(default_factory=dict)
    hessians: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    clipped: frozenset[str] = frozenset()
    compensated: frozenset[str] = frozenset()
    importance: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


def tasks(
    checkpoint: Checkpoint,
    model: Model,
    destination: Destination,
    treatment: Treatment,
    job: Job,
) -> list[Task]:
    """What gives the bytes of a planned tensor, in order.

    A tensor that is not changed and has its planned format already is passed on bit for bit. Tasks
    raise `FarthingError` naming the tensor where its weights cannot be stored.
    """
    plan, weight = job.plan, job.weight
    if weight is None:
        return copied(destination.added.get(plan.name) or checkpoint.tensors[plan.name])
    if job.part == INPUT_SCALE:
        scale = np.array([treatment.input_scales[weight]], np.float32)
        return [lambda: scale.view(np.uint8)]
    if job.part == OUTLIER_COLUMNS:
        return [lambda: treatment.columns[weight].view(np.uint8)]
    changed = weight in treatment.folding.edits or weight in treatment.columns
    stored, form = model.stored[weight], destination.forms[weight]
    source = checkpoint.tensors.get(stored.name)
    if source is not None and not changed:
        order = None
        if form.heads != stored.heads:
            order = interleaved_order(source.shape[0], form.heads)
        if plan.format == source.format and form.offset == stored.offset:
            return copied(source, order)
        if len(plan.shape) == 2 and weight not in treatment.clipped | treatment.compensated:
            return encoded(source, plan.format, treatment.importance.get(weight), order)
    return [lambda: _whole(model, form, treatment, job, weight)]


def _whole(
    model: Model, form: StoredForm, treatment: Treatment, job: Job, weight: str
) -> NDArray[np.uint8]:
    """A tensor whose numbers change or are rounded together, in the result's order of rows."""
    tensor = treatment.folding.apply(model).tensors[weight]
    weights = decode(tensor)
    release_pages(tensor.data)
    if weights.ndim == 1:
        changed = weights - np.float32(form.offset)
        vector = StoredTensor(form.name, "F32", changed.shape, changed.view(np.uint8))
        return interleaved(vector, form.heads).data
    try:
        data = _rounded(weights, treatment, job, weight)
    except FarthingError as error:
        raise type(error)(f"the tensor {model.stored[weight].name}: {error}") from error
    rounded = StoredTensor(job.plan.name, job.plan.format, job.plan.shape, data)
    return interleaved(rounded, form.heads).data


def _rounded(
    weights: NDArray[np.float32], treatment: Treatment, job: Job, weight: str
) -> NDArray[np.uint8]:
    columns = treatment.columns.get(weight)
    if columns is not None:
        weights, apart = split_columns(weights, columns)
        if job.part:
            return encode(apart, job.plan.format)
    name = job.plan.format
    if weight not in treatment.clipped | treatment.compensated:
        return encode(weights, name, importance=treatment.importance.get(weight))
    hessian = treatment.hessians[weight]
    if columns is not None:
        hessian = hessian.copy()
        hessian[columns] = 0
        hessian[:, columns] = 0
    ranged = search_clip(weights, name, hessian) if weight in treatment.clipped else weights
    if weight in treatment.compensated:
        return encode_gptq(weights, name, hessian, ranges_of=ranged)
    # Where scales follow from ranges, those are chosen now; a search weighs what it looks at.
    searches = format_named(name).searches
    return encode(ranged, name, importance=treatment.importance.get(weight) if searches else None)
