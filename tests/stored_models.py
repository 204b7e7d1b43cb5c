"""A tiny model whose matrices are stored in any format, K-quants too: rows of 256 and 512."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np

import stored_rows
import tiny
from farthing.core import StoredTensor
from farthing.models.load import Model
from farthing.models.registry import for_gguf
from farthing.quant.formats import encode
from native_steps import model_at


@cache
def stored_model(format_name: str) -> Model:
    """A llama of three layers, all of its matrices in the format."""
    small = model_at(tiny.shared("llama3"))
    config = dataclasses.replace(small.config, hidden_size=256, intermediate_size=512, heads=16)
    program = for_gguf("llama", "").build(config)
    rng = np.random.default_rng(1)
    tensors = {
        name: _tensor(name, weight.shape, format_name, rng)
        for name, weight in program.weights.items()
    }
    formats = {name: tensor.format for name, tensor in tensors.items()}
    return dataclasses.replace(
        small, config=config, program=program, tensors=tensors, formats=formats
    )


def as_multiplied(model: Model) -> Model:
    """The model with every matrix in F32 as products with int8 activations take it.

    NF4 alone differs from what is stored, in its levels.
    """
    tensors = {name: _multiplied(tensor) for name, tensor in model.tensors.items()}
    formats = {name: tensor.format for name, tensor in tensors.items()}
    return dataclasses.replace(model, tensors=tensors, formats=formats)


def _multiplied(tensor: StoredTensor) -> StoredTensor:
    if len(tensor.shape) == 1:
        return tensor
    outputs, inputs = tensor.shape
    rows = tensor.data.reshape(outputs, -1)
    weights = stored_rows.multiplied(tensor.format, rows, inputs).astype(np.float32)
    return StoredTensor(tensor.name, "F32", tensor.shape, weights.view(np.uint8).reshape(-1))


def _tensor(
    name: str, shape: tuple[int, ...], format_name: str, rng: np.random.Generator
) -> StoredTensor:
    if len(shape) == 1:
        gains = 1 + 0.2 * rng.normal(0, 1, shape).astype(np.float32)
        return StoredTensor(name, "F32", shape, gains.view(np.uint8))
    size = 1 / 3 if name.startswith("embedding") else shape[1] ** -0.5
    data = encode(rng.normal(0, size, shape).astype(np.float32), format_name)
    return StoredTensor(name, format_name, shape, data)
