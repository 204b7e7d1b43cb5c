"""The native backend against the float32 oracle, on tiny random models of every family."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

import tiny
from farthing import _native
from farthing.core import ActivationMode, DoesNotFitError, FarthingError, KVDtype, StoredTensor
from farthing.models.load import Model
from farthing.plan.memory import plan_memory, require_room
from moved_oracle import oracle_logits, rounding_bound
from native_steps import logits_of, model_at, native, relative_error, step

IDS = tiny.token_ids(70)
EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}


@cache
def oracle(family: str, form: str, quant: str) -> NDArray[np.float32]:
    return oracle_logits(model_at(tiny.shared(family, form, quant)), IDS)


@pytest.fixture(params=_native.available_tiers())
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FARTHING_ISA", request.param)
    return request.param


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_float32_logits_equal_the_oracles_to_1e_5(family: str, form: str, tier: str) -> None:
    backend = native(model_at(tiny.shared(family, form)), **EXACT)
    assert backend.tier == tier
    found = logits_of(backend, IDS, chunks=[1, 30, 7])
    assert relative_error(found, oracle(family, form, "F32")) < 1e-5


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_stored_weights_in_fp32_mode_equal_the_oracles_to_1e_5(quant: str) -> None:
    """Packing, expanding and the embedding lookup are lossless for every format."""
    backend = native(model_at(tiny.shared("llama3", "gguf", quant)), **EXACT)
    assert relative_error(logits_of(backend, IDS), oracle("llama3", "gguf", quant)) < 1e-5


# --- rounded activations and caches: bounded by what the oracle's own logits do when its inputs
# move by up to half a step of the format.


def bound(family: str, quant: str, activations: ActivationMode, kv_dtype: KVDtype) -> float:
    return rounding_bound(model_at(tiny.shared(family, "gguf", quant)), IDS, activations, kv_dtype)


CASES = [
    *(("Q4_1", ActivationMode.INT8, kv) for kv in KVDtype),
    *(("Q4_1", ActivationMode.BF16, kv) for kv in (KVDtype.FP16, KVDtype.BF16)),
    *((quant, ActivationMode.INT8, KVDtype.FP16) for quant in ("Q8_0", "Q4_0", "Q5_0", "Q5_1")),
    ("BF16", ActivationMode.BF16, KVDtype.BF16),
]


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gemma3"])
@pytest.mark.parametrize(("quant", "activations", "kv_dtype"), CASES)
def test_rounding_costs_no_more_than_half_a_step_everywhere_would(
    family: str, quant: str, activations: ActivationMode, kv_dtype: KVDtype
) -> None:
    backend = native(
        model_at(tiny.shared(family, "gguf", quant)), activations=activations, kv_dtype=kv_dtype
    )
    found = relative_error(logits_of(backend, IDS), oracle(family, "gguf", quant))
    assert found < bound(family, quant, activations, kv_dtype)


def _with_shifted_scales(model: Model, name: str) -> Model:
    """The model with one Q4_1 matrix whose scales sit one group too far."""
    tensor = model.tensors[name]
    blocks = tensor.data.reshape(tensor.shape[0], -1, 20).copy()
    blocks[:, :, :2] = np.roll(blocks[:, :, :2], 1, axis=1)
    shifted = StoredTensor(name, tensor.format, tensor.shape, blocks.reshape(-1))
    return dataclasses.replace(model, tensors={**model.tensors, name: shifted})


def test_scales_shifted_by_one_group_in_one_matrix_exceed_the_bound() -> None:
    model = model_at(tiny.shared("llama3", "gguf", "Q4_1"))
    name = next(name for name in model.program.weights if name.endswith("down.weight"))
    backend = native(_with_shifted_scales(model, name), kv_dtype=KVDtype.FP16)
    found = relative_error(logits_of(backend, IDS), oracle("llama3", "gguf", "Q4_1"))
    assert found > bound("llama3", "Q4_1", ActivationMode.INT8, KVDtype.FP16)


# --- refusals


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated() -> None:
    plan = plan_memory(model_at(tiny.shared("llama")), threads=1)
    with pytest.raises(DoesNotFitError, match="no cache fits") as caught:
        require_room(plan, room=1 << 20)
    assert caught.value.exit_code == 1
    with pytest.raises(DoesNotFitError, match="a cache of .* tokens fits"):
        require_room(plan, room=plan.total_bytes - plan.cache_bytes // 2 + plan.process_bytes)


def test_an_unknown_instruction_set_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARTHING_ISA", "mmx")
    with pytest.raises(FarthingError, match="mmx"):
        native(model_at(tiny.shared("llama")))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token_ids": [5, tiny.VOCABULARY]}, "token"),
        ({"token_ids": [5, -1]}, "token"),
        ({"positions": [0, 2]}, "consecutive"),
        ({"positions": [1023, 1024]}, "context"),
        ({"block_tables": [[99]]}, "block"),
        ({"block_tables": [[-1]]}, "block"),
        ({"rows": [2]}, "row"),
        ({"starts": [0, 1]}, "spans"),
    ],
)
def test_a_step_that_breaks_its_contract_is_refused_and_the_next_one_runs(
    change: dict[str, list[int]], problem: str
) -> None:
    backend = native(model_at(tiny.shared("llama")), sequences=1)
    good = step([([5, 6], 0, [0])])
    before = backend.run(good, want_logits=True).logits
    arrays = {name: np.array(value, np.int32) for name, value in change.items()}
    with pytest.raises(ValueError, match=problem):
        backend.run(dataclasses.replace(good, **arrays), want_logits=True)
    after = backend.run(good, want_logits=True).logits
    assert before is not None
    assert after is not None
    assert np.array_equal(before, after)
