from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import main
from farthing.engine.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "import sys, farthing.cli; sys.exit(farthing.cli.main())"]


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The chats that reach the engine."""
    seen: list[list[dict[str, str]]] = []
    stream = Engine.stream

    def watching(self: Engine, prompt: Any, *arguments: Any) -> Any:
        seen.append(prompt)
        return stream(self, prompt, *arguments)

    monkeypatch.setattr(Engine, "stream", watching)
    return seen


def talk(monkeypatch: pytest.MonkeyPatch, model: str, *lines: str, flags: tuple[str, ...]) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["chat", model, "--quiet", *flags])


def test_a_conversation_remembers_both_sides(
    model: str,
    chats: list[list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert talk(monkeypatch, model, "one", "", "two", flags=("--max-tokens", "4")) == 0
    answers = [message["content"] for message in chats[1] if message["role"] == "assistant"]
    assert [[message["role"] for message in chat] for chat in chats] == [
        ["user"],
        ["user", "assistant", "user"],
    ]
    assert chats[1][2]["content"] == "two"
    captured = capsys.readouterr()
    assert captured.out.startswith(answers[0] + "\n")
    assert captured.err.count("(cut off: by --max-tokens)\n") == 2


def test_reset_forgets_all_but_the_system_message(
    model: str, chats: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--max-tokens", "2", "--system", "be brief")
    assert talk(monkeypatch, model, "one", "/reset", "two", flags=flags) == 0
    assert chats[1] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two"},
    ]


def test_exit_leaves_and_help_and_unknown_commands_are_answered(
    model: str,
    chats: list[list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ("/help", "/fly away", "/exit", "never said")
    assert talk(monkeypatch, model, *lines, flags=()) == 0
    error = capsys.readouterr().err
    assert "/reset   forget the conversation" in error
    assert "there is no command /fly" in error
    assert chats == []


def test_a_full_context_is_told_and_the_conversation_goes_on(
    model: str,
    chats: list[list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ("one", "x" * 2000, "two")
    assert talk(monkeypatch, model, *lines, flags=("--max-tokens", "2")) == 0
    error = capsys.readouterr().err
    assert "and the context holds 1024" in error
    assert "/reset starts afresh" in error
    assert [message["content"] for message in chats[2] if message["role"] == "user"] == [
        "one",
        "two",
    ]


def test_a_model_without_a_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny.shared("llama", "safetensors"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert talk(monkeypatch, str(folder), "hi", flags=()) == 2
    assert "has no chat template" in capsys.readouterr().err
    assert main(["run", str(folder), "hi", "--max-tokens", "1", "--system", "x"]) == 2
    assert "--system needs a chat template" in capsys.readouterr().err


def test_an_interrupt_ends_the_answer_and_not_the_program(smollm2_path: Path) -> None:
    # A tiny model would be done before the signal comes.
    process = subprocess.Popen(
        [*PROGRAM, "chat", smollm2_path, "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Tell a long story.\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(b"/help\n/exit\n", timeout=60)
    assert process.returncode == 0
    assert err.startswith(b"(stopped)\n")
    assert b"/reset" in err
    assert out.endswith(b"\n")


def test_an_interrupt_of_run_ends_with_130_and_no_traceback(smollm2_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", smollm2_path, "Tell a long story.", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"\n"


def test_an_answer_that_fills_the_context_says_so(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(monkeypatch, model, "hello", flags=("--context", "100")) == 0
    assert "(cut off: the context is full, /reset starts afresh)" in capsys.readouterr().err


def test_an_interrupt_before_an_answer_has_begun_ends_that_answer(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Engine.stream

    def interrupted(self: Engine, *arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return stream(self, *arguments)

    monkeypatch.setattr(Engine, "stream", interrupted)
    assert talk(monkeypatch, model, "one", "two", flags=()) == 0
    captured = capsys.readouterr()
    assert captured.out == "\n\n"
    assert captured.err == "(stopped)\n(stopped)\n"


def test_an_interrupt_while_nothing_is_said_ends_nothing(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(completion: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return f"{completion.usage.completion_tokens} tokens"

    monkeypatch.setattr("farthing.cli.report.figures", interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert main(["chat", model, "--max-tokens", "2"]) == 0
    assert capsys.readouterr().err.count("2 tokens\n") == 2


def test_a_message_that_is_no_text_is_dropped_and_the_conversation_goes_on(
    model: str,
    chats: list[list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert talk(monkeypatch, model, "caf\udce9", "two", flags=("--max-tokens", "2")) == 0
    assert "the message is not UTF-8 text: character 4 is the byte 0xE9" in capsys.readouterr().err
    assert chats == [[{"role": "user", "content": "two"}]]
