"""Tiny models whose checkpoints hold what calibration fixed: scales of inputs, columns apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import StoredTensor
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import Model, load_model
from farthing.quant.formats import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


def opened(family: str, form: str = "gguf", quant: str = "F32") -> Any:
    """A tiny model's checkpoint, to which a test may add tensors."""
    checkpoint: Any = open_checkpoint(tiny.shared(family, form, quant))
    checkpoint.tensors = dict(checkpoint.tensors)
    return checkpoint


def stored(name: str, format_name: str, array: NDArray[Any]) -> StoredTensor:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return StoredTensor(name, format_name, array.shape, data)


def put(checkpoint: Any, *tensors: StoredTensor) -> None:
    for tensor in tensors:
        checkpoint.tensors[tensor.name] = tensor


def inputs_of(model: Model, token_ids: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    """What each matrix of a linear operation, or the head, is multiplied with, by its weight."""
    linears = [op for op in model.program.ops if op.kind in ("linear", "logits")]
    backend = TorchBackend(model, taps=[op.inputs[0] for op in linears])
    backend.forward(token_ids)
    return {op.weights[0]: backend.tapped[op.inputs[0]].numpy() for op in linears}


def with_input_scales(
    family: str, quant: str, scales: Mapping[str, float], form: str = "gguf"
) -> Model:
    """The family's model with these scales, by the weights' names in the Program."""
    checkpoint = opened(family, form, quant)
    names = load_model(checkpoint).stored
    for weight, scale in scales.items():
        name = f"{names[weight].name}.input_scale"
        put(checkpoint, stored(name, "F32", np.array([scale], np.float32)))
    return load_model(checkpoint)


def with_outlier_columns(
    family: str, quant: str, columns: Mapping[str, Sequence[int]], form: str = "gguf"
) -> Model:
    """The family's model with these columns apart, by the weights' names in the Program.

    The coded matrix is left with zeros in their place.
    """
    checkpoint = opened(family, form, quant)
    plain = load_model(checkpoint)
    for weight, chosen in columns.items():
        name = plain.stored[weight].name
        matrix = checkpoint.tensors[name]
        weights = decode(matrix)
        apart = encode(weights[:, list(chosen)], "BF16").view(np.uint16)
        weights[:, list(chosen)] = 0
        put(
            checkpoint,
            StoredTensor(name, matrix.format, matrix.shape, encode(weights, matrix.format)),
            stored(f"{name}.outlier_columns", "I32", np.array(chosen, np.int32)),
            stored(f"{name}.outlier_weights", "BF16", apart.reshape(len(weights), -1)),
        )
    return load_model(checkpoint)


def joined(model: Model, weight: str) -> NDArray[np.float32]:
    """The matrix with its outlier columns back in their places, as the Program has it."""
    weights = decode(model.tensors[weight])
    apart = decode(model.tensors[f"{weight}.outlier_weights"])
    op = next(op for op in model.program.ops if op.weights[:1] == (weight,))
    rest = next(each for each in model.program.ops if each.output == op.inputs[0])
    weights[:, list(rest.attributes["columns"])] = apart
    return weights
