"""Values of a step that can be looked at afterwards, against the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import tiny
from farthing import _native
from farthing.backends.torch import TorchBackend
from farthing.core import ActivationMode, KVDtype, RequestError
from farthing.models.load import Model
from farthing.plan.memory import plan_memory
from farthing.plan.stages import fuse
from native_steps import logits_of, model_at, native, relative_error, step

IDS = tiny.token_ids(50)
EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}


def stored_values(model: Model) -> list[str]:
    return [stage.output for stage in fuse(model.program)]


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_stored_value_of_a_step_equals_the_oracles(
    family: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARTHING_ISA", tier)
    model = model_at(tiny.shared(family))
    names = stored_values(model)
    backend = native(model, **EXACT, taps=names)
    oracle = TorchBackend(model, taps=names)
    for ids, first in ((IDS[:37], 0), (IDS[37:], 37)):
        plan = step([(ids, first, [0, 1])], wanted=[3, 8])
        backend.run(plan)
        oracle.run(plan)
        for name in names:
            found = backend.value(name)
            assert found.dtype == np.float32
            rows = 2 if model.program.values[name].wanted else len(ids)
            assert found.shape == (rows, model.program.values[name].width)
            assert relative_error(found, oracle.tapped[name].numpy()) < 1e-5, name


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_looking_changes_no_bit_of_what_is_computed(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q4_0"))
    watched = native(model, taps=stored_values(model))
    assert np.array_equal(logits_of(watched, IDS), logits_of(native(model), IDS))


def test_a_value_that_exists_only_within_a_stage_is_refused_with_what_to_take() -> None:
    model = model_at(tiny.shared("llama3"))
    for name, instead in (
        ("layers.1.attention_norm", "layers.0.mlp_residual"),
        ("layers.1.query", "layers.1.rotated_query"),
        ("layers.1.key", "layers.0.mlp_residual"),
        ("layers.0.gate", "layers.0.activated"),
        ("layers.0.down", "layers.0.activated"),
    ):
        with pytest.raises(RequestError, match=rf"{name} is never stored.*{instead}"):
            plan_memory(model, taps=[name])
        plan_memory(model, taps=[instead])


def test_a_value_unknown_or_not_asked_for_is_refused() -> None:
    model = model_at(tiny.shared("llama3"))
    with pytest.raises(RequestError, match="no value called 'layers.9.down'"):
        plan_memory(model, taps=["layers.9.down"])
    backend = native(model, taps=["embedding"])
    assert backend.value("embedding").shape == (0, 96)
    with pytest.raises(RequestError, match=r"'wanted' is not kept.*now: embedding"):
        backend.value("wanted")
