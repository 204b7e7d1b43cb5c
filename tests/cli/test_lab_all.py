"""farthing lab all and compare: one report, resumed after a kill, and two of them side by side."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import main
from farthing.core import FarthingError
from farthing.lab import batching, kv
from farthing.lab import bench as lab_bench
from farthing.lab import sections as lab_sections
from farthing.lab.facts import model_hash
from farthing.lab.table import Column, Table
from lab.report.made_report import report, section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.lab.subject import Subject

QUICK = ["--rounds", "2", "--threads", "1"]
ALL_SECTIONS = set(lab_sections.SECTIONS)
NAMES = ("phases", "kv", "matrix", "error")


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_1")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(batching, "DRAWS", 1)
    few = {name: lab_sections.SECTIONS[name] for name in NAMES}
    monkeypatch.setattr(lab_sections, "SECTIONS", few)


def found_in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["lab", "all", *arguments, *QUICK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_section_is_in_the_report_with_where_it_comes_from(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    found = found_in_json(capsys, str(path), "--html", str(page))
    assert found["report"] == 3
    assert tuple(each["section"] for each in found["sections"]) == NAMES
    assert found["failures"] == []
    assert found["model"]["sha256"] == model_hash(path)
    assert found["isa"] not in ("", "not used")
    assert {"version", "machine", "threads", "kernels", "seed", "command"} <= set(found)
    assert found["command"].startswith(f"farthing lab all {path} --rounds 2")
    text = page.read_text(encoding="utf-8")
    assert all(f'<section class="section" id="{name}"' in text for name in NAMES)
    assert stat.S_IMODE(page.stat().st_mode) & 0o600 == 0o600
    assert not list((tmp_path / "cache" / "lab").glob("*.json"))


def test_measured_twice_the_intervals_overlap_and_what_is_counted_is_the_same(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_text(json.dumps(found_in_json(capsys, str(path))))
    assert main(["lab", "compare", *map(str, files), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    counted = [each for each in found["figures"] if each["section"] != "phases"]
    assert counted
    assert {each["verdict"] for each in counted} == {"same"}
    assert set(found["settings"]) <= {"measured"}
    assert main(["lab", "compare", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert "figures that are in both" in out
    assert "error formats" in out


def test_at_80_columns_every_figure_that_differs_is_one_line_with_its_row_and_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    columns = (Column("matrix"), Column("shape"), Column("mean magnitude", spec=".5f"))
    for file, shape, mean in zip(files, ("256 x 512", "576 x 1536"), (0.03, 0.14), strict=True):
        rows = (("layers.1.down", shape, mean), ("layers.2.down", shape, 2 * mean))
        rows = (*rows, (f"only.{file.stem}", shape, mean))
        made = report(section("s", Table("t", "T", columns, rows, "Found.")))
        file.write_text(json.dumps(made.as_json()))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["lab", "compare", *map(str, files)]) == 0
    shown = terminal.getvalue()
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "s t" in lines
    assert "layers.1.down mean magnitude 0.03000 0.14000 +366.7% differs" in lines
    assert "layers.2.down mean magnitude 0.06000 0.28000 +366.7% differs" in lines
    assert "only in the first: only.a" in lines
    assert "only in the second: only.b" in lines
    assert "both intervals" not in shown


def test_a_failing_section_is_told_the_rest_goes_on_and_it_is_tried_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = kv.measure

    def broken(subject: Subject) -> Iterator[Table]:
        raise FarthingError("no room for a cache: free some memory")
        yield  # pragma: no cover

    monkeypatch.setattr(kv, "measure", broken)
    page = tmp_path / "report.html"
    assert main(["lab", "all", str(path), *QUICK, "--html", str(page)]) == 1
    captured = capsys.readouterr()
    assert "kv: FAILED: no room for a cache" in captured.err
    assert "failed: kv: no room for a cache" in captured.out
    assert "no room for a cache: free some memory" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(kv, "measure", sound)
    assert main(["lab", "all", str(path), *QUICK, "--html", str(page)]) == 0
    said = capsys.readouterr().err
    assert "phases, matrix, error: finished by a run begun" in said
    assert "\nkv: " in said
    assert "matrix: " not in said.replace("matrix, error: ", "")


def test_fresh_measures_everything_once_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(subject: Subject) -> Iterator[Table]:
        raise FarthingError("not now")
        yield  # pragma: no cover

    monkeypatch.setattr(kv, "measure", broken)
    assert main(["lab", "all", str(path), *QUICK]) == 1
    capsys.readouterr()
    assert main(["lab", "all", str(path), *QUICK, "--fresh"]) == 1
    captured = capsys.readouterr()
    assert "finished by a run" not in captured.err
    assert "matrix: " in captured.err
    assert "expectations" in captured.out


def test_what_is_finished_before_a_kill_is_taken_from_there(path: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "FARTHING_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    command = [sys.executable, "-m", "farthing", "lab", "all", str(path), *QUICK]
    first = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert first.stderr is not None
    assert first.stderr.readline().startswith("cache: ")
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stderr.close()
    second = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert second.stderr is not None
    assert second.stderr.readline().startswith("cache: finished by a run begun 20")
    assert second.stderr.readline().startswith("phases: ")
    second.send_signal(signal.SIGTERM)
    rest = second.stderr.read()
    second.stderr.close()
    assert second.wait() == 143
    assert "sections are finished and kept: the same command goes on from there" in rest


def test_one_table_makes_a_page_too(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "error.html"
    assert main(["lab", "error", str(path), *QUICK, "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert 'id="error-formats"' in text
    assert 'id="kv"' not in text
    assert "found: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("", "is no file"),
        ("none/report.html", "there is no folder"),
        ("locked/report.html", "cannot be written to"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
    place: str,
    told: str,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "locked").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: "locked" not in str(p) and allowed(p, mode))
    assert main(["lab", "all", str(path), *QUICK, "--html", str(tmp_path / place)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "left" not in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare"], "say which two reports"),
        (["compare", "a.json"], "say which two reports"),
        (["compare", "none.json", "b.json"], "none.json cannot be read"),
        (["all"], "say of which model"),
        (["kv", "a", "b"], "'b' is too much"),
        (["kv", "a", "--fresh"], "--fresh goes with `all` alone"),
        (["compare", "a", "b", "--fresh"], "--fresh goes with `all` alone"),
        (["compare", "a", "b", "--html", "c"], "`compare` measures nothing"),
    ],
)
def test_what_is_asked_wrongly_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err


def test_how_long_is_known_only_of_sections_that_there_are() -> None:
    assert set(lab_sections.USUAL_SECONDS) <= ALL_SECTIONS


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text('{"machine": {}}')
    assert main(["lab", "compare", str(odd), str(odd)]) == 2
    assert "is no report of the laboratory" in capsys.readouterr().err
