from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import KVDtype, RequestError, StepPlan
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model

TOKENS = tiny.token_ids(100)


def backend(family: str = "llama3", **settings: Any) -> TorchBackend:
    return TorchBackend(load_model(open_checkpoint(tiny.shared(family))), **settings)


def step(*sequences: tuple[list[int], int, list[int]], rows: list[int] | None = None) -> StepPlan:
    """A step of (tokens, first position, block table); `rows` None wants every token's logits."""
    lengths = [len(tokens) for tokens, _, _ in sequences]
    width = max(len(table) for _, _, table in sequences)
    tables = [table + [-1] * (width - len(table)) for _, _, table in sequences]
    total = sum(lengths)
    positions = [first + i for tokens, first, _ in sequences for i in range(len(tokens))]
    return StepPlan(
        token_ids=np.array([t for tokens, _, _ in sequences for t in tokens], np.int32),
        positions=np.array(positions, np.int32),
        starts=np.cumsum([0, *lengths], dtype=np.int32),
        block_tables=np.array(tables, np.int32),
        rows=np.array(range(total) if rows is None else rows, np.int32),
    )


def run(backend: TorchBackend, plan: StepPlan) -> np.ndarray:
    result = backend.run(plan)
    assert result.logits is not None
    assert len(result.tokens) == 0
    assert result.logits.dtype == np.float32
    return result.logits


def whole(family: str = "llama3", tokens: list[int] = TOKENS) -> np.ndarray:
    return backend(family).forward(tokens).detach().numpy()


def assert_close(ours: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_token_a_step_gives_what_all_at_once_gives(family: str, recompute: bool) -> None:
    oracle = backend(family, recompute=recompute)
    stepped = [run(oracle, step(([t], i, [4, 9]))) for i, t in enumerate(TOKENS[:40])]
    assert_close(np.concatenate(stepped), whole(family, TOKENS[:40]))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("chunk", [7, 31, 32, 33, 100])
def test_chunks_give_what_the_whole_gives(chunk: int, recompute: bool) -> None:
    oracle = backend("gemma3", recompute=recompute)
    parts = [
        run(oracle, step((TOKENS[i : i + chunk], i, [0, 1, 2, 3])))
        for i in range(0, len(TOKENS), chunk)
    ]
    assert_close(np.concatenate(parts), whole("gemma3"))


@pytest.mark.parametrize("recompute", [False, True])
def test_neighbours_in_a_step_do_not_touch_each_other(recompute: bool) -> None:
    oracle = backend(recompute=recompute)
    first, second, third = TOKENS[:40], TOKENS[40:75], TOKENS[75:80]
    run(oracle, step((first[:39], 0, [0, 1]), (second[:10], 0, [5, 6])))
    last = step((first[39:], 39, [0, 1]), (second[10:], 10, [5, 6]), (third, 0, [2]))
    result = run(oracle, last)
    wanted = [whole(tokens=first)[39:], whole(tokens=second)[10:], whole(tokens=third)]
    assert_close(result, np.concatenate(wanted))


@pytest.mark.parametrize("recompute", [False, True])
def test_only_wanted_rows_come_back_in_order(recompute: bool) -> None:
    oracle = backend(recompute=recompute)
    run(oracle, step((TOKENS[:7], 0, [0])))
    plan = step((TOKENS[7:12], 7, [0]), (TOKENS[50:60], 0, [1]), rows=[1, 4, 14])
    wanted = np.stack([whole()[8], whole()[11], whole(tokens=TOKENS[50:60])[9]])
    assert_close(run(oracle, plan), wanted)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_may_want_no_rows(recompute: bool) -> None:
    logits = run(backend(recompute=recompute), step((TOKENS[:7], 0, [0]), rows=[]))
    assert logits.shape == (0, tiny.VOCABULARY)


@pytest.mark.parametrize("recompute", [False, True])
def test_going_back_forgets_what_came_after(recompute: bool) -> None:
    # As when a draft's tokens are rejected.
    oracle = backend(recompute=recompute)
    run(oracle, step(([*TOKENS[:40], 7, 7, 7], 0, [0, 1])))
    assert_close(run(oracle, step((TOKENS[40:], 40, [0, 1, 2, 3]))), whole()[40:])


@pytest.mark.parametrize("recompute", [False, True])
def test_sequences_may_share_the_blocks_of_a_common_prefix(recompute: bool) -> None:
    oracle = backend(recompute=recompute)
    prefix, one, other = TOKENS[:32], TOKENS[32:60], TOKENS[60:90]
    run(oracle, step((prefix + one[:5], 0, [3, 1])))
    run(oracle, step((other[:5], 32, [3, 2])))
    result = run(oracle, step((one[5:], 37, [3, 1]), (other[5:], 37, [3, 2])))
    wanted = [whole(tokens=prefix + one)[37:], whole(tokens=prefix + other)[37:]]
    assert_close(result, np.concatenate(wanted))


def test_a_block_may_be_used_again() -> None:
    oracle = backend()
    run(oracle, step((TOKENS[:40], 0, [0, 1])))
    assert_close(run(oracle, step((TOKENS[40:60], 0, [1]))), whole(tokens=TOKENS[40:60]))


@pytest.mark.parametrize(("dtype", "step_size"), [(KVDtype.FP16, 2**-11), (KVDtype.BF16, 2**-8)])
def test_a_16_bit_cache_changes_logits_by_about_its_rounding(
    dtype: KVDtype, step_size: float
) -> None:
    ours = run(backend(kv_dtype=dtype), step((TOKENS, 0, [0, 1, 2, 3])))
    error = np.linalg.norm(ours - whole()) / np.linalg.norm(whole())
    assert step_size / 100 < error < 10 * step_size


def test_a_cache_dtype_that_the_oracle_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match="fp32, fp16 or bf16, not int8"):
        backend(kv_dtype=KVDtype.INT8)


def test_taps_keep_values_by_name() -> None:
    oracle = backend(taps=("embedding", "layers.1.mlp_residual", "logits"))
    logits = oracle.forward(TOKENS[:9])
    assert {name: tuple(value.shape) for name, value in oracle.tapped.items()} == {
        "embedding": (9, 96),
        "layers.1.mlp_residual": (9, 96),
        "logits": (9, tiny.VOCABULARY),
    }
    assert torch.equal(oracle.tapped["logits"], logits)
    table = oracle.parameters["embedding.weight"]
    assert torch.equal(oracle.tapped["embedding"], table[TOKENS[:9]])


def test_a_tap_of_nothing_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"no value called 'layers\.9\.query'"):
        backend(taps=("layers.9.query", "logits"))


def test_gradients_reach_every_parameter() -> None:
    oracle = backend("qwen3")
    for parameter in oracle.parameters.values():
        parameter.requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        oracle.forward(TOKENS[:20]), torch.tensor(TOKENS[1:21])
    )
    loss.backward()
    for name, parameter in oracle.parameters.items():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    oracle = backend("gemma3")
    parameter = oracle.parameters["layers.2.gate.weight"].requires_grad_()

    def loss() -> torch.Tensor:
        logits = oracle.forward(TOKENS[:20])
        return torch.nn.functional.cross_entropy(logits, torch.tensor(TOKENS[1:21]))

    loss().backward()
    assert parameter.grad is not None
    direction = parameter.grad / parameter.grad.norm()
    with torch.no_grad():
        parameter += 1e-2 * direction
        above = loss()
        parameter -= 2e-2 * direction
        below = loss()
    slope = float(above - below) / 2e-2
    assert slope == pytest.approx(float(parameter.grad.norm()), rel=2e-2)


def test_the_oracle_states_its_bounds_and_does_not_sample() -> None:
    oracle = backend(total_blocks=7)
    assert not oracle.samples
    assert oracle.vocabulary_size == tiny.VOCABULARY
    assert oracle.total_blocks == 7
    assert oracle.context_length == oracle.max_step_tokens == 1024
    oracle.close()
    assert not oracle.parameters
