"""farthing run --file goes on where it was cut off, and mixes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from cli.batch_files import MIXED, Files, says
from farthing.cli import main

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "import sys, farthing.cli; sys.exit(farthing.cli.main())"]


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama", "gguf", "Q4_1"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_lines_that_were_added_are_answered_and_the_others_kept(model: str, files: Files) -> None:
    files.write(MIXED[:3])
    command = files.command(model, "--quiet", "--max-tokens", "6")
    assert main(command) == 0
    before = files.out.read_bytes()
    files.write(MIXED)
    assert main(command) == 0
    assert files.out.read_bytes().startswith(before)
    assert sorted(files.by_index()) == list(range(len(MIXED)))


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        ([{"prompt": "goodbye"}], []),
        ([{"prompt": "hello", "id": "new"}], []),
        ([{"prompt": "hello", "temperature": 1}], []),
        ([{"prompt": "hello"}], ["--temperature", "1"]),
        ([{"prompt": "hello"}], ["--raw"]),
        ([{"prompt": "before it"}, {"prompt": "hello"}], []),
    ],
)
def test_an_answer_to_another_request_is_never_mixed_in(
    changed: list[dict[str, Any]],
    flags: list[str],
    model: str,
    files: Files,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files.write([{"prompt": "hello"}])
    command = files.command(model, "--quiet", "--max-tokens", "3")
    assert main(command) == 0
    before = files.out.read_bytes()
    files.write(changed)
    assert main([*command, *flags]) == 2
    assert f"{files.out}, line 1, answers request 0 as it was before its id" in says(capsys)
    assert files.out.read_bytes() == before


@pytest.mark.parametrize(
    "flags",
    [
        ["--context", "100"],
        ["--kv-dtype", "int8"],
        ["--activations", "fp32"],
        ["--speculate-rule", "leviathan"],
    ],
)
def test_an_answer_made_under_other_settings_is_never_mixed_in(
    flags: list[str], model: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([{"prompt": "hello"}])
    command = files.command(model, "--quiet", "--max-tokens", "3")
    assert main(command) == 0
    files.write([{"prompt": "hello"}, {"prompt": "more"}])
    assert main([*command, *flags]) == 2
    assert f"the answers in {files.out} were made with another model" in says(capsys)
    command[1] = str(tiny.shared("llama", "gguf", "Q4_0"))
    assert main(command) == 2
    assert f"the answers in {files.out} were made with another model" in says(capsys)
    command[1] = model
    assert main([*command, "--slots", "2", "--threads", "1"]) == 0


LONG = [{"prompt": f"request number {n}", "seed": n, "temperature": 1} for n in range(60)]


def start(files: Files, model: str, *flags: str) -> subprocess.Popen[str]:
    command = [*PROGRAM, *files.command(model, "--max-tokens", "100", "--slots", "4", *flags)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_answers(files: Files, process: subprocess.Popen[str], count: int) -> None:
    end = time.monotonic() + 120
    while not files.out.exists() or files.out.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.002)


def compared(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on how a run was cut: all but what came from the cache."""
    usage = {name: n for name, n in answer["usage"].items() if name != "cached_tokens"}
    return {**answer, "usage": usage}


def test_runs_that_are_killed_lose_and_repeat_nothing(
    model: str, files: Files, tmp_path: Path
) -> None:
    files.write(LONG)
    for count in (1, 15, 30):  # what is left takes far longer than to notice and to kill
        process = start(files, model, "--quiet")
        wait_for_answers(files, process, count)
        process.kill()
        process.communicate()
        kept = files.out.read_bytes()
        assert count <= kept.count(b"\n") < len(LONG)
        kept = kept[: kept.rindex(b"\n") + 1]
        # As if the kill had come in the middle of a write.
        files.out.write_bytes(kept + b'{"index": 59, "text": "half an ans')
    assert start(files, model, "--quiet").wait(300) == 0
    assert files.out.read_bytes().startswith(kept)
    found = files.by_index()
    assert sorted(found) == list(range(len(LONG)))
    at_once = Files(tmp_path / "at_once")
    at_once.out.parent.mkdir()
    at_once.write(LONG)
    assert start(at_once, model, "--quiet").wait(300) == 0
    assert {index: compared(each) for index, each in at_once.by_index().items()} == {
        index: compared(each) for index, each in found.items()
    }


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_run_that_is_interrupted_says_how_to_go_on(
    number: signal.Signals, code: int, model: str, files: Files
) -> None:
    files.write(LONG)
    process = start(files, model)
    wait_for_answers(files, process, 5)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "Traceback" not in error
    count = len(files.answers())
    assert (
        f"{count} of 60 are answered in {files.out}; the same command goes on from there\n" in error
    )
    assert start(files, model, "--quiet").wait(300) == 0
    assert sorted(files.by_index()) == list(range(len(LONG)))


def test_a_full_disk_keeps_what_is_written_and_says_how_to_go_on(model: str, files: Files) -> None:
    files.write(LONG)
    limited = (
        "import resource, sys, farthing.cli\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "sys.exit(farthing.cli.main())"
    )
    command = [sys.executable, "-c", limited, *files.command(model, "--max-tokens", "9")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"farthing: the disk of {files.out} is full: make room, or write to another disk\n"
    )
    count = len(files.answers())
    assert 2 < count < 60
    assert f"{count} of 60 are answered in {files.out}; the same command" in done.stderr
    assert main(files.command(model, "--max-tokens", "9", "--quiet")) == 0
    assert sorted(files.by_index()) == list(range(len(LONG)))
