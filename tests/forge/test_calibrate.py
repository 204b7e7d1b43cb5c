"""What calibration collects, held against the torch backend's values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import tiny
from farthing.core import DoesNotFitError, FarthingError, FileFormatError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.forge import calibrate
from farthing.forge.calibrate import Calibrator, calibration_with, input_sources
from farthing.forge.sections import sections
from farthing.models.program import Builder
from farthing.quality.texts import Text, calibration_text
from forge.calibrated import WINDOWS, hessian, inputs_of
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.forge.input_sums import InputStatistics
    from farthing.plan.stages import Source


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_statistics_are_those_of_what_every_linear_operation_is_given(family: str) -> None:
    model = model_at(tiny.shared(family))
    sources = input_sources(model.program)
    everything = set(sources.values())
    told: list[float] = []
    found = Calibrator(model, WINDOWS).collect(everything, everything, told.append)
    wanted = inputs_of(tiny.shared(family))
    assert sources.keys() == wanted.keys()
    for name, x in wanted.items():
        statistics = found[sources[name]]
        scale = np.abs(x).max()
        assert statistics.tokens == len(x)
        np.testing.assert_allclose(statistics.largest, np.abs(x).max(axis=0), atol=1e-4 * scale)
        np.testing.assert_allclose(statistics.magnitude, np.abs(x).mean(axis=0), atol=1e-4 * scale)
        moments = hessian(x)
        assert statistics.hessian is not None
        np.testing.assert_allclose(statistics.hessian, moments, atol=1e-4 * moments.max())
        np.testing.assert_allclose(statistics.square, moments.diagonal(), atol=1e-4 * moments.max())
    assert told == sorted(told)
    assert told[-1] == 1


def test_a_hessian_is_collected_only_where_it_is_asked_for() -> None:
    model = model_at(tiny.shared("llama"))
    sources = set(input_sources(model.program).values())
    one = {next(iter(sources))}
    found = Calibrator(model, WINDOWS[:1]).collect(sources, one, lambda share: None)
    assert {source for source, each in found.items() if each.hessian is not None} == one
    whole = Calibrator(model, WINDOWS[:1]).collect(sources, sources, lambda share: None)
    for source, each in found.items():
        np.testing.assert_allclose(each.square, whole[source].square, rtol=1e-4)


def test_long_windows_are_fed_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_at(tiny.shared("mistral"))
    sources = set(input_sources(model.program).values())
    whole = Calibrator(model, WINDOWS[:2]).collect(sources, sources, lambda share: None)
    monkeypatch.setattr(calibrate, "_STEP_TOKENS", 100)
    parts = Calibrator(model, WINDOWS[:2]).collect(sources, sources, lambda share: None)
    for source, each in parts.items():
        assert each.tokens == whole[source].tokens
        np.testing.assert_array_equal(each.largest, whole[source].largest)
        np.testing.assert_allclose(each.magnitude, whole[source].magnitude, rtol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_layers_run_one_after_another_are_given_what_they_are_in_the_whole_model(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_at(tiny.shared(family))
    sources = set(input_sources(model.program).values())
    whole = Calibrator(model, WINDOWS[:2]).collect(sources, sources, lambda share: None)
    monkeypatch.setattr(calibrate, "SECTION_BYTES", 1)
    told: list[float] = []
    parts = Calibrator(model, WINDOWS[:2]).collect(sources, sources, told.append)
    assert_same(parts, whole)
    assert len(sections(model.program)) == model.config.layers == len(told) / 2
    assert told == sorted(told)
    assert told[-1] == 1


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_a_collection_goes_on_where_the_last_one_ended_or_begins_anew(family: str) -> None:
    model = model_at(tiny.shared(family))
    by_layer = [
        {source for name, source in input_sources(model.program).items() if f"s.{layer}." in name}
        for layer in range(model.config.layers)
    ]
    calibrator = Calibrator(model, WINDOWS[:2])
    for layer in (0, 2, 2, 1):
        fresh = Calibrator(model, WINDOWS[:2])
        wanted = fresh.collect(by_layer[layer], by_layer[layer], lambda share: None)
        found = calibrator.collect(by_layer[layer], by_layer[layer], lambda share: None)
        assert_same(found, wanted)


def assert_same(
    found: dict[Source, InputStatistics], wanted: dict[Source, InputStatistics]
) -> None:
    assert found.keys() == wanted.keys()
    for source, expected in wanted.items():
        each = found[source]
        assert each.tokens == expected.tokens
        for name in ("largest", "magnitude", "square", "hessian"):
            np.testing.assert_array_equal(getattr(each, name), getattr(expected, name))


def test_a_model_without_room_for_its_layers_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_at(tiny.shared("llama"))
    sources = set(input_sources(model.program).values())
    monkeypatch.setattr(calibrate, "available_memory", lambda: 1_000_000)
    with pytest.raises(DoesNotFitError, match=r"calibration takes \d+ MB .* 1 MB are available"):
        Calibrator(model, WINDOWS[:1]).collect(sources, sources, lambda share: None)


def test_a_token_that_the_embedding_has_no_row_for_is_an_error() -> None:
    model = model_at(tiny.shared("llama"))
    sources = set(input_sources(model.program).values())
    calibrator = Calibrator(model, [[1, 2, tiny.VOCABULARY]])
    with pytest.raises(FileFormatError, match=f"{tiny.VOCABULARY}, and the embedding .* only"):
        calibrator.collect(sources, set(), lambda share: None)


def test_a_program_whose_head_reads_two_values_of_its_layers_is_refused() -> None:
    builder = Builder()
    table, matrix = builder.weight("embedding.weight", 32, 8), builder.weight("up.weight", 8, 8)
    first = builder.op("embed", "embedding", (), (table,))
    second = builder.op("linear", "up", (first,), (matrix,))
    rows = [builder.op("rows", f"{name} rows", (name,)) for name in (first, second)]
    both = builder.op("add", "both", tuple(rows))
    program = builder.finish(builder.op("logits", "logits", (both,), (table,)))
    with pytest.raises(UnsupportedModelError, match="pass on more than one value"):
        sections(program)


def test_activations_that_overflow_are_an_error_that_names_the_value(tmp_path: Path) -> None:
    tiny.build("llama", tmp_path, "safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][:] = 1e30
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = model_at(tmp_path)
    sources = set(input_sources(model.program).values())
    with pytest.raises(FarthingError, match=r"layers\.\d\.\w+ overflows on the calibration text"):
        Calibrator(model, WINDOWS[:1]).collect(sources, sources, lambda share: None)


# --- texts


def text_of(content: str) -> Text:
    return Text("mine", content, "0" * 64)


def test_a_text_is_cut_into_windows_of_one_length() -> None:
    content = calibration_text().content
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        found = calibration_with(calibration_text(), checkpoint)
        few = calibration_with(text_of(content[:2000]), checkpoint)
    assert {len(window) for window in found.windows} == {calibrate.WINDOW_TOKENS}
    assert found.tokens == calibrate.MOST_TOKENS
    assert found.sha256 == calibration_text().sha256
    assert len(few.windows) == 3
    assert list(few.windows) == list(found.windows[:3])


def test_every_window_begins_as_the_models_texts_do(tmp_path: Path) -> None:
    tiny.build("llama", tmp_path, "safetensors")
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(
        settings.read_text().replace('"add_bos_token": false', '"add_bos_token": true')
    )
    with open_checkpoint(tmp_path) as checkpoint:
        found = calibration_with(calibration_text(), checkpoint)
    assert {window[0] for window in found.windows} == {tiny.BOS}
    assert {len(window) for window in found.windows} == {calibrate.WINDOW_TOKENS}


def test_a_text_that_is_too_short_is_refused_with_how_much_is_wanted() -> None:
    with (
        open_checkpoint(tiny.shared("llama")) as checkpoint,
        pytest.raises(FarthingError, match=r"text mine has 100 tokens and must have at least 1,0"),
    ):
        calibration_with(text_of("x" * 100), checkpoint)
