"""Outlier dimensions and INT8's levels: by hand, and values of the stream against the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import RequestError
from farthing.forge.calibrate import input_sources
from farthing.lab.outlier_counts import Int8, Standing, histogram, without_top
from farthing.lab.outliers import histogram_table, inputs_table, layers_table, levels_table, measure
from farthing.lab.outliers import input_of as lab_input_of
from farthing.lab.taps import residual_values, tapped
from lab_subject import subject_at
from native_steps import model_at

TOKENS = [3, 200, 17, 44, 5, 91, 60]


def ordinary(tokens: int = 84, width: int = 96, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def test_one_scale_that_reaches_1579_6_is_12_44_and_leaves_most_dimensions_one_level() -> None:
    values = np.clip(ordinary() / 2, -1.6, 1.6)
    values[:, 5] = np.linspace(-1579.6, 1579.6, 84)
    found = Int8.of(values)
    assert round(found.scale, 2) == 12.44
    assert found.levels_per_dimension == 1
    assert found.zero_share > 0.98


def test_without_the_top_dimensions_73_sets_a_scale_of_0_575_which_is_22_times_smaller() -> None:
    values = np.clip(ordinary(), -2, 2)
    values[0, [3, 7, 11, 19]] = [1579.6, -900, 400, 100]
    values[1, 50] = -73.0
    whole, rest = Int8.of(values), Int8.of(without_top(values))
    assert round(rest.scale, 3) == 0.575
    assert round(whole.scale / rest.scale) == 22
    assert without_top(values).shape == (84, 92)


def test_levels_and_zeros_are_counted_as_they_are_stored() -> None:
    values = np.array([[127.0, 0.4], [-127.0, 0.0], [64.2, 0.6], [63.8, -0.6]], np.float32)
    found = Int8.of(values)
    # Codes: 127, 0 / -127, 0 / 64, 1 / 64, -1.
    assert (found.scale, found.levels, found.zero_share) == (1.0, 6, 1 / 8)
    assert found.levels_per_dimension == 3
    lost = np.array([0, 0.4, 0, 0, 0.2, 0.4, 0.2, 0.4])
    assert found.error == pytest.approx(np.linalg.norm(lost) / np.linalg.norm(values), rel=1e-5)


def test_a_scale_for_each_token_or_dimension_is_the_scale_of_that_one() -> None:
    values = np.array([[127.0, 1.0], [12.7, 12.7]], np.float32)
    assert Int8.of(values, axis=1).scale == pytest.approx((1.0 + 0.1) / 2)
    assert Int8.of(values, axis=0).error < Int8.of(values).error
    assert Int8.of(np.zeros((3, 2), np.float32)) == Int8(1 / 127, 1, 1.0, 0.0, 0.0)


def test_what_stands_out_is_told_by_dimension() -> None:
    values = ordinary()
    values[3, 40], values[2, 8] = -500, 60
    standing = Standing.of(values)
    assert standing.top[:2] == (40, 8)
    assert standing.largest == 500
    assert standing.ratio == pytest.approx(500 / np.median(np.abs(values).max(axis=0)))


def test_a_histogram_holds_every_dimension_once_on_a_log_axis() -> None:
    peaks = np.array([0.0, 0.12, 1.0, 9.99, 10.0, 500.0], np.float32)
    edges = histogram(peaks)
    assert all(high / low == pytest.approx(10 ** (1 / 3)) for low, high in edges)
    counts = [int(((peaks >= low) & (peaks < high)).sum()) for low, high in edges]
    assert sum(counts) == 5
    assert histogram(np.zeros(3, np.float32)) == []


def test_dimensions_that_stand_out_layer_after_layer_meet_the_expectation() -> None:
    stream = {f"value {n}": ordinary(seed=n) for n in range(6)}
    plain = layers_table(stream, ())
    for values in stream.values():
        values[:, [4, 9, 30, 31]] *= np.array([300, 200, 100, 90], np.float32)
    same = layers_table(stream, ())
    for n, values in enumerate(stream.values()):
        values[:] = np.roll(values, 7 * n, axis=1)
    moving = layers_table(stream, ())
    verdicts = [table.expectation for table in (plain, same, moving)]
    assert [None if each is None else each.met for each in verdicts] == [False, True, False]
    assert [row[6] for row in same.rows] == [None, 4, 4, 4, 4, 4]
    assert "100% of them stay the same" in same.finding


def test_the_first_token_is_told_apart() -> None:
    values = ordinary()
    values[0, 2] = 24_000
    table = layers_table({"a": values, "b": values}, ())
    assert table.rows[0][1] == 24_000
    assert isinstance(table.rows[0][2], float)
    assert table.rows[0][2] < 10
    levels = levels_table("a", values, ())
    scales = {row[0]: row[1] for row in levels.rows}
    assert scales["one scale, without the first token"] < 0.1  # type: ignore[operator]
    counts = histogram_table("a", values, ())
    assert sum(int(row[1]) for row in counts.rows) == 96  # type: ignore[arg-type]
    assert counts.rows[-1][1:] == (0, 1)


def test_one_scale_a_tensor_loses_more_than_one_a_token_where_tokens_differ() -> None:
    values = ordinary()
    values[7] *= 1000
    table = inputs_table({"down": [values, values]}, ())
    row = table.rows[0]
    assert row[:2] == ("down", 2)
    assert row[6] > 10 * row[8] or row[5] > 10 * row[7]  # type: ignore[operator]
    assert table.expectation is not None
    assert table.expectation.met


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_residual_stream_is_followed_from_the_embedding_to_the_last_layer(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "F32"))
    layers = model.config.layers
    expected = ["embedding"]
    for layer in range(layers):
        expected += [f"layers.{layer}.attention_residual", f"layers.{layer}.mlp_residual"]
    assert residual_values(model.program) == expected


@pytest.mark.parametrize("family", ["llama3", "gemma3", "qwen2"])
def test_values_are_those_of_the_oracle(family: str) -> None:
    subject = subject_at(tiny.shared(family, "gguf", "F32"))
    program = subject.model.program
    sources = input_sources(program)
    names = {*residual_values(program), *(source.value for source in sources.values())}
    found = tapped(subject, names, TOKENS)
    normed = {op.weights[0]: op.inputs[0] for op in program.ops if op.kind in ("linear", "logits")}
    # The head's own input exists for wanted rows alone.
    heads = {op.weights[0] for op in program.ops if op.kind == "logits"}
    read = {w: normed[w] for w in sources if w not in heads}
    oracle = TorchBackend(subject.model, taps={*names, *read.values()})
    with torch.no_grad():
        oracle.forward(TOKENS)
    assert subject.isa != "not used"
    for name in names:
        expected = oracle.tapped[name].numpy()
        np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=2e-5)
    for weight, value in read.items():
        made = lab_input_of(subject.model, sources[weight], found)
        np.testing.assert_allclose(made, oracle.tapped[value].numpy(), rtol=2e-4, atol=2e-5)


def test_a_text_that_is_too_short_is_refused_with_both_numbers() -> None:
    subject = subject_at(tiny.shared("llama", "gguf", "F32"), text="too short")
    with pytest.raises(RequestError, match=r"the text has \d+ tokens for this model, and 84"):
        list(measure(subject))


def test_all_its_tables_come_from_one_reading() -> None:
    subject = subject_at(tiny.shared("gemma3", "gguf", "F32"))
    tables = list(measure(subject))
    assert [table.key for table in tables] == ["layers", "histogram", "levels", "inputs"]
    assert len(tables[0].rows) == 1 + 2 * 7
    assert {row[0] for row in tables[3].rows} >= {"query, key, value", "gate, up", "down"}
