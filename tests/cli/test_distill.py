"""farthing distill: what a person types, reads and gets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.cli import distill as command
from farthing.cli import main, stages
from farthing.forge import distill as distilling
from farthing.forge.gain import measure_gain

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--tokens", "1500", "--passes", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def _short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distilling, "measure_gain", partial(measure_gain, tokens=8, rounds=1))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("one two\nthe third\nfour of them\n")
    return str(path)


def run(*arguments: object) -> int:
    return main(["distill", str(tiny.shared("llama")), *map(str, arguments)])


def test_it_tells_how_it_went_and_what_the_draft_is_worth(
    tmp_path: Path,
    prompts: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "LINE_SECONDS", 0.0)
    out = tmp_path / "draft"
    arguments = ("--draft", "--layers", "1", "--head-tokens", "100", "--prompts", prompts, *QUICK)
    assert run(out, *arguments) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].startswith(f"{out}: a draft of tiny llama, layers 0, a head of 100 tokens, ")
    assert re.fullmatch(
        r"learnt   from [\d,]+ tokens, [\d,]+ with repeats, in \d+ steps; .*", lines[1]
    )
    assert re.search(r"divergence \d\.\d+ -> \d\.\d+ nats, acceptance \d+\.\d% -> \d+", lines[2])
    assert re.match(r"right    greedy \d+%.*; sampled \d+%.*, by place", lines[3])
    assert re.match(r"gain     x\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\) with auto", lines[4])
    assert lines[5].startswith(("use it ", "no gain ", "declined auto would not use it"))
    assert lines[6] == "inside   farthing_distillation.json, curve.svg"
    assert {line.split()[0] for line in told.err.splitlines()} == {"write", "train", "measure"}
    assert main(["run", str(out), "x", "--max-tokens", "3"]) == 0


def test_its_json_is_the_receipt(
    tmp_path: Path, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "student"
    arguments = ("--student", "--temperature", "2", "--hard-share", "0.1", "--prompts", prompts)
    assert run(out, *arguments, *QUICK, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((out / "farthing_distillation.json").read_text())
    assert told["settings"]["temperature"] == 2.0
    assert told["settings"]["layers"] == [0]
    assert told["gain"] is None
    assert told["quality"]["scheme"] == "int8-row, distilled"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--draft", "--temperature", "2"), "--temperature is for students"),
        (("--draft", "--reverse-kl"), "--reverse-kl is for students"),
        (("--student", "--head-tokens", "9"), "--head-tokens is for drafts"),
        (("--draft", "--layers", "some"), "a number of layers, or their numbers with commas"),
        (("--draft", "--layers", "9"), "the teacher has 2 layers: --layers is from 1 to 2 of them"),
        (("--draft", "--layers", "0"), "the teacher has 2 layers: --layers is from 1 to 2 of them"),
        (("--draft", "--layers", "2,"), "layers 0 to 1"),
        (("--draft", "--layers", ","), "a number of layers, or their numbers with commas"),
        (("--draft", "--layers", "0,7"), "layers 0 to 1"),
        (("--draft", "--layers", "2"), "a draft must have fewer"),
        (("--draft", "--layers", "1", "--scheme", "int3"), "no scheme that can be written"),
        (("--draft", "--layers", "1", "--prompts", "/no/such"), "there is no text file"),
        (("--draft", "--layers", "1", "--hours", "-1"), "hours are a number above 0"),
        (("--student", "--hard-share", "2"), "a share is from 0 to 1"),
    ],
)
def test_what_cannot_be_is_explained(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    assert run(tmp_path / "out", *arguments) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_one_layer_can_be_named(
    tmp_path: Path, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--draft", "--layers", "1,", "--head-tokens", "100", "--prompts", prompts, *QUICK)
    assert run(tmp_path / "draft", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["layers"] == [1]


@pytest.mark.parametrize("arguments", [(), ("--draft", "--student")])
def test_it_is_a_draft_or_a_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(tmp_path / "out", *arguments) == 2
    assert "--draft" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert run(tmp_path / "out", "--draft") == 2
    assert "pip install 'farthing[distill]'" in capsys.readouterr().err


def test_its_help_needs_no_torch_and_fits_a_terminal() -> None:
    code = (
        "import sys; from farthing.cli import main; code = main(['distill', '--help']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "smollm2-135m draft --draft" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path, prompts: str) -> None:
    out = tmp_path / "draft"
    arguments = ["distill", tiny.shared("llama"), out, "--draft", "--layers", "1", "--prompts"]
    arguments += [prompts, "--tokens", "1500", "--passes", "2000", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "farthing", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    schedule = tmp_path / ".draft.distilling" / "schedule.json"
    deadline = time.monotonic() + 120
    while not schedule.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    told = process.stderr.read()
    assert process.wait(120) == 130
    assert "stopping at the next step" in told
    assert re.search(
        r"stopped; what is done lies in \S+/\.draft\.distilling; to go on: "
        r"farthing distill \S+ \S+ --draft --layers 1",
        told,
    )
    assert (tmp_path / ".draft.distilling" / "checkpoint.safetensors").is_file()
    assert not out.exists()
