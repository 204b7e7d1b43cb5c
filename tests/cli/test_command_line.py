"""What every command does alike: help, versions, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import farthing
import tiny
from farthing.cli import COMMANDS, main
from farthing.core import DoesNotFitError

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "import sys, farthing.cli; sys.exit(farthing.cli.main())"]


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


@pytest.fixture(scope="module")
def truncated(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("truncated") / "model.gguf"
    with open(model, "rb") as whole:  # noqa: PTH123
        content = whole.read()
    path.write_bytes(content[: len(content) // 2])
    return str(path)


def says(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on stderr, which must be a message and no traceback."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"farthing {farthing.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and what in text for name, what in COMMANDS.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: farthing {command}" in text
    assert f"  farthing {command}" in text.partition("examples:")[2]


@pytest.mark.parametrize("arguments", [[], ["fly"], ["--wrong"], ["run"], ["run", "a", "b", "c"]])
def test_wrong_usage_is_explained_and_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says(capsys).startswith("usage: farthing")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "-1"], "temperature must be from 0 to 100, not -1.0"),
        (["--temperature", "nan"], "temperature must be from 0 to 100, not nan"),
        (["--temperature", "hot"], "argument --temperature: invalid float value: 'hot'"),
        (["--top-p", "0"], "top_p must be above 0 and at most 1"),
        (["--top-k", "-3"], "top_k must be a whole number from 0 (off)"),
        (["--min-p", "2"], "min_p must be from 0 to 1"),
        (["--seed", "-1"], "seed must be from 0"),
        (["--stop", ""], "stop must be made of non-empty strings"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0"),
        (["--top-k", "2.5"], "argument --top-k: must be a whole number, not '2.5'"),
        (["--seed", "x"], "argument --seed: must be a whole number, not 'x'"),
        (["--max-tokens", "1e3"], "argument --max-tokens: must be a whole number, not '1e3'"),
        (["--temp", "1"], "unrecognized arguments: --temp 1"),
        (["--max-tokens", "0"], "argument --max-tokens: must be at least 1, not 0"),
        (["--max-tokens", "2000"], "max_tokens is 2000, together more than the context of 1024"),
        (["--context", "0"], "argument --context: must be at least 1"),
        (["--context", "5000"], "context must be from 1 to the 1024 positions"),
        (["--threads", "0"], "argument --threads: must be at least 1"),
        (["--kv-dtype", "int3"], "argument --kv-dtype: invalid choice: 'int3'"),
        (["--activations", "fp8"], "argument --activations: invalid choice: 'fp8'"),
        (["--raw", "--system", "be brief"], "--system needs the chat template that --raw leaves"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_flag_is_one_clear_error(
    flags: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "hello", "--quiet", *flags]) == 2
    assert message in says(capsys)


@pytest.mark.parametrize("command", ["run", "chat", "verify"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-model", "no model of the catalog"),
        ("smollm2-135n", "did you mean smollm2-135m?"),
        ("missing.gguf", "there is no file missing.gguf"),
    ],
)
def test_a_model_that_is_not_there_is_one_clear_error(
    command: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, name]) == 2
    error = says(capsys)
    assert error.startswith("farthing: ")
    assert message in error


@pytest.mark.parametrize("command", ["run", "chat", "verify"])
def test_a_truncated_file_is_one_clear_error(
    command: str, truncated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, truncated]) == 2
    assert truncated in says(capsys)


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(200)])
def test_a_file_that_is_no_model_is_one_clear_error(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert main(["run", str(path), "hello"]) == 2
    assert says(capsys).startswith(f"farthing: {path}")


def test_a_folder_without_a_model_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path), "hello"]) == 2
    assert "has no config.json" in says(capsys)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "--raw", "x" * 3000, "--quiet"]) == 2
    assert "the prompt has 3000 tokens, and the context holds 1024" in says(capsys)


def test_a_model_that_does_not_fit_ends_with_1_before_it_is_loaded(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("farthing.plan.memory.available_memory", lambda: 40 << 20)
    assert main(["run", model, "hello"]) == DoesNotFitError.exit_code == 1
    error = says(capsys)
    assert error.startswith("farthing: the model needs")
    assert "40 MiB are available" in error


def test_a_fault_of_farthing_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_arguments: object) -> Any:
        raise LookupError("the wires crossed")

    monkeypatch.delenv("FARTHING_DEBUG", raising=False)
    monkeypatch.setattr("farthing.cli.models.run", fail)
    assert main(["models"]) == 1
    error = says(capsys)
    assert "internal error: LookupError: the wires crossed" in error
    assert "FARTHING_DEBUG=1" in error


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_arguments: object) -> Any:
        raise LookupError("the wires crossed")

    monkeypatch.setenv("FARTHING_DEBUG", "1")
    monkeypatch.setattr("farthing.cli.models.run", fail)
    with pytest.raises(LookupError):
        main(["models"])


def test_an_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_arguments: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("farthing.cli.models.run", interrupted)
    assert main(["models"]) == 130
    assert says(capsys) == "\n"


def test_a_reader_that_leaves_early_ends_the_program_quietly(model: str) -> None:
    command = [*PROGRAM, "run", model, "hello", "--max-tokens", "900", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 0


def test_the_whole_program_ends_with_the_exit_code() -> None:
    done = subprocess.run(
        [*PROGRAM, "run", "missing.gguf", "hi"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "farthing: there is no file missing.gguf\n"
