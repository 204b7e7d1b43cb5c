"""What rounding may cost: the oracle's own logits when its inputs move by up to half a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from farthing.backends import torch as oracle_module
from farthing.backends.torch import TorchBackend
from farthing.core import ActivationMode, KVDtype
from farthing.models.load import Model
from native_steps import relative_error


def _half_step(x: torch.Tensor, mode: ActivationMode | KVDtype, group: int) -> torch.Tensor:
    """Half the distance between neighbouring codes around each number of x (T, width)."""
    if mode is KVDtype.INT4_KEYS:
        # Half a step is a sixteenth of the largest rotated number, and as large a noise, evenly
        # spread, is as large when it is rotated back.
        runs = x.detach().reshape(len(x), -1, group)
        rotated = runs @ _hadamard(group)
        return (rotated.abs().amax(-1, keepdim=True) / 16).expand_as(runs).reshape(x.shape)
    if mode.value == "int8":
        runs = x.detach().reshape(len(x), -1, group)
        step = runs.abs().amax(-1, keepdim=True) / 127
        return (step / 2).expand_as(runs).reshape(x.shape)
    bits = {"bf16": 8, "fp16": 11, "fp32": 24}[mode.value]
    return x.detach().abs() * 2.0**-bits


def _hadamard(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix / size**0.5


@contextmanager
def moved_oracle(
    activations: ActivationMode, kv_dtype: KVDtype, head_dim: int, seed: int
) -> Iterator[None]:
    """Inside, the oracle's products and cached keys and values are off by up to half a step."""
    generator = torch.Generator().manual_seed(seed)

    def moved(x: torch.Tensor, mode: ActivationMode | KVDtype, group: int) -> torch.Tensor:
        noise = torch.rand(x.shape, generator=generator) * 2 - 1
        return x + noise * _half_step(x, mode, group)

    def linear(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return oracle_module.linear(moved(x, activations, 32), *weights)

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **attributes: int
    ) -> torch.Tensor:
        key_dtype = value_dtype = kv_dtype
        if kv_dtype is KVDtype.INT4_KEYS:
            value_dtype = KVDtype.INT8
        key, value = moved(key, key_dtype, head_dim), moved(value, value_dtype, head_dim)
        return plain_attend(query, key, value, **attributes)

    plain_attend = oracle_module.attend
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(oracle_module._FUNCTIONS, "linear", linear)
        patch.setitem(oracle_module._FUNCTIONS, "logits", linear)
        patch.setattr(oracle_module, "attend", attend)
        yield


def oracle_logits(model: Model, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits (T, vocabulary) in float32."""
    return TorchBackend(model).forward(token_ids).detach().numpy()


def rounding_bound(
    model: Model, token_ids: Sequence[int], activations: ActivationMode, kv_dtype: KVDtype
) -> float:
    """Twice the largest relative error of five oracles moved at random."""
    wanted = oracle_logits(model, token_ids)
    errors = []
    for seed in range(5):
        with moved_oracle(activations, kv_dtype, model.program.cache[0].head_dim, seed):
            errors.append(relative_error(oracle_logits(model, token_ids), wanted))
    return 2 * max(errors)
