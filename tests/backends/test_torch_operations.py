"""The oracle's operations against formulas written out in numpy float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farthing.backends import torch as oracle

RANDOM = np.random.default_rng(7)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def close(ours: torch.Tensor, wanted: np.ndarray) -> None:
    assert ours.dtype == torch.float32
    assert ours.shape == wanted.shape
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=2e-5, atol=2e-6)


def tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x)


def test_embed_takes_rows() -> None:
    table = random(5, 3)
    close(oracle.embed(torch.tensor([4, 0, 4]), tensor(table)), table[[4, 0, 4]])


def test_scale_add_and_rows() -> None:
    x, y = random(3, 4), random(3, 4)
    close(oracle.scale(tensor(x), 2.5), x * 2.5)
    close(oracle.add(tensor(x), tensor(y)), x + y)
    close(oracle.rows(tensor(x), torch.tensor([0, 2])), x[[0, 2]])


@pytest.mark.parametrize("runs", [1, 3])
def test_rmsnorm_normalises_each_run_for_itself(runs: int) -> None:
    x, gain = random(5, 8 * runs), random(8)
    wanted = np.empty_like(x, np.float64)
    for token in range(5):
        for run in range(runs):
            part = x[token, 8 * run : 8 * run + 8].astype(np.float64)
            mean = sum(part**2) / 8
            wanted[token, 8 * run : 8 * run + 8] = part / math.sqrt(mean + 0.1) * gain
    close(oracle.rmsnorm(tensor(x), tensor(gain), 0.1), wanted)


def test_linear_and_logits_multiply_by_the_transpose() -> None:
    x, weight, bias = random(3, 8), random(5, 8), random(5)
    close(oracle.linear(tensor(x), tensor(weight)), x @ weight.T)
    close(oracle.linear(tensor(x), tensor(weight), tensor(bias)), x @ weight.T + bias)
    close(oracle.logits(tensor(x), tensor(weight)), x @ weight.T)


def test_rope_turns_each_pair_as_a_complex_number() -> None:
    x, frequencies = random(3, 2 * 6), (1.0, 0.01)
    positions = [0, 5, 1000]
    wanted = x.astype(np.float64).copy()
    for token, position in enumerate(positions):
        for head in range(2):
            for i, frequency in enumerate(frequencies):
                first, second = 6 * head + i, 6 * head + i + 2
                pair = complex(x[token, first], x[token, second])
                turned = pair * complex(
                    math.cos(position * frequency), math.sin(position * frequency)
                )
                wanted[token, first], wanted[token, second] = turned.real, turned.imag
    close(oracle.rope(tensor(x), torch.tensor(positions), 6, frequencies), wanted)


def test_rope_keeps_its_accuracy_far_into_the_context() -> None:
    position = 10_000_001
    turned = oracle.rope(torch.tensor([[1.0, 0.0]]), torch.tensor([position]), 2, (1.0,))
    np.testing.assert_allclose(
        turned[0], [math.cos(position), math.sin(position)], rtol=0, atol=1e-6
    )


@given(
    tokens=st.integers(1, 5),
    before=st.integers(0, 6),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    window=st.integers(0, 6),
)
def test_attend_is_a_masked_softmax(
    tokens: int, before: int, kv_heads: int, group: int, window: int
) -> None:
    heads, head_dim, length = kv_heads * group, 4, before + tokens
    q = random(tokens, heads * head_dim)
    k, v = random(length, kv_heads * head_dim), random(length, kv_heads * head_dim)
    wanted = np.zeros((tokens, heads * head_dim))
    for token in range(tokens):
        position = before + token
        first = max(0, position - window + 1) if window else 0
        for head in range(heads):
            mine = slice(head * head_dim, (head + 1) * head_dim)
            shared = head // group
            theirs = slice(shared * head_dim, (shared + 1) * head_dim)
            weights = [
                math.exp(0.5 * float(np.dot(q[token, mine], k[other, theirs])))
                for other in range(first, position + 1)
            ]
            wanted[token, mine] = np.array(weights) @ v[first : position + 1, theirs] / sum(weights)
    ours = oracle.attend(tensor(q), tensor(k), tensor(v), heads, kv_heads, head_dim, 0.5, window)
    close(ours, wanted)


def test_gates_are_silu_and_tanh_gelu() -> None:
    gate, up = random(3, 5), random(3, 5)
    x = gate.astype(np.float64)
    close(oracle.swiglu(tensor(gate), tensor(up)), x / (1 + np.exp(-x)) * up)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    close(oracle.geglu(tensor(gate), tensor(up)), 0.5 * x * (1 + np.tanh(inner)) * up)
