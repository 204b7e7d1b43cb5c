"""Prefill and decode: the slope that bytes predict, and what the tables say of measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import half_billion
import tiny
from farthing.core import KVDtype
from farthing.lab.phases import decode_table, measure, points, predicted_slowdown, prefill_table
from farthing.lab.samples import Samples
from farthing.plan.memory import MemoryPlan, plan_memory
from lab_subject import subject_at
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.models.load import Model

CONTEXTS = [16, 1024]


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
    table = decode_table(CONTEXTS, seconds, model.program, plan, ())
    assert table.expectation is not None
    assert table.expectation.met
    measured = table.rows[1][4]
    assert isinstance(measured, Samples)
    assert measured.median == pytest.approx(100 * (slow - 1))
    assert table.rows[1][3] == pytest.approx(100 * (slow - 1))


def test_attention_slowed_threefold_contradicts_the_expectation(
    subject: tuple[Model, MemoryPlan],
) -> None:
    model, plan = subject
    slow = 1 + 3 * predicted_slowdown(model.program, plan, 1024)
    table = decode_table(CONTEXTS, [Samples((1.0,)), Samples((slow,))], model.program, plan, ())
    assert table.expectation is not None
    assert table.expectation.met is False


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
    prefill, decode = measure(subject_at("float", rounds=1))
    assert [row[0] for row in prefill.rows] == [16, 64, 256, 512]
    assert [row[0] for row in decode.rows] == [16, 64, 256, 512]


def test_points_beyond_the_context_are_left_out_and_named() -> None:
    prefill, decode = measure(subject_at(tiny.shared("llama", "gguf", "Q4_0"), rounds=2))
    assert [row[0] for row in prefill.rows] == [16, 64, 256, 1024]
    assert [row[0] for row in decode.rows] == [16, 64, 256, 1024]
    assert "skipped: 4,096 tokens; this model's context is 1,024" in decode.notes
    assert all(isinstance(row[1], Samples) and row[1].count == 2 for row in decode.rows)
