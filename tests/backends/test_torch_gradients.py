"""The gradients that training takes, by finite differences: every kind of operation, and the whole.

`gradcheck` compares what backward gives with central differences in float64, entry by entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import tiny
from farthing.backends import torch as oracle
from farthing.backends.torch import TorchBackend
from farthing.models.program import OPS
from native_steps import model_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

RANDOM = torch.Generator().manual_seed(3)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=RANDOM, dtype=torch.float64).requires_grad_()


ATTEND = {"heads": 4, "kv_heads": 2, "head_dim": 2, "scale": 0.7}

# For each kind what is differentiated in what.
CASES: dict[str, list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]]] = {
    "embed": [(lambda table: oracle.embed(torch.tensor([1, 0, 1]), table), (numbers(3, 4),))],
    "scale": [(lambda x: oracle.scale(x, 1.5), (numbers(2, 3),))],
    "rmsnorm": [(lambda x, gain: oracle.rmsnorm(x, gain, 1e-2), (numbers(2, 6), numbers(3)))],
    "linear": [
        (oracle.linear, (numbers(3, 4), numbers(2, 4), numbers(2))),
        (oracle.linear, (numbers(3, 4), numbers(2, 4))),
    ],
    "rope": [(lambda x: oracle.rope(x, torch.tensor([0, 3, 9]), 6, (1.0, 0.1)), (numbers(3, 12),))],
    "attend": [
        (
            lambda q, k, v, window=window: oracle.attend(q, k, v, window=window, **ATTEND),
            (numbers(3, 8), numbers(5, 4), numbers(5, 4)),
        )
        for window in (0, 2)
    ],
    "swiglu": [(oracle.swiglu, (numbers(2, 3), numbers(2, 3)))],
    "geglu": [(oracle.geglu, (numbers(2, 3), numbers(2, 3)))],
    "add": [(oracle.add, (numbers(2, 3), numbers(2, 3)))],
    "columns": [(lambda x: oracle.columns(x, (0, 2)), (numbers(2, 4),))],
    "zero_columns": [(lambda x: oracle.zero_columns(x, (0, 2)), (numbers(2, 4),))],
    "rows": [(lambda x: oracle.rows(x, torch.tensor([2, 0])), (numbers(3, 2),))],
    "logits": [(oracle.logits, (numbers(2, 4), numbers(3, 4)))],
    # What is spread is compared where it lies: -inf has no differences.
    "spread": [(lambda x: oracle.spread(x, (1, 3), 5)[:, [1, 3]], (numbers(2, 2),))],
}


def test_every_kind_of_operation_has_a_case() -> None:
    assert set(CASES) == set(OPS)


@pytest.mark.parametrize("kind", OPS)
def test_the_gradient_of_an_operation_is_the_slope_of_its_differences(kind: str) -> None:
    for function, inputs in CASES[kind]:
        assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("family", ["llama_bias", "qwen3", "gemma3"])
def test_the_gradient_of_a_whole_model_is_the_slope_of_its_differences(family: str) -> None:
    """Of some entries of every weight, through all operations, over packed texts."""
    backend = TorchBackend(model_at(tiny.shared(family)))
    for weight in backend.parameters.values():
        weight.requires_grad_()
    ids, starts, rows = torch.tensor(tiny.token_ids(12)), [0, 5, 12], torch.tensor([3, 4, 8, 11])
    mixing = torch.randn(4, backend.vocabulary_size, generator=RANDOM, dtype=torch.float64)

    def value() -> Tensor:
        return (backend.forward_packed(ids, starts, rows).double().log_softmax(-1) * mixing).sum()

    value().backward()
    for name, weight in backend.parameters.items():
        assert weight.grad is not None, name
        place = tuple(each[0] for each in torch.where(weight.grad.abs() == weight.grad.abs().max()))
        found = []
        with torch.no_grad():
            before = weight[place].item()
            # In float32, whose rounding smaller steps would see.
            step = 2e-3 * max(1.0, abs(before))
            for moved in (before + step, before - step):
                weight[place] = moved
                found.append(value().item())
            weight[place] = before
        slope = (found[0] - found[1]) / (2 * step)
        assert slope == pytest.approx(weight.grad[place].item(), rel=0.05), name


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_packed_texts_are_computed_as_if_each_were_alone(family: str) -> None:
    backend = TorchBackend(model_at(tiny.shared(family)))
    texts = [tiny.token_ids(length, seed) for seed, length in enumerate((7, 1, 12))]
    ids = torch.tensor([token for text in texts for token in text])
    with torch.no_grad():
        packed = backend.forward_packed(ids, [0, 7, 8, 20], torch.arange(20))
        alone = torch.cat([backend.forward(text) for text in texts])
        some = backend.forward_packed(ids, [0, 7, 8, 20], torch.tensor([19, 2]))
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(some, alone[[19, 2]], rtol=1e-5, atol=1e-5)
