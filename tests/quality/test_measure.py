"""A whole measurement: its figures against their definitions, what it refuses, its receipt."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing import __version__
from farthing.core import ActivationMode, DoesNotFitError, KVDtype, RequestError
from farthing.files.checkpoint import RECEIPT_FILE, open_checkpoint
from farthing.files.receipt import from_json, read_receipt, tensors_digest, to_json
from farthing.quality import figures
from farthing.quality.battery import questions
from farthing.quality.measure import Measurement, measure, measure_alone, receipt_of
from farthing.quality.subject import EXACT, Settings, Subject, name_of
from farthing.quality.texts import Text, calibration_text, held_out_text
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

FEW = questions()[:3]


@pytest.fixture(scope="module")
def found() -> Measurement:
    """Q4_0, as served, against float32, computed exactly."""
    return measure(
        tiny.shared("llama", "gguf", "Q4_0"),
        tiny.shared("llama"),
        tokens=500,
        window=64,
        battery=FEW,
        threads=2,
    )


def test_the_figures_are_those_of_their_definitions(found: Measurement) -> None:
    scores = found.scores
    ours, theirs = found.candidate, found.reference
    assert ours.perplexity.value == pytest.approx(math.exp(scores.nll.mean()))
    assert theirs.perplexity.value == pytest.approx(math.exp(scores.reference_nll.mean()))
    assert found.perplexity_ratio.value == pytest.approx(
        ours.perplexity.value / theirs.perplexity.value
    )
    assert found.kl.mean.value == pytest.approx(scores.kl.mean())
    assert found.kl.largest == scores.kl.max()
    assert found.kl.percentile_99_9 == pytest.approx(np.percentile(scores.kl, 99.9))
    assert found.agreement.value == pytest.approx(scores.agrees.mean())
    change = np.exp(-scores.nll) - np.exp(-scores.reference_nll)
    assert found.probability_rms.value == pytest.approx(np.sqrt((change**2).mean()))
    # Every token of the tiny vocabulary but one is a byte, and that one hardly occurs.
    assert ours.bits_per_byte.value == pytest.approx(scores.nll.mean() / math.log(2), rel=0.1)


def test_the_paired_ratio_is_known_better_than_either_perplexity(found: Measurement) -> None:
    ratio, own = found.perplexity_ratio, found.candidate.perplexity
    assert math.log(ratio.high / ratio.low) < math.log(own.high / own.low)


def test_it_says_what_was_compared_and_how(found: Measurement) -> None:
    ours, theirs = found.candidate, found.reference
    assert (ours.name, theirs.name) == ("llama.Q4_0", "llama.F32")
    assert (ours.bits_per_weight, theirs.bits_per_weight) == (4.5, 32.0)
    assert (ours.rounded, theirs.rounded) == (True, False)
    assert (ours.precision.kv_dtype, ours.precision.activations) == ("bf16", "default")
    assert (theirs.precision.kv_dtype, theirs.precision.activations) == ("fp32", "fp32")
    assert ours.precision.computed == {"Q4_0": "Q4_0 x int8"}
    assert theirs.precision.computed == {"F32": "F32 x fp32"}
    assert found.text.windows == 17
    assert found.text.scored_tokens == 17 * 31
    assert found.text.sha256 == held_out_text().sha256
    assert found.warnings == ()
    assert found.battery is not None
    assert found.battery.questions == 3


def test_a_rounded_reference_is_warned_of_with_its_bits() -> None:
    rounded = tiny.shared("llama", "gguf", "Q8_0")
    found = measure(rounded, rounded, tokens=1, window=64, battery=[], reference_settings=EXACT)
    (warning,) = found.warnings
    assert "llama.Q8_0 is no full precision" in warning
    assert "8.5 bits a weight" in warning
    sixteen = tiny.shared("llama", "gguf", "BF16")
    assert measure(sixteen, sixteen, tokens=1, window=64, battery=[]).warnings == ()


def test_what_activations_and_cache_cost_is_measured_apart_from_the_weights() -> None:
    model = tiny.shared("llama", "gguf", "Q8_0")

    def kl(settings: Settings) -> float:
        return measure(
            model, model, tokens=300, window=64, battery=[], settings=settings
        ).kl.mean.value

    as_weights, served = kl(EXACT), kl(Settings())
    assert as_weights == 0.0
    assert served > 0
    assert kl(Settings(KVDtype.FP32, ActivationMode.INT8)) != served


def test_what_is_measured_is_what_is_served() -> None:
    """The backend's logits and the engine's scores of the same windows, to the last bits."""
    from farthing.engine.engine import Engine
    from farthing.quality.windows import cut_windows

    path = tiny.shared("llama", "gguf", "Q4_0")
    found = measure(path, tiny.shared("llama"), tokens=200, window=64, battery=[])
    with open_checkpoint(path) as checkpoint:
        windows = cut_windows(load_tokenizer(checkpoint), held_out_text(), 200, 64)
    with Engine.load(path, threads=1) as engine:
        served = engine.score(windows.token_ids.tolist())
    logprobs = [[each.logprob for each in row[windows.first_scored :]] for row in served]
    assert np.allclose(found.scores.nll, -np.array(logprobs), rtol=1e-6, atol=1e-6)


def test_one_model_alone_has_a_perplexity_and_bits_per_byte(found: Measurement) -> None:
    path = tiny.shared("llama", "gguf", "Q4_0")
    alone = measure_alone(path, tokens=500, window=64, threads=2)
    assert alone.perplexity == found.candidate.perplexity
    assert alone.bits_per_byte == found.candidate.bits_per_byte
    assert alone.answers is None


def test_models_with_different_tokenizers_are_refused(smollm2_path: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"different tokenizers.*compare bits per byte"):
        measure(tiny.shared("llama"), smollm2_path, battery=[])


def test_models_that_begin_texts_differently_are_refused(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "begins"
    shutil.copytree(tiny.shared("llama", "safetensors", "BF16"), folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        settings.read_text().replace('"add_bos_token": false', '"add_bos_token": true')
    )
    with pytest.raises(RequestError, match="different tokenizers"):
        measure(folder, tiny.shared("llama", "safetensors", "BF16"), tokens=1, window=32)


def test_a_text_that_is_too_short_is_refused_before_anything_is_scored() -> None:
    model = tiny.shared("llama")
    with pytest.raises(RequestError, match="a note is too short"):
        measure(model, model, text=Text("a note", "Hello there.", "0" * 64), window=64)


def test_windows_longer_than_the_model_reads_are_refused() -> None:
    model = tiny.shared("llama")
    with pytest.raises(RequestError, match="2000 tokens are longer than the 1024"):
        measure(model, model, window=2000)


def test_two_models_that_do_not_fit_together_are_refused_before_either_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from farthing.backends import native
    from farthing.quality import measure as module

    def packed(*_: object) -> None:
        pytest.fail("a backend was made")

    model = tiny.shared("llama")
    with Subject(model, EXACT, window=64, threads=2) as one:
        enough_for_one = one.plan.needed_bytes
    monkeypatch.setattr(module, "available_memory", lambda: enough_for_one + 1000)
    monkeypatch.setattr(native, "NativeBackend", packed)
    with pytest.raises(DoesNotFitError):
        measure(model, model, window=64, battery=[], threads=2)


def test_a_checkpoint_that_is_open_is_measured_and_left_open() -> None:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        found = measure(checkpoint, checkpoint, tokens=1, window=64, battery=[], settings=EXACT)
        assert found.kl.largest == 0.0
        assert found.perplexity_ratio.value == 1.0
        assert found.agreement.value == 1.0
        assert checkpoint.tensors


def test_progress_is_told_phase_by_phase() -> None:
    told: list[tuple[str, float]] = []
    model = tiny.shared("llama")
    measure(
        model,
        model,
        tokens=300,
        window=64,
        battery=FEW,
        progress=lambda phase, done: told.append((phase, done)),
    )
    assert list(dict(told)) == ["open", "score", "ask the reference", "ask"]
    assert [done for phase, done in told if phase == "score"][-1] == 1.0


def test_the_receipt_holds_what_was_measured(found: Measurement) -> None:
    receipt = receipt_of(
        found,
        scheme="q4_0",
        methods=["gptq"],
        calibration_sha256=calibration_text().sha256,
        bits_per_weight=4.6,
    )
    assert (receipt.scheme, receipt.methods, receipt.bits_per_weight) == ("q4_0", ("gptq",), 4.6)
    assert receipt.farthing == __version__
    assert receipt.tensors == found.candidate.tensors
    assert receipt.reference.name == "llama.F32"
    assert receipt.reference.bits_per_weight == 32.0
    assert receipt.perplexity == found.candidate.perplexity
    assert receipt.reference_perplexity == found.reference.perplexity
    assert receipt.kl == found.kl
    assert receipt.battery == found.battery
    assert from_json(to_json(receipt), "here") == receipt
    assert receipt_of(found, scheme="q4_0").bits_per_weight == 4.5


def test_a_receipt_written_beside_the_model_is_read_again(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny.shared("llama", "safetensors", "BF16"), folder)
    found = measure(folder, tiny.shared("llama"), tokens=1, window=64, battery=[])
    receipt = receipt_of(found, scheme="bf16")
    (folder / RECEIPT_FILE).write_text(to_json(receipt))
    with open_checkpoint(folder) as checkpoint:
        assert read_receipt(checkpoint) == receipt


def test_a_model_calibrated_with_the_test_text_gets_no_receipt(found: Measurement) -> None:
    with pytest.raises(RequestError, match="calibrated with the text it is measured on"):
        receipt_of(found, scheme="q4_0", calibration_sha256=held_out_text().sha256)


def test_a_destroyed_model_has_a_receipt_as_well(found: Measurement) -> None:
    destroyed = figures.perplexity(found.scores.nll + 5000)
    broken = replace(found, candidate=replace(found.candidate, perplexity=destroyed))
    receipt = receipt_of(broken, scheme="int4")
    assert from_json(to_json(receipt), "here").perplexity.value > 1e299


def test_bits_are_those_of_all_matrices_together_with_their_scales() -> None:
    with Subject(tiny.shared("llama", "gguf", "Q5_1"), EXACT, window=32) as subject:
        assert subject.bits_per_weight == 6.0
        assert subject.rounded
        assert subject.digest == tensors_digest(subject.checkpoint)


def test_a_model_is_called_as_its_file_or_its_folder(tmp_path: Path) -> None:
    import shutil

    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        assert name_of(checkpoint) == "llama.F32"
    folder = tmp_path / "my\x1bmodel"
    shutil.copytree(tiny.shared("llama", "safetensors", "BF16"), folder)
    with open_checkpoint(folder) as checkpoint:
        assert name_of(checkpoint) == "my?model"
