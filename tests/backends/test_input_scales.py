"""Static activation scales: the native backend against their definition, and the same bits always.

Scales are chosen so small that many activations are clamped.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tiny
from farthing import _native
from farthing.backends.torch import TorchBackend, linear, rounded
from farthing.core import ActivationMode, KVDtype
from farthing.models.load import Model
from farthing.plan.memory import plan_memory
from native_steps import logits_of, model_at, native, step
from remedied import inputs_of, with_input_scales

IDS = tiny.token_ids(70)


@pytest.fixture(params=_native.available_tiers())
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FARTHING_ISA", request.param)
    return request.param


@cache
def calibrated(family: str, factor: float = 1.0, quant: str = "Q8_0") -> Model:
    """Inputs are clamped at three quarters of the largest, times `factor`."""
    inputs = inputs_of(model_at(tiny.shared(family, "gguf", quant)), IDS)
    scales = {name: factor * float(np.abs(x).max()) * 0.75 / 127 for name, x in inputs.items()}
    return with_input_scales(family, quant, scales)


def usual_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """The median over rows of the relative error.

    An activation that lies between two codes to the last bit goes either way, and moves a few rows.
    """
    distance = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    return float(np.median(distance))


@cache
def defined(family: str) -> NDArray[np.float32]:
    return TorchBackend(calibrated(family)).forward(IDS).detach().numpy()


def test_rounding_is_to_the_nearest_multiple_halves_to_even_and_clamped() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, 0.6, 63.4, 64.0, -1e9])
    wanted = [0.0, 1.0, 1.0, 0.0, -1.0, 0.5, 63.5, 63.5, -63.5]
    assert rounded(x, 0.5).tolist() == wanted
    assert torch.isnan(rounded(torch.tensor([torch.nan]), 0.5)).all()
    assert rounded(torch.tensor([-torch.inf]), 0.5).tolist() == [-torch.inf]
    weight = torch.tensor([[2.0] * 9])
    assert linear(x[None], weight, input_scale=0.5).item() == 2 * sum(wanted)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_are_those_of_the_definition(family: str, tier: str) -> None:
    backend = native(calibrated(family), kv_dtype=KVDtype.FP32)
    assert usual_error(logits_of(backend, IDS, chunks=[1, 30, 7]), defined(family)) < 1e-5


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_other_scales_would_be_seen(family: str) -> None:
    for model in (calibrated(family, 1.1), model_at(tiny.shared(family, "gguf", "Q8_0"))):
        backend = native(model, kv_dtype=KVDtype.FP32)
        assert usual_error(logits_of(backend, IDS), defined(family)) > 1e-3


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_logits_are_the_same_bits_for_any_chunks_threads_and_neighbours(
    family: str, tier: str
) -> None:
    model = calibrated(family, quant="Q4_0")
    whole = logits_of(native(model, threads=1), IDS)
    for threads, chunks in ((1, [1]), (2, [1, 2, 3, 5, 31]), (3, [17, 4])):
        found = logits_of(native(model, threads=threads), IDS, chunks)
        assert np.array_equal(found, whole), (threads, chunks)
    backend = native(model, sequences=3)
    spans = [(IDS[5:44], 0, [0, 1]), (IDS[:33], 0, [2, 3]), (IDS[60:], 0, [4])]
    together = backend.run(step(spans), want_logits=True).logits
    assert together is not None
    assert np.array_equal(together[39:72], whole[:33])


def test_wider_activations_are_not_rounded() -> None:
    plain = model_at(tiny.shared("llama3", "gguf", "Q8_0"))
    wide = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}
    assert np.array_equal(
        logits_of(native(calibrated("llama3"), **wide), IDS), logits_of(native(plain, **wide), IDS)
    )


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_products_that_agree_on_the_scale_stay_fused_and_cost_no_byte_more(family: str) -> None:
    inputs = inputs_of(model_at(tiny.shared(family, "gguf", "Q8_0")), IDS)
    model = with_input_scales(family, "Q8_0", dict.fromkeys(inputs, 0.125))
    plain = plan_memory(model_at(tiny.shared(family, "gguf", "Q8_0")))
    plan = plan_memory(model)
    assert [type(stage) for stage in plan.stages] == [type(stage) for stage in plain.stages]
    assert plan.total_bytes == plain.total_bytes
    kept = [place for place in plan.arena.values.values() if place.mode is ActivationMode.INT8]
    assert kept
    assert all(place.input_scale == 0.125 for place in kept)


def test_products_of_one_input_with_different_scales_are_computed_apart() -> None:
    plain = model_at(tiny.shared("llama3", "gguf", "Q8_0"))
    scales = {
        name: float(np.abs(x).max()) / (100 + 10 * index % 70)
        for index, (name, x) in enumerate(inputs_of(plain, IDS).items())
    }
    model = with_input_scales("llama3", "Q8_0", scales)
    wanted = TorchBackend(model).forward(IDS).detach().numpy()
    backend = native(model, kv_dtype=KVDtype.FP32)
    assert usual_error(logits_of(backend, IDS), wanted) < 1e-5
