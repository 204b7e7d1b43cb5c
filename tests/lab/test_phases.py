"""Prefill and decode: the slope that bytes predict, and what the tables say of measured times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import half_billion
import tiny
from farthing.backends.native import NativeBackend
from farthing.core import ActivationMode, KVDtype
from farthing.lab import bench as lab_bench
from farthing.lab.drift import Drift
from farthing.lab.phases import (
    decode_table,
    measure,
    points,
    predicted_slowdown,
    predicted_step,
    prefill_table,
    steps_for,
)
from farthing.lab.report.series import middle
from farthing.lab.samples import Samples
from farthing.lab.step_split import Ceiling
from farthing.plan.memory import MemoryPlan, plan_memory
from lab_subject import subject_at
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.core import StepPlan, StepResult
    from farthing.models.load import Model

STEADY = Drift(9, 0.0, 0.0, 0.0, 0.0)
CONTEXTS = [16, 1024]
FAST = Ceiling(1e30, dict.fromkeys(ActivationMode, 1e30))
"""So fast that what a longer context adds takes no time."""


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)


@pytest.fixture
def subject() -> tuple[Model, MemoryPlan]:
    model = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    return model, plan_memory(model)


def test_half_a_billion_parameters_in_fp32_slow_by_0_6_percent_at_1024_tokens() -> None:
    model = half_billion.model()
    plan = plan_memory(model, kv_dtype=KVDtype.FP16)
    assert predicted_slowdown(model.program, plan, 1024) == pytest.approx(0.006, abs=0.0005)


def test_the_default_model_slows_by_a_quarter_at_1024_tokens(smollm2_path: Path) -> None:
    model = model_at(smollm2_path)
    assert predicted_slowdown(model.program, plan_memory(model), 1024) == pytest.approx(
        0.25, abs=0.01
    )


def test_decoding_that_slows_as_predicted_meets_the_expectation(
    subject: tuple[Model, MemoryPlan],
) -> None:
    model, plan = subject
    slow = (1 + predicted_slowdown(model.program, plan, 1024)) / (
        1 + predicted_slowdown(model.program, plan, 16)
    )
    seconds = [Samples((1.0, 2.0)), Samples((slow, 2 * slow))]
    table = decode_table(CONTEXTS, seconds, model.program, plan, [FAST] * 2, (), STEADY)
    assert table.expectation is not None
    assert table.expectation.met
    measured = table.rows[1][5]
    assert isinstance(measured, Samples)
    assert measured.median == pytest.approx(100 * (slow - 1))
    assert table.rows[1][3] == pytest.approx(100 * (slow - 1))


@pytest.mark.parametrize(("drift", "met"), [(0.0, False), (0.5, None)])
def test_attention_slowed_threefold_contradicts_the_expectation_where_no_drift_explains_it(
    subject: tuple[Model, MemoryPlan], drift: float, met: bool | None
) -> None:
    model, plan = subject
    slow = 1 + 3 * predicted_slowdown(model.program, plan, 1024)
    times = [Samples((1.0,)), Samples((slow,))]
    moved = Drift(9, drift, drift, drift, drift)
    table = decode_table(CONTEXTS, times, model.program, plan, [FAST], (), moved)
    assert table.expectation is not None
    assert table.expectation.met is met


def test_attentions_multiplying_is_predicted_at_its_ceiling_beside_its_bytes(
    subject: tuple[Model, MemoryPlan],
) -> None:
    model, plan = subject
    layers, heads, head_dim = 2, 4, 16
    more = 1024 - 16
    products = layers * 2 * heads * head_dim * more
    read = layers * 2 * heads * head_dim * 2 * more
    ceiling = Ceiling(read / 0.5, dict.fromkeys(ActivationMode, products / 0.25))
    assert predicted_step(model.program, plan, 1024, 16, 1.0, ceiling) == pytest.approx(1.75)
    slow = [Samples((1.0,)), Samples((1.75,))]
    table = decode_table(CONTEXTS, slow, model.program, plan, [ceiling], (), STEADY)
    predicted = table.rows[1][4]
    assert isinstance(predicted, Samples)
    assert predicted.median == pytest.approx(75)
    assert table.expectation is not None
    assert table.expectation.met
    assert "at this machine's ceilings, 75.0 %" in table.finding


def test_a_kernel_that_is_slow_on_long_contexts_shows_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = NativeBackend.run

    def slowed(self: NativeBackend, plan: StepPlan, want_logits: bool = False) -> StepResult:
        time.sleep(2e-5 * float(plan.positions[-1]))
        return run(self, plan, want_logits)

    monkeypatch.setattr(NativeBackend, "run", slowed)
    _, decode, split = measure(subject_at(tiny.shared("llama", "gguf", "Q4_0"), rounds=1))
    assert decode.expectation is not None
    assert decode.expectation.met is False
    shares = {str(row[0]): middle(row[5]) / middle(row[1]) for row in split.rows}  # type: ignore[operator]
    assert shares["1 token at 256"] > 0.5  # outside of all stages, where the sleep is


@pytest.mark.parametrize(("seconds", "steps"), [(1.0, 16), (0.001, 50), (1e-6, 512)])
def test_short_steps_are_repeated_until_they_can_be_timed(seconds: float, steps: int) -> None:
    assert steps_for(seconds) == steps


@pytest.mark.parametrize(("decode", "met"), [(1.0, True), (0.001, False)])
def test_a_prompts_token_is_compared_with_a_decoded_one(
    subject: tuple[Model, MemoryPlan], decode: float, met: bool
) -> None:
    model, plan = subject
    seconds = [Samples((0.1, 0.2)), Samples((1.0, 1.2))]
    table = prefill_table([16, 100], seconds, Samples((decode,) * 2), model.program, plan, ())
    assert table.expectation is not None
    assert table.expectation.met is met
    # Four heads' scores of each pair, four bytes each.
    assert [row[4] for row in table.rows] == [4 * 4 * 16 * 16, 4 * 4 * 100 * 100]


def test_all_of_the_context_is_measured_where_it_ends_before_the_usual_points_do() -> None:
    assert points((16, 64, 256), 8192) == [16, 64, 256]
    assert points((16, 64, 256), 100) == [16, 64, 100]
    assert points((16, 64, 256), 256) == [16, 64, 256]
    assert points((16, 64, 256), 8) == [8]
    prefill, decode, split = measure(subject_at("float", rounds=1))
    assert [row[0] for row in prefill.rows] == [16, 64, 256, 512]
    assert [row[0] for row in decode.rows] == [16, 64, 256, 512]
    assert [row[0] for row in split.rows] == ["prompt of 256", "1 token at 16", "1 token at 256"]


def test_points_beyond_the_context_are_left_out_and_named() -> None:
    prefill, decode, split = measure(subject_at(tiny.shared("llama", "gguf", "Q4_0"), rounds=2))
    assert [row[0] for row in prefill.rows] == [16, 64, 256, 1024]
    assert [row[0] for row in decode.rows] == [16, 64, 256, 1024]
    assert "skipped: 4,096 tokens; this model's context is 1,024" in decode.notes
    assert all(isinstance(row[1], Samples) and row[1].count == 2 for row in decode.rows)
    assert split.rows[-1][0] == "8 sequences at 128"
    assert all(isinstance(cell, Samples) for row in split.rows for cell in row[1:])
