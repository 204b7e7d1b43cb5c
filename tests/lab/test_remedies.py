"""What methods repair: rounding against the kernels, single products, verdicts by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import half_billion
import tiny
from farthing.backends.torch import rounded
from farthing.core import ActivationMode, RequestError, UnsupportedModelError
from farthing.forge import treatment
from farthing.forge.calibrate import Calibration, input_sources
from farthing.forge.methods import Method
from farthing.forge.patterns import choose, matrices
from farthing.forge.preparation import changed_form
from farthing.lab import remedies, remedies_layers
from farthing.lab.quality_copies import measure_copies
from farthing.lab.quality_trial import Recipe
from farthing.lab.remedies import all_but, chosen_layers, measure
from farthing.lab.remedies_layers import (
    layer_errors,
    layers_table,
    served_int8,
    static_int8,
)
from farthing.lab.remedies_repairs import HARMFUL, JUSTIFIED, SAME, repairs_table
from farthing.lab.remedies_steps import EIGHT_BITS, REMEDIES, STATIC, STEPS, Step
from farthing.lab.table import Table
from farthing.lab.taps import tapped
from farthing.quality.texts import calibration_text, held_out_text
from farthing.quality.windows import cut_windows
from farthing.quant.formats import decode, encode
from farthing.quant.gptq import encode_gptq
from lab_subject import subject_at
from lab_trials import measurement, trial
from matrix_kernels import TIERS, Packed, Prepared, linear
from native_steps import model_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.forge.folding import Folding
    from farthing.lab.quality_trial import Trial
    from farthing.models.load import Model
    from farthing.quality.measure import Measurement

CALIBRATION = Calibration("tiny", "0" * 64, [tiny.token_ids(256, seed=seed) for seed in range(6)])


@pytest.fixture
def inputs() -> NDArray[np.float32]:
    values = np.random.default_rng(2).standard_normal((5, 96)).astype(np.float32)
    values[1, 40] = 500
    values[2, 32:64] = 0
    return values


@pytest.mark.parametrize("tier", TIERS)
def test_inputs_are_rounded_as_the_kernels_round_them(
    inputs: NDArray[np.float32], tier: str
) -> None:
    prepared = Prepared.of(tier, "INT8", inputs)
    scales = np.repeat(prepared.scale, 32, axis=1)
    np.testing.assert_allclose(served_int8(inputs), prepared.values * scales, rtol=1e-6, atol=1e-6)


def test_inputs_of_a_width_that_32_does_not_divide_keep_their_width() -> None:
    values = np.arange(80, dtype=np.float32).reshape(2, 40) - 40
    found = served_int8(values)
    assert found.shape == (2, 40)
    np.testing.assert_allclose(found, values, atol=0.2)


def test_one_fixed_scale_is_the_oracles_rounding(inputs: NDArray[np.float32]) -> None:
    scale = 127 / 127
    expected = rounded(torch.from_numpy(inputs), scale).numpy()
    np.testing.assert_array_equal(static_int8(inputs, 127.0), expected)
    assert static_int8(inputs, 127.0)[1, 40] == 127  # what is beyond is cut off
    assert static_int8(np.zeros((1, 4), np.float32), 0.0).max() == 0


def test_all_that_is_tried_is_a_base_with_one_method_more() -> None:
    assert [step.name for step in STEPS][:3] == [
        "int4-g128",
        "int4-g128 + gptq",
        "int4-g128 + awq",
    ]
    assert Step("INT8_ROW", (Method.STATIC_INPUTS,)) == STATIC
    for remedy in REMEDIES:
        assert set(remedy.treated.methods) == {*remedy.base.methods, remedy.method}
        assert remedy.treated.scheme == remedy.base.scheme
    assert {each.method for each in REMEDIES} == set(Method)


def test_of_a_large_model_layers_far_apart_are_quantised_and_all_else_stays() -> None:
    program = half_billion.model().program
    layers = chosen_layers(program)
    assert layers == (0, 23)
    schemes = choose(program, "INT4_G128", all_but(program, layers)).schemes
    assert set(schemes) == set(matrices(program))
    quantised = {name for name, scheme in schemes.items() if scheme == "INT4_G128"}
    assert len(quantised) == 2 * 7
    assert all(name.startswith(("layers.0.", "layers.23.")) for name in quantised)
    assert set(schemes.values()) == {"INT4_G128", "F16"}


def test_of_a_small_model_all_layers_are_quantised() -> None:
    program = model_at(tiny.shared("llama3")).program
    assert chosen_layers(program) == (0, 1, 2)
    assert all_but(program, (0, 1, 2)) == ()


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    return layer_errors(subject_at(tiny.shared("llama")), (0, 1), CALIBRATION)


def test_a_plain_products_error_is_that_of_the_native_kernel(
    errors: dict[str, dict[str, float]],
) -> None:
    name = "layers.1.output.weight"
    subject = subject_at(tiny.shared("llama"))
    source = input_sources(subject.model.program)[name]
    assert source.gain is None  # it reads the value as it is
    windows = cut_windows(subject.tokenizer, held_out_text(), 1, fewest=1)
    x = tapped(subject, [source.value], windows.token_ids[0].tolist())[source.value]
    weights = decode(subject.model.tensors[name])
    outputs, width = weights.shape
    packed = Packed.of(
        TIERS[0], "INT8_ROW", encode(weights, "INT8_ROW").reshape(outputs, -1), width
    )
    served = linear(packed, Prepared.of(TIERS[0], "INT8", x))[:, :outputs]
    exact = x @ weights.T
    expected = np.linalg.norm(served - exact) / np.linalg.norm(exact)
    assert errors["int8-row"][name] == pytest.approx(expected, rel=1e-3)


def test_every_step_is_tried_on_every_product(errors: dict[str, dict[str, float]]) -> None:
    assert list(errors) == [step.name for step in STEPS]
    assert {len(found) for found in errors.values()} == {14}
    table = layers_table(errors, ())
    parts = {"query", "key", "value", "output", "gate", "up", "down"}
    assert {column.name for column in table.columns[3:]} == parts
    plain, gptq = (
        np.mean(list(errors[name].values())) for name in ("int4-g128", "int4-g128 + gptq")
    )
    assert f"int4-g128 + gptq from {plain:.2%} to {gptq:.2%}" in table.finding


def test_gptq_and_awq_lower_the_error_of_single_products(
    errors: dict[str, dict[str, float]],
) -> None:
    mean = {step: np.mean(list(found.values())) for step, found in errors.items()}
    assert mean["int4-g128 + gptq"] < mean["int4-g128"]
    assert mean["int4-g128 + awq"] < mean["int4-g128"]
    assert mean["int8-row"] < mean["int8-row + static-inputs"]


def test_where_activations_are_not_rounded_static_inputs_cost_nothing() -> None:
    subject = subject_at(tiny.shared("llama"), activations=ActivationMode.FP32)
    found = layer_errors(subject, (0,), CALIBRATION)
    assert found["int8-row"] == found["int8-row + static-inputs"]


def test_a_model_that_cannot_be_rotated_is_measured_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(model: Model, methods: Sequence[Method]) -> tuple[Model, Folding]:
        if Method.ROTATE in methods:
            raise UnsupportedModelError("its stream cannot be rotated")
        return changed_form(model, methods)

    monkeypatch.setattr(remedies_layers, "changed_form", refuse)
    found = layer_errors(subject_at(tiny.shared("llama")), (0,), CALIBRATION)
    assert list(found) == [step.name for step in STEPS if Method.ROTATE not in step.methods]


USUAL = {
    "int4-g128": measurement(0.2),
    "int4-g128 + gptq": measurement(0.1),
    "int4-g128 + awq": measurement(0.15),
    "int4-g128 + rotate": measurement(0.2),
    "int8-row": measurement(1e-4),
    "int8-row + static-inputs": measurement(0.01),
    "int8-row + smoothquant + static-inputs": measurement(0.004),
    "int8-row + llm.int8 + static-inputs": measurement(0.005),
    "int8-row + rotate + static-inputs": measurement(0.002),
}
_EVEN = {name: {"layers.0.down.weight": 0.1, "layers.0.up.weight": 0.05} for name in USUAL}


def repairs(
    found: Mapping[str, Measurement],
    errors: Mapping[str, Mapping[str, float]] = _EVEN,
    on_a_grid: bool = False,
) -> Table:
    return repairs_table(trial(found), errors, CALIBRATION, (), on_a_grid=on_a_grid)


def found_to_be(table: Table) -> dict[Any, Any]:
    return {row[0]: row[-1] for row in table.rows}


def test_a_remedy_is_justified_where_the_divergence_as_served_falls() -> None:
    table = repairs(USUAL)
    assert list(found_to_be(table).values()) == [
        JUSTIFIED,
        JUSTIFIED,
        SAME,
        HARMFUL,
        JUSTIFIED,
        JUSTIFIED,
        JUSTIFIED,
    ]
    assert table.expectation is not None
    assert table.expectation.met  # what rotation does to four bits was not expected
    assert table.rows[0][5] == pytest.approx(2)
    assert "int4-g128 + gptq justified (from 0.216 to 0.108)" in table.finding
    assert "costs 0.0108 nats where a scale for each 32, as served, costs 0.000108" in table.finding


def test_a_remedy_that_does_not_reach_the_worst_product_says_which() -> None:
    odd = {**USUAL, "int8-row + rotate + static-inputs": measurement(0.01)}
    table = repairs(odd)
    assert table.expectation is not None
    assert table.expectation.met is False
    assert found_to_be(table)["int8-row + rotate + static-inputs"] == SAME
    assert "of a layer's products `down` errs most, 10.00% before and 10.00%" in table.notes[0]


def test_a_remedy_that_makes_it_worse_is_told_so() -> None:
    odd = {**USUAL, "int4-g128 + gptq": measurement(0.3)}
    better = {**_EVEN, "int4-g128 + gptq": {"layers.0.down.weight": 0.05}}
    table = repairs(odd, better, on_a_grid=True)
    assert found_to_be(table)["int4-g128 + gptq"] == HARMFUL
    assert "single products err less, 5.00% for 7.50%" in table.notes[0]
    assert "leave the grid that they were stored on" in repairs(odd, on_a_grid=True).notes[0]


def test_without_an_input_that_stands_out_llm_int8_keeps_none_apart() -> None:
    odd = {**USUAL, "int8-row + llm.int8 + static-inputs": measurement(0.01)}
    assert "no input reaches 6 in calibration" in repairs(odd).notes[0]


def test_what_the_model_does_not_allow_is_left_out_of_the_table() -> None:
    few = {name: each for name, each in USUAL.items() if "rotate" not in name}
    table = repairs(few)
    assert len(table.rows) == 5
    assert table.expectation is not None
    assert table.expectation.met
    assert "rotate" not in table.expectation.text


def test_the_text_of_calibration_is_not_measured_on() -> None:
    subject = subject_at(tiny.shared("llama"), text=calibration_text().content)
    with pytest.raises(RequestError, match="must not be measured on what it was calibrated with"):
        list(measure(subject))


def tried(*steps: Step) -> Trial:
    recipes = [Recipe(step.name, step.scheme, step.methods) for step in steps]
    subject = subject_at(tiny.shared("llama"))
    return measure_copies(subject, recipes, tokens=400, calibration=CALIBRATION)


def test_a_corrupted_remedy_is_harmful(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupted(*arguments: Any, **settings: Any) -> NDArray[np.uint8]:
        data = encode_gptq(*arguments, **settings)
        data[: len(data) // 4] ^= 0x11
        return data

    monkeypatch.setattr(treatment, "encode_gptq", corrupted)
    gptq = REMEDIES[0]
    found = tried(gptq.base, gptq.treated, EIGHT_BITS, STATIC)
    table = repairs_table(found, _EVEN, CALIBRATION, (), on_a_grid=False)
    assert found_to_be(table)["int4-g128 + gptq"] == HARMFUL


def test_a_whole_section_is_the_same_when_it_is_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remedies, "_TOKENS", 400)
    monkeypatch.setattr(remedies, "_CALIBRATED", 1024)
    first, second = (
        [each for each in measure(subject_at(tiny.shared("llama"))) if isinstance(each, Table)]
        for _ in range(2)
    )
    assert [table.key for table in first] == ["repairs", "layers"]
    assert [table.rows for table in first] == [table.rows for table in second]
    assert len(first[0].rows) == len(REMEDIES)
