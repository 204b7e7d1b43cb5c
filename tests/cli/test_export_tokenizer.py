"""farthing models export-tokenizer: a folder, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from transformers import AutoTokenizer

import tiny
from farthing.cli import main

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def export(*arguments: object) -> int:
    return main(["models", "export-tokenizer", *map(str, arguments)])


def test_the_folder_is_told_and_transformers_loads_it(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokenizer"
    assert export(model, out) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert names(out) == FILES
    loaded = AutoTokenizer.from_pretrained(out)
    assert loaded.decode(loaded.encode("the cat")) == "the cat"
    assert loaded.chat_template


def test_an_export_can_be_made_again(model: str, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer"
    assert export(model, out) == 0
    (out / "tokenizer.json").write_text("damaged")
    assert export(model, out) == 0
    AutoTokenizer.from_pretrained(out)
    assert names(tmp_path) == {"tokenizer"}


def test_a_folder_with_anything_else_is_left_as_it_is(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    assert export(model, tmp_path) == 2
    assert "holds more than an exported tokenizer" in capsys.readouterr().err
    assert names(tmp_path) == {"mine"}
    assert export(model, tmp_path / "mine") == 2
    assert (tmp_path / "mine").read_text() == "precious"


def test_an_export_that_fails_leaves_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("farthing.text.export._templates", fail)
    out = tmp_path / "tokenizer"
    assert export(model, out) == 2
    assert names(tmp_path) == set()


def test_a_folder_of_a_model_gives_its_own_tokenizer(tmp_path: Path) -> None:
    source = tiny.shared("llama", "safetensors")
    out = tmp_path / "tokenizer"
    assert export(source, out) == 0
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert AutoTokenizer.from_pretrained(out).chat_template


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "models export-tokenizer needs a NAME"),
        (["smollm2-135m"], "models export-tokenizer needs a DIR"),
        (["missing.gguf", "out"], "there is no file missing.gguf"),
        (["smollm2-135m", "no/folder/out"], "there is no folder no/folder: make it first"),
    ],
)
def test_what_is_missing_is_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(*arguments) == 2
    assert message in capsys.readouterr().err
