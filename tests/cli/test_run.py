from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import main
from farthing.core import SamplingParams
from farthing.engine.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny.shared("llama")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The prompts that reach the engine."""
    seen: list[Any] = []
    stream = Engine.stream

    def watching(self: Engine, prompt: Any, *arguments: Any) -> Any:
        seen.append(prompt)
        return stream(self, prompt, *arguments)

    monkeypatch.setattr(Engine, "stream", watching)
    return seen


def test_the_text_goes_to_stdout_and_the_report_to_stderr(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model), "hello", "--max-tokens", "8", "--seed", "7"]) == 0
    captured = capsys.readouterr()
    with Engine.load(model) as engine:
        chat = [{"role": "user", "content": "hello"}]
        expected = engine.generate(chat, SamplingParams(max_tokens=8))
    assert captured.out == expected.text + "\n"
    for part in ("tiny llama", "loaded in", "memory", "weights", "cache", "F32", "threads"):
        assert part in captured.err
    assert "8 tokens in" in captured.err
    assert "seed 7" in captured.err


def test_quiet_leaves_the_text_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model), "hello", "--max-tokens", "3", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_json_is_one_object_with_every_figure(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--json", "--max-tokens", "5", "--temperature", "1", "--seed", "11", "--threads", "1"]
    assert main(["run", str(model), "hello", *flags]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert found.keys() >= {"version", "model", "machine", "threads", "isa", "seed", "load"}
    assert len(found["model"]["sha256"]) == 64
    assert found["threads"] == 1
    assert found["seed"] == 11
    assert len(found["token_ids"]) == 5
    assert found["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 5
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + 5
    assert 0 <= found["timing"]["python_share"] <= 1
    assert sum(found["load"]["memory"].values()) > 0
    assert found["load"]["formats"] == {"F32": 21}


def test_a_drawn_seed_in_the_json_repeats_the_text(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(model), "hello", "--json", "--max-tokens", "12", "--temperature", "1"]
    main(command)
    first = json.loads(capsys.readouterr().out)
    main([*command, "--seed", str(first["seed"])])
    assert json.loads(capsys.readouterr().out)["token_ids"] == first["token_ids"]


def test_the_prompt_is_one_message_of_a_user(model: Path, prompts: list[Any]) -> None:
    main(["run", str(model), "hello", "--max-tokens", "1", "--quiet"])
    main(["run", str(model), "hello", "--max-tokens", "1", "--quiet", "--system", "be brief"])
    user = {"role": "user", "content": "hello"}
    assert prompts == [[user], [{"role": "system", "content": "be brief"}, user]]


def test_raw_leaves_the_template_out(model: Path, prompts: list[Any]) -> None:
    main(["run", str(model), "hello", "--max-tokens", "1", "--quiet", "--raw"])
    assert prompts == ["hello"]


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_prompt_can_come_from_stdin(
    arguments: list[str], model: Path, prompts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    main(["run", str(model), *arguments, "--max-tokens", "1", "--quiet", "--raw"])
    assert prompts == ["two\nlines"]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_flags_may_stand_anywhere(order: int, model: Path, prompts: list[Any]) -> None:
    arguments = [str(model), "hello"]
    arguments[order:order] = ["--raw", "--max-tokens", "1", "--quiet"]
    assert main(["run", *arguments]) == 0
    assert prompts == ["hello"]


def test_stdin_that_is_no_text_is_one_clear_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00"), "utf-8"))
    assert main(["run", str(model), "--raw", "--quiet"]) == 2
    assert "the prompt on stdin is not utf-8 text" in capsys.readouterr().err


def test_stop_strings_end_the_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(model), "hello", "--max-tokens", "20", "--json"]
    main(command)
    whole = json.loads(capsys.readouterr().out)["text"]
    stop = whole[4:6]
    main([*command, "--stop", "never there", "--stop", stop])
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("activations", ["int8", "bf16", "fp32"])
def test_every_cache_and_activation_type_runs(
    kv_dtype: str, activations: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--kv-dtype", kv_dtype, "--activations", activations, "--max-tokens", "2", "--json"]
    assert main(["run", str(model), "hello", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["load"]["kv_dtype"] == kv_dtype


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_reach_a_pipe_but_not_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farthing.cli.terminal import write

    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    write("a\x1b[2J\x07\n\tä\x9b")
    assert out.getvalue() == ("a^[[2J^G\n\tä\\x9b" if terminal else "a\x1b[2J\x07\n\tä\x9b")


def test_json_is_json_whatever_the_terminal_can_show(model: Path) -> None:
    command = [sys.executable, "-m", "farthing", "run", str(model), "--raw", "h\u00e9", "--json"]
    done = subprocess.run(
        [*command, "--max-tokens", "40"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert not json.loads(done.stdout)["text"].isascii()


NOT_TEXT = "caf\udce9"
"""What Python makes of a byte that UTF-8 does not have."""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([NOT_TEXT], "the prompt"),
        (["--system", NOT_TEXT, "hi"], "--system"),
        (["--stop", NOT_TEXT, "hi"], "--stop"),
        ([], "the prompt on stdin"),
    ],
)
def test_bytes_that_are_no_text_are_named_by_place(
    arguments: list[str],
    what: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(NOT_TEXT))
    assert main(["run", str(model), "--quiet", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"farthing: {what} is not UTF-8 text: character 4 is the byte 0xE9")


def test_an_empty_prompt_is_refused_where_it_would_be_an_empty_message(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model), "", "--quiet"]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_a_file_cannot_talk_to_the_terminal(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "model.gguf"
    named.write_bytes(model.read_bytes().replace(b"tiny llama", b"tin\x1b[2Jama"))
    assert main(["run", str(named), "hi", "--max-tokens", "1"]) == 0
    error = capsys.readouterr().err
    assert "tin^[[2Jama: llama" in error
    assert main(["run", str(tmp_path / "\x1b[2J.gguf"), "hi"]) == 2
    assert "\x1b" not in error + capsys.readouterr().err


class TestForms:
    @pytest.mark.parametrize(
        ("flags", "expected"),
        [(["--regex", "ab{3}c"], "abbbc"), (["--choice", 'quoted "text"'], 'quoted "text"')],
    )
    def test_an_answer_has_the_form_that_is_asked_for(
        self, model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
    ) -> None:
        assert main(["run", str(model), "hello", "--quiet", *flags]) == 0
        assert capsys.readouterr().out == expected + "\n"

    def test_an_answer_follows_the_schema_in_a_file(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "schema.json"
        file.write_text('{"const": {"a": [null]}}', encoding="utf-8")
        assert main(["run", str(model), "hello", "--quiet", "--json-schema", str(file)]) == 0
        assert json.loads(capsys.readouterr().out) == {"a": [None]}

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--regex", "(a"], "unclosed group"),
            (["--regex", "a", "--choice", "b"], "keep one"),
            (["--choice", ""], "not empty"),
            (["--json-schema", "nowhere.json"], "nowhere.json cannot be read"),
            (["--json-schema", "."], "cannot be read"),
        ],
    )
    def test_a_form_that_cannot_be_followed_is_one_clear_error(
        self, model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
    ) -> None:
        assert main(["run", str(model), "hello", "--quiet", *flags]) == 2
        captured = capsys.readouterr()
        assert said in captured.err
        assert captured.out == ""
