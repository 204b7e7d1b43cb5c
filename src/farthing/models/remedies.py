"""What calibration fixed for single matrices, and the Program rewritten to compute with it.

A checkpoint keeps it in tensors of its own beside the matrix, of N outputs and K inputs:

- `<its name>.input_scale`, F32 (1,): the one scale of its input's int8 codes;
- `<its name>.outlier_columns`, I32 (n,), ascending, and `<its name>.outlier_weights`, BF16 (N, n):
  the inputs with large activations, which count as zeros in the product with the matrix, and what
  they are multiplied with instead. Dettmers et al. 2022, "LLM.int8()"; there each batch chooses.

Architecture files know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError
from farthing.models.program import Builder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.core import StoredTensor
    from farthing.models.program import Op, Program

INPUT_SCALE = "input_scale"
OUTLIER_COLUMNS = "outlier_columns"
OUTLIER_WEIGHTS = "outlier_weights"


@dataclass(frozen=True)
class Remedy:
    """What is particular to the products with one matrix.

    `outlier_weights` is None exactly where there are no `columns`.
    """

    input_scale: float | None = None
    columns: tuple[int, ...] = ()
    outlier_weights: StoredTensor | None = None


def outlier_weights_of(weight: str) -> str:
    """What the rewritten Program calls the weights that stand apart from `weight`."""
    return f"{weight}.{OUTLIER_WEIGHTS}"


def take_remedies(
    program: Program, names: Mapping[str, str], stored: dict[str, StoredTensor], where: str
) -> dict[str, Remedy]:
    """Removes from `stored`, and reads, the remedies of the program's matrices, by weight.

    `names` says what the checkpoint, which is `where`, calls each weight. A head has a scale at
    most. Raises `FileFormatError` for what is not as this file's first lines say.
    """
    found: dict[str, Remedy] = {}
    for op in program.ops:
        if op.kind not in ("linear", "logits") or op.weights[0] in found:
            continue
        weight = op.weights[0]
        scale = stored.pop(f"{names[weight]}.{INPUT_SCALE}", None)
        columns, weights = None, None
        if op.kind == "linear":
            columns = stored.pop(f"{names[weight]}.{OUTLIER_COLUMNS}", None)
            weights = stored.pop(f"{names[weight]}.{OUTLIER_WEIGHTS}", None)
        if scale is None and columns is None and weights is None:
            continue
        if (columns is None) != (weights is None):
            raise FileFormatError(
                f"{where}: of {OUTLIER_COLUMNS} and {OUTLIER_WEIGHTS} of the tensor "
                f"{names[weight]} only one is there: quantise the model again"
            )
        found[weight] = Remedy(
            None if scale is None else _input_scale(scale, where),
            () if columns is None else _columns(columns, program.weights[weight].shape[1], where),
            weights,
        )
        if weights is not None:
            outputs, count = program.weights[weight].shape[0], len(found[weight].columns)
            _require(weights, "BF16", (outputs, count), where)
    return found


def with_remedies(program: Program, remedies: Mapping[str, Remedy]) -> Program:
    """The Program in which the products with these weights are computed as the remedies say.

    A value keeps its name; what a remedy adds is called after it.
    """
    if not remedies:
        return program
    b = Builder()
    for weight in program.weights.values():
        b.weight(weight.name, *weight.shape)
    split: dict[tuple[str, tuple[int, ...]], tuple[str, str]] = {}
    for op in program.ops:
        remedy = remedies.get(op.weights[0]) if op.kind in ("linear", "logits") else None
        if remedy is None:
            b.op(op.kind, op.output, op.inputs, op.weights, **op.attributes)
            continue
        attributes = dict(op.attributes)
        if remedy.input_scale is not None:
            attributes[INPUT_SCALE] = remedy.input_scale
        if not remedy.columns:
            b.op(op.kind, op.output, op.inputs, op.weights, **attributes)
            continue
        source = op.inputs[0], remedy.columns
        if source not in split:
            split[source] = _split(b, op, remedy.columns)
        rest, outliers = split[source]
        outputs = program.weights[op.weights[0]].shape[0]
        apart = b.weight(outlier_weights_of(op.weights[0]), outputs, len(remedy.columns))
        coded = b.op("linear", f"{op.output}.coded", (rest,), op.weights, **attributes)
        added = b.op("linear", f"{op.output}.apart", (outliers,), (apart,))
        b.op("add", op.output, (coded, added))
    return b.finish(program.output)


def _split(b: Builder, op: Op, columns: tuple[int, ...]) -> tuple[str, str]:
    """The input without its outliers, and the outliers.

    These come first: then the rest can take the place of an input that nobody else reads.
    """
    outliers = b.op("columns", f"{op.output}.outliers", op.inputs, columns=columns)
    rest = b.op("zero_columns", f"{op.output}.rest", op.inputs, columns=columns)
    return rest, outliers


def _require(tensor: StoredTensor, format_name: str, shape: tuple[int, ...], where: str) -> None:
    if tensor.format != format_name or tensor.shape != shape:
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} must be {format_name} of shape {shape}, not "
            f"{tensor.format} of shape {tensor.shape}: quantise the model again"
        )


def _input_scale(tensor: StoredTensor, where: str) -> float:
    _require(tensor, "F32", (1,), where)
    scale = float(tensor.data.view("<f4")[0])
    if not (np.isfinite(scale) and scale >= np.finfo(np.float32).tiny):
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} holds {scale}, and a scale is a number above 0: "
            "the file is damaged, or was calibrated on nothing; quantise the model again"
        )
    return scale


def _columns(tensor: StoredTensor, inputs: int, where: str) -> tuple[int, ...]:
    """Raises before it reads more columns than there are inputs."""
    count = tensor.shape[0] if len(tensor.shape) == 1 and 0 < tensor.shape[0] <= inputs else 1
    _require(tensor, "I32", (count,), where)
    columns = tensor.data.view("<i4").astype(np.int64)
    if columns[0] < 0 or columns[-1] >= inputs or not (np.diff(columns) > 0).all():
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} must list columns in ascending order, each once, "
            f"from 0 to {inputs - 1}, not {columns.tolist()!s:.80}: quantise the model again"
        )
    return tuple(columns.tolist())
