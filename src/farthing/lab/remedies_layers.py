"""The error of single products, as served, with and without each method.

A product reads held-out text as the layers before it give it in full precision, so its error is its
own: ||Q(x) W'^T - x W^T|| / ||x W^T||, W' the rounded weights and Q what int8 makes of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from farthing.core import ActivationMode, StoredTensor, UnsupportedModelError
from farthing.forge.calibrate import Calibrator, input_sources
from farthing.forge.methods import Method
from farthing.forge.preparation import changed_form
from farthing.forge.scales import NOT_SCALED, divided, scalable_groups, smooth, weigh
from farthing.lab.outliers import input_of
from farthing.lab.quality_copies import measured_text
from farthing.lab.remedies_steps import REMEDIES, STEPS
from farthing.lab.table import Column, Row, Table
from farthing.lab.taps import tapped
from farthing.quality.windows import WINDOW_TOKENS, cut_windows
from farthing.quant.awq import search_clip
from farthing.quant.formats import decode, encode
from farthing.quant.gptq import encode_gptq
from farthing.quant.outlier_columns import outlier_columns, split_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from farthing.forge.calibrate import Calibration
    from farthing.forge.input_sums import InputStatistics
    from farthing.lab.remedies_steps import Step
    from farthing.lab.subject import Subject
    from farthing.models.load import Model

LayerErrors: TypeAlias = Mapping[str, Mapping[str, float]]
"""Relative errors by the name of a step, and by matrix."""

_SERVED_INPUTS = 32
"""Inputs that share a scale as served: `quant` of activations in the native kernels."""

_LARGEST_CODE = 127


@dataclass(frozen=True)
class _Form:
    """A model, rotated or not, with what its products are given: statistics and held-out inputs.

    Both are by matrix; `inputs` are (tokens, K).
    """

    model: Model
    statistics: Mapping[str, InputStatistics]
    inputs: Mapping[str, NDArray[np.float32]]


def layer_errors(
    subject: Subject, layers: Sequence[int], calibration: Calibration
) -> dict[str, dict[str, float]]:
    """Of all linear operations in `layers`, for each step that the model allows."""
    found: dict[str, dict[str, float]] = {}
    forms: dict[bool, _Form] = {}
    rounded = subject.activations in (None, ActivationMode.INT8)
    for step in STEPS:
        rotated = Method.ROTATE in step.methods
        subject.progress.phase(f"errors of single products: {step.name}")
        if rotated not in forms:
            try:
                forms[rotated] = _form(subject, step.methods, layers, calibration)
            except UnsupportedModelError:
                continue  # the copies, which are made after this, tell it
        found[step.name] = _errors(forms[rotated], step, rounded)
    return found


def layers_table(errors: LayerErrors, notes: tuple[str, ...]) -> Table:
    """By the part of a layer that a product is."""
    shown = {step: by_part(found) for step, found in errors.items()}
    parts = list(next(iter(shown.values())))
    rows: tuple[Row, ...] = tuple(
        (
            step,
            100 * fmean(found.values()),
            100 * max(found.values()),
            *(100 * shown[step][part] for part in parts),
        )
        for step, found in errors.items()
    )
    mean = {step: fmean(found.values()) for step, found in errors.items()}
    told = [
        f"{each.treated.name} from {mean[each.base.name]:.2%} to {mean[each.treated.name]:.2%}"
        for each in REMEDIES
        if each.treated.name in mean
    ]
    return Table(
        "layers",
        "Relative error of single products on held-out text, weights and inputs rounded as served",
        (
            Column("stored as"),
            Column("mean", "%", ".2f"),
            Column("worst", "%", ".2f"),
            *(Column(part, "%", ".2f") for part in parts),
        ),
        rows,
        f"What each addition makes of the mean error of a product: {', '.join(told)}.",
        notes=notes,
    )


def by_part(errors: Mapping[str, float]) -> dict[str, float]:
    """Mean errors by the part of a layer: `query` for `layers.3.query.weight`."""
    found: dict[str, list[float]] = {}
    for name, error in errors.items():
        found.setdefault(name.removesuffix(".weight").split(".")[-1], []).append(error)
    return {part: fmean(each) for part, each in found.items()}


def _form(
    subject: Subject, methods: Sequence[Method], layers: Sequence[int], calibration: Calibration
) -> _Form:
    model, _ = changed_form(subject.model, methods)
    every = input_sources(model.program)
    linears = {op.weights[0] for op in model.program.ops if op.kind == "linear"}
    prefixes = tuple(f"layers.{layer}." for layer in layers)
    sources = {name: every[name] for name in linears if name.startswith(prefixes)}
    wanted = set(sources.values())
    calibrator = Calibrator(model, calibration.windows)
    statistics = calibrator.collect(wanted, wanted, lambda share: None)
    window = min(WINDOW_TOKENS, subject.model.config.context_length)
    text = cut_windows(subject.tokenizer, measured_text(subject), 1, window, fewest=1)
    values = tapped(subject, {each.value for each in wanted}, text.token_ids[0].tolist(), model)
    inputs = {source: input_of(model, source, values) for source in wanted}
    return _Form(
        model,
        {name: statistics[source] for name, source in sources.items()},
        {name: inputs[source] for name, source in sources.items()},
    )


def _errors(form: _Form, step: Step, rounded: bool) -> dict[str, float]:
    """`rounded`: inputs are rounded to int8, as served by default."""
    groups = [
        group
        for group in scalable_groups(form.model.program)
        if form.statistics.keys() >= set(group.weights)
    ]
    scaled = NOT_SCALED
    if Method.SMOOTHQUANT in step.methods:
        scaled = smooth(form.model, groups, form.statistics)
    elif Method.AWQ in step.methods:
        formats = dict.fromkeys(form.statistics, step.scheme)
        scaled = weigh(form.model, groups, form.statistics, formats)
    tensors = scaled.folding.apply(form.model).tensors
    found = {}
    for name in sorted(form.statistics):
        statistics, inputs = form.statistics[name], form.inputs[name]
        if name in scaled.divisors:
            statistics = divided(statistics, scaled.divisors[name])
            inputs = inputs / scaled.divisors[name]
        weights = decode(tensors[name])
        exact = inputs @ weights.T
        served = _product(inputs, weights, step, statistics, rounded)
        whole = float(np.linalg.norm(exact))
        found[name] = float(np.linalg.norm(served - exact)) / whole if whole else 0.0
    return found


def _product(
    inputs: NDArray[np.float32],
    weights: NDArray[np.float32],
    step: Step,
    statistics: InputStatistics,
    rounded: bool,
) -> NDArray[np.float32]:
    """(tokens, N): the product with weights stored in this way."""
    apart = np.zeros((), np.float32)
    largest = statistics.largest
    if Method.LLM_INT8 in step.methods:
        columns = outlier_columns(largest)
        if columns.size:
            weights, kept = split_columns(weights, columns)
            apart = inputs[:, columns] @ _through("BF16", kept).T
            inputs, largest = inputs.copy(), largest.copy()
            inputs[:, columns] = largest[columns] = 0
    if rounded:
        static = Method.STATIC_INPUTS in step.methods
        inputs = static_int8(inputs, float(largest.max())) if static else served_int8(inputs)
    return np.asarray(inputs @ _rounded(weights, step, statistics).T + apart, np.float32)


def _rounded(
    weights: NDArray[np.float32], step: Step, statistics: InputStatistics
) -> NDArray[np.float32]:
    hessian = statistics.hessian
    assert hessian is not None, "collected for all"
    ranged = weights
    if Method.AWQ in step.methods:
        ranged = search_clip(weights, step.scheme, hessian)
    if Method.GPTQ not in step.methods:
        return _through(step.scheme, ranged)
    data = encode_gptq(weights, step.scheme, hessian, ranges_of=ranged)
    return decode(StoredTensor("w", step.scheme, weights.shape, data))


def _through(name: str, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    return decode(StoredTensor("w", name, weights.shape, encode(weights, name)))


def served_int8(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inputs (tokens, K) after int8 with a scale for each 32 of a token's, the last ones fewer."""
    tokens, width = inputs.shape
    padded = np.pad(inputs, ((0, 0), (0, -width % _SERVED_INPUTS)))
    groups = padded.reshape(tokens, -1, _SERVED_INPUTS)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    scales = np.where(largest > 0, largest, np.float32(1)) / np.float32(_LARGEST_CODE)
    coded = (np.rint(groups / scales) * scales).reshape(tokens, -1)
    return np.asarray(coded[:, :width], np.float32)


def static_int8(inputs: NDArray[np.float32], largest: float) -> NDArray[np.float32]:
    """After int8 with one scale, by which `largest` is 127; what is beyond is cut off."""
    scale = np.float32(largest / _LARGEST_CODE if largest > 0 else 1)
    codes = np.clip(np.rint(inputs / scale), -_LARGEST_CODE, _LARGEST_CODE)
    return np.asarray(codes * scale, np.float32)
