"""What is measured when a model is written is what stands in it, and is checked when it is read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

import tiny
from farthing import Engine, SamplingParams
from farthing.core import DoesNotFitError, FarthingError, RequestError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import ReceiptError, read_receipt, tensors_digest
from farthing.forge import receipt as receipt_room
from farthing.forge.patterns import parse_rule
from farthing.forge.quantize import quantize
from farthing.forge.receipt import ReceiptWish
from farthing.forge.wish import Wish
from farthing.quality.battery import questions
from farthing.quality.measure import measure
from farthing.quality.texts import Text, held_out_text
from forge.calibrated import TEXT

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.files.receipt import Receipt
    from farthing.forge.report import QuantizeReport

QUICK = ReceiptWish(tokens=300, battery=questions()[:3])


def made(
    source: Path, out: Path, scheme: str, receipt: ReceiptWish = QUICK, **wishes: object
) -> QuantizeReport:
    with open_checkpoint(source) as checkpoint:
        return quantize(checkpoint, out, replace(Wish(scheme, receipt=receipt), **wishes))


def found(out: Path) -> Receipt:
    with open_checkpoint(out) as checkpoint:
        receipt = read_receipt(checkpoint)
    assert receipt is not None
    return receipt


@pytest.mark.parametrize(
    ("name", "form", "scheme"),
    [
        ("m.gguf", "gguf", "Q4_0"),
        ("m", "gguf", "INT4_G32"),
        ("m", "safetensors", "INT4_G32"),
        ("m.gguf", "safetensors", "Q4_0"),
        ("m", "safetensors", "Q4_0"),
    ],
)
def test_the_model_carries_what_measuring_it_again_finds(
    name: str, form: str, scheme: str, tmp_path: Path
) -> None:
    source, out = tiny.shared("llama3", form), tmp_path / name
    report = made(source, out, scheme)
    receipt = found(out)
    assert receipt == report.receipt
    again = measure(out, source, tokens=300, battery=questions()[:3])
    assert receipt.kl == again.kl
    assert receipt.perplexity == again.candidate.perplexity
    assert receipt.agreement == again.agreement
    assert receipt.battery == again.battery
    assert receipt.kl.mean.value > 0
    assert receipt.bits_per_weight == report.bits_per_weight
    assert receipt.tensors == tensors_digest(open_checkpoint(out))
    assert receipt.reference.tensors == tensors_digest(open_checkpoint(source))
    assert receipt.reference.bits_per_weight == 32
    assert receipt.warnings == ()


def test_it_says_how_the_model_was_made(tmp_path: Path) -> None:
    from farthing.forge.methods import parse_methods

    report = made(
        tiny.shared("llama"),
        tmp_path / "m",
        "INT8_ROW",
        keep=(parse_rule("head=q8_0"), parse_rule("down=keep")),
        methods=parse_methods(["gptq", "static-inputs"]),
        calibration=TEXT,
    )
    receipt = found(tmp_path / "m")
    assert receipt.scheme == "int8-row, head=q8_0, down=keep"
    assert receipt.methods == ("gptq", "static-inputs")
    assert receipt.calibration_sha256 == TEXT.sha256
    # With the scales that stand beside the matrices.
    assert receipt.bits_per_weight == report.bits_per_weight
    assert report.beside_bytes > 0


def test_a_gguf_with_a_receipt_is_a_sound_file(tmp_path: Path) -> None:
    made(tiny.shared("llama"), tmp_path / "m.gguf", "Q8_0")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["farthing.receipt"].contents().startswith('{"scheme":"q8_0"')
    with open_checkpoint(tmp_path / "m.gguf") as checkpoint:
        quantize(checkpoint, tmp_path / "n.gguf", Wish("Q4_0"))
    # A receipt speaks of one model, and does not go on to the next.
    assert "farthing.receipt" not in gguf.GGUFReader(tmp_path / "n.gguf").fields


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_without_the_wish_there_is_none(name: str, tmp_path: Path) -> None:
    scheme = "Q4_0" if name == "m.gguf" else "INT4_G32"
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        report = quantize(checkpoint, tmp_path / name, Wish(scheme))
    assert report.receipt is None
    assert read_receipt(open_checkpoint(tmp_path / name)) is None


def test_a_model_with_a_receipt_runs(tmp_path: Path) -> None:
    for name, scheme in (("m.gguf", "Q8_0"), ("m", "INT8_ROW")):
        made(tiny.shared("qwen3"), tmp_path / name, scheme)
        with Engine.load(tmp_path / name) as engine:
            assert len(engine.generate("a", SamplingParams(max_tokens=4)).token_ids) == 4


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_a_receipt_of_other_weights_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    scheme = "Q4_0" if name == "m.gguf" else "INT4_G32"
    made(tiny.shared("llama"), tmp_path / name, scheme)
    file = tmp_path / name if name == "m.gguf" else tmp_path / name / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-64] ^= 1
    file.write_bytes(data)
    with pytest.raises(ReceiptError, match="speaks of other weights"):
        read_receipt(open_checkpoint(tmp_path / name))


def test_a_receipt_of_the_same_weights_with_other_settings_is_refused(tmp_path: Path) -> None:
    made(tiny.shared("llama", "safetensors"), tmp_path / "m", "INT4_G32")
    settings = tmp_path / "m" / "config.json"
    config = json.loads(settings.read_text())
    settings.write_text(json.dumps({**config, "transformers_version": "0", "torch_dtype": "?"}))
    assert read_receipt(open_checkpoint(tmp_path / "m")) is not None
    settings.write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    with pytest.raises(ReceiptError, match="these weights with other settings"):
        read_receipt(open_checkpoint(tmp_path / "m"))


@pytest.mark.parametrize("scheme", ["Q4_0", "INT4_G32"])
def test_so_it_is_where_the_settings_are_a_ggufs_metadata(scheme: str, tmp_path: Path) -> None:
    out = tmp_path / ("m.gguf" if scheme == "Q4_0" else "m")
    made(tiny.shared("llama"), out, scheme)
    file = out if scheme == "Q4_0" else out / "description.gguf"
    key = b"llama.attention.layer_norm_rms_epsilon"
    data = bytearray(file.read_bytes())
    value = data.index(key) + len(key) + 4
    data[value : value + 4] = np.float32(1e-3).tobytes()
    file.write_bytes(data)
    with pytest.raises(ReceiptError, match="these weights with other settings"):
        read_receipt(open_checkpoint(out))


def test_another_reference_is_measured_against_and_named(tmp_path: Path) -> None:
    source = tiny.shared("llama", "gguf", "Q4_1")
    with open_checkpoint(tiny.shared("llama")) as reference:
        made(source, tmp_path / "m.gguf", "Q4_0", replace(QUICK, reference=reference))
    receipt = found(tmp_path / "m.gguf")
    assert receipt.reference.name == tiny.shared("llama").stem
    assert receipt.reference.bits_per_weight == 32
    made(source, tmp_path / "n.gguf", "Q4_0")
    (warning,) = found(tmp_path / "n.gguf").warnings
    assert "stored in 5 bits a weight" in warning


def test_another_text_is_measured_on_and_named(tmp_path: Path) -> None:
    mine = Text("mine", held_out_text().content[50_000:90_000], "ab" * 32)
    made(tiny.shared("llama"), tmp_path / "m.gguf", "Q4_0", replace(QUICK, text=mine))
    assert (found(tmp_path / "m.gguf").text.name, found(tmp_path / "m.gguf").text.sha256) == (
        "mine",
        "ab" * 32,
    )


def test_a_text_that_is_too_short_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_room, "measured_receipt", None)
    short = Text("short", "too short", "ab" * 32)
    with pytest.raises(RequestError, match="short"):
        made(tiny.shared("llama"), tmp_path / "m.gguf", "Q4_0", replace(QUICK, text=short))
    assert not list(tmp_path.iterdir())


def test_a_reference_that_has_no_room_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_room, "available_memory", lambda: 1_000_000)
    with pytest.raises(DoesNotFitError, match="reference in float32.*--no-receipt"):
        made(tiny.shared("llama"), tmp_path / "m.gguf", "Q4_0")
    assert not list(tmp_path.iterdir())


def test_a_reference_with_another_tokenizer_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_room, "measured_receipt", None)
    # Another tokenizer: the same tokens under other ids.
    other = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"a":', '"b2":'))
    with open_checkpoint(other) as reference, pytest.raises(FarthingError, match="tokenizers"):
        made(tiny.shared("llama"), tmp_path / "m.gguf", "Q4_0", replace(QUICK, reference=reference))
    assert [file.name for file in tmp_path.iterdir()] == ["other"]


def test_a_measurement_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise FarthingError("logits are not finite")

    monkeypatch.setattr(receipt_room, "measure", fail)
    with pytest.raises(FarthingError, match="logits are not finite"):
        made(tiny.shared("llama"), tmp_path / "m.gguf", "Q4_0")
    assert not list(tmp_path.iterdir())
