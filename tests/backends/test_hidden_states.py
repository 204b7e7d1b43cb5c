"""Hidden states and given tokens of every backend, against transformers and each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import tiny
from farthing import _native
from farthing.backends.torch import TorchBackend
from farthing.core import KVDtype, StepPlan
from farthing.engine.sampler import sample
from farthing.plan.memory import plan_memory
from native_steps import model_at, native, relative_error, step
from sampling_rows import sampling_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.backends import Backend

IDS = tiny.token_ids(200)
BLOCKS = list(range(7))


def hidden(plan: StepPlan, rows: Iterable[int]) -> StepPlan:
    return replace(plan, hidden_rows=np.array(list(rows), np.int32))


def states_of(
    backend: Backend, token_ids: list[int], chunks: tuple[int, ...] = (200,)
) -> NDArray[np.float32]:
    """Hidden states (T, hidden size) of one sequence; no row of the head is computed."""
    parts: list[NDArray[np.float32]] = []
    first = 0
    while first < len(token_ids):
        some = token_ids[first : first + chunks[len(parts) % len(chunks)]]
        plan = hidden(step([(some, first, BLOCKS)], wanted=()), range(len(some)))
        result = backend.run(plan)
        assert result.hidden is not None
        assert result.hidden.dtype == np.float32
        parts.append(result.hidden.copy())
        first += len(some)
    return np.concatenate(parts)


def transformers_states(family: str) -> NDArray[np.float32]:
    with torch.no_grad():
        output = tiny.reference(family).model(torch.tensor([IDS]))
    return output.last_hidden_state[0].numpy()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_they_are_transformers_last_hidden_states(family: str) -> None:
    wanted = transformers_states(family)
    model = model_at(tiny.shared(family))
    for backend in (TorchBackend(model), native(model, kv_dtype=KVDtype.FP32)):
        assert backend.hidden_size == wanted.shape[1]
        assert relative_error(states_of(backend, IDS), wanted) < 5e-6


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_activations_of_8_bits_move_them_by_a_few_percent(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q8_0"))
    wanted = states_of(TorchBackend(model), IDS)
    error = relative_error(states_of(native(model), IDS), wanted)
    assert 1e-4 < error < 0.06


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
@pytest.mark.parametrize("tier", _native.available_tiers())
def test_they_are_the_same_bits_for_any_chunks_and_threads(
    family: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARTHING_ISA", tier)
    model = model_at(tiny.shared(family, "gguf", "Q4_1"))
    whole = states_of(native(model), IDS)
    for threads, chunks in ((1, (200,)), (2, (1, 2, 67, 5)), (3, (129, 8))):
        assert states_of(native(model, threads=threads), IDS, chunks).tobytes() == whole.tobytes()


@pytest.mark.parametrize("make", [native, TorchBackend])
def test_they_come_beside_logits_and_change_neither(make: Any) -> None:
    model = model_at(tiny.shared("qwen3", "gguf", "Q4_1"))
    spans = [(IDS[:50], 0, [0, 1]), (IDS[50:51], 0, [2]), (IDS[60:160], 0, [3, 4, 5, 6])]
    plan = step(spans, wanted=[49, 50, 60])
    alone = make(model).run(plan, want_logits=True).logits
    assert alone is not None
    states = make(model).run(hidden(replace(plan, rows=plan.rows[:0]), [0, 49, 50, 150])).hidden
    assert states is not None
    both = make(model).run(hidden(plan, [0, 49, 50, 150]), want_logits=True)
    assert both.logits is not None
    assert both.hidden is not None
    if make is native:
        assert both.logits.tobytes() == alone.tobytes()
        assert both.hidden.tobytes() == states.tobytes()
    else:  # torch multiplies other numbers of rows in another order
        np.testing.assert_allclose(both.logits, alone, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(both.hidden, states, rtol=1e-3, atol=1e-4)


def test_they_come_beside_sampled_tokens() -> None:
    model = model_at(tiny.shared("llama"))
    plan = step([(IDS[:50], 0, [0, 1])], wanted=[49])
    sampled = replace(plan, sampling=sampling_rows(1, logprobs=2))
    plain = native(model).run(sampled)
    both = native(model).run(hidden(sampled, [3, 7]))
    assert both.tokens.tolist() == plain.tokens.tolist()
    assert both.top_logprobs.tobytes() == plain.top_logprobs.tobytes()
    assert both.hidden is not None
    assert both.hidden.tobytes() == states_of(native(model), IDS[:50])[[3, 7]].tobytes()


def test_a_step_that_wants_none_gives_none() -> None:
    model = model_at(tiny.shared("llama"))
    assert native(model).run(step([(IDS[:5], 0, [0])])).hidden is None


@pytest.mark.parametrize("rows", [[-1], [5], [0, 1, 2, 3, 4, 4]])
def test_states_of_what_is_no_token_are_refused(rows: list[int]) -> None:
    backend = native(model_at(tiny.shared("llama")))
    with pytest.raises(ValueError, match="hidden state"):
        backend.run(hidden(step([(IDS[:5], 0, [0])], wanted=()), rows))


def test_the_plan_counts_them() -> None:
    model = model_at(tiny.shared("llama3"))
    few, many = (
        plan_memory(model, context_length=256, step_tokens=tokens, threads=1).arena
        for tokens in (64, 128)
    )
    assert few.hidden_width == model.config.hidden_size
    for arena, tokens in ((few, 64), (many, 128)):
        end = arena.hidden + 4 * tokens * arena.hidden_width
        places = [place.offset for place in arena.values.values()]
        later = [start for start in (arena.scratch, arena.total_bytes) if start >= arena.hidden]
        assert end <= min(later)
        assert max(places) < arena.hidden


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_given_tokens_get_transformers_log_softmax(family: str) -> None:
    with torch.no_grad():
        output = tiny.reference(family)(torch.tensor([IDS])).logits[0].double()
    wanted = torch.log_softmax(output, -1)[torch.arange(199), torch.tensor(IDS[1:])].numpy()
    model = model_at(tiny.shared(family))
    plan = step([(IDS, 0, BLOCKS)], wanted=range(199))
    plan = replace(plan, sampling=sampling_rows(199, target=IDS[1:], logprobs=1))
    result = native(model, kv_dtype=KVDtype.FP32).run(plan)
    assert result.tokens.tolist() == IDS[1:]
    np.testing.assert_allclose(result.logprob, wanted, rtol=1e-4, atol=5e-4)
    oracle = TorchBackend(model).run(plan)
    assert oracle.logits is not None
    assert plan.sampling is not None
    np.testing.assert_allclose(
        sample(oracle.logits, plan.sampling).logprob, wanted, rtol=1e-4, atol=5e-4
    )


def test_the_default_models_states_and_scores_are_near_the_oracles(smollm2_path: Path) -> None:
    """Activations of 8 bits against float32, over the same 4-bit weights."""
    model = model_at(smollm2_path)
    ids = np.random.default_rng(3).integers(100, 40_000, 60).tolist()
    oracle = TorchBackend(model)
    wanted = states_of(oracle, ids)
    backend = native(model, context_length=256, step_rows=64)
    found = states_of(backend, ids)
    assert relative_error(found, wanted) < 0.05
    means = [each.mean(0) / np.linalg.norm(each.mean(0)) for each in (found, wanted)]
    assert float(means[0] @ means[1]) > 0.9998
    plan = step([(ids, 0, BLOCKS)], wanted=range(59))
    plan = replace(plan, sampling=sampling_rows(59, target=ids[1:], logprobs=0))
    scores = torch.log_softmax(oracle.forward(ids).detach().double(), -1)
    exact = scores[torch.arange(59), torch.tensor(ids[1:])].numpy()
    difference = np.abs(backend.run(plan).logprob - exact)
    assert float(difference.mean()) < 0.2
    assert float(difference.max()) < 0.7
