"""farthing lab on the command line: listing, every table on a tiny model, and clear refusals."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import main
from farthing.cli.lab import _command, configure
from farthing.engine.load import LoadProgress
from farthing.lab import batching
from farthing.lab import bench as lab_bench
from farthing.lab.facts import model_hash
from farthing.lab.sections import SECTIONS, TAKEN_BY, measure_section
from farthing.lab.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ["--rounds", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_1")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(batching, "DRAWS", 1)
    monkeypatch.setattr(batching, "SEQUENCES", (1, 2))
    monkeypatch.setattr(batching, "skewed_lengths", lambda seed: (3, 1, 9, 2, 1, 4))


def found_in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["lab", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["lab", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("farthing: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_without_a_table_all_are_listed_with_a_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(SECTIONS)]] == list(SECTIONS)
    assert found_in_json(capsys) == SECTIONS


@pytest.mark.parametrize("name", ["text", "matrix", "prompts", "draft", "student"])
@pytest.mark.parametrize("table", [*SECTIONS, "compare", None])
def test_what_a_table_does_not_look_at_is_refused_before_anything_is_opened(
    name: str, table: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if table in TAKEN_BY[name]:
        return
    words = [] if table is None else [table, "nosuch", "b"][: 3 if table == "compare" else 2]
    error = refused(capsys, *words, f"--{name}", "nosuch")
    assert f"--{name} is nothing to " in error
    assert f"take {', '.join(TAKEN_BY[name])} or all" in error


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_looks_at_nothing_that_it_is_not_said_to_take(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    class Watched(Subject):
        def __getattribute__(self, attribute: str) -> Any:
            seen.add(attribute)
            return super().__getattribute__(attribute)

    subject = Watched(str(path), progress=LoadProgress(), rounds=1, threads=1)
    seen.clear()
    measure_section(name, subject, "")
    looked_at = {each for each in TAKEN_BY if each in seen}
    assert looked_at == {each for each, takers in TAKEN_BY.items() if name in takers}


def test_the_command_for_one_section_of_all_has_what_that_section_takes() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    arguments = parser.parse_args(["all", "m", "--matrix", "x", "--draft", "d"])
    commands = {name: shlex.split(_command(arguments, name)) for name in ("all", *SECTIONS)}
    assert {name for name, words in commands.items() if "--matrix" in words} == {"all", "matrix"}
    assert {name for name, words in commands.items() if "--draft" in words} == {
        "all",
        "speculation",
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_every_table_is_measured_and_told_with_where_it_comes_from(
    name: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_in_json(capsys, name, str(path), *QUICK, "--seed", "3")
    assert found["section"] == name
    assert found["model"]["sha256"] == model_hash(path)
    assert (found["threads"], found["seed"], found["rounds"]) == (1, 3, 1)
    assert found["command"].startswith(f"farthing lab {name} {path} --rounds 1 --seed 3")
    assert found["machine"]["cores"] >= 1
    assert found["seconds"] > 0
    for table in found["tables"]:
        assert table["finding"].endswith(".")
        assert table["rows"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
        assert table["expectation"] is None or isinstance(table["expectation"]["text"], str)


def test_a_table_for_people_has_finding_expectation_and_the_command(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "matrix", str(path), "--matrix", "layers.1.down", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "layers.1.down: weights by their distance from zero" in out
    assert out.count("found: ") == 2
    assert "expected: more weights lie far out than normally: " in out
    assert "farthing lab matrix " in out
    assert "instructions: not used" in out


def test_measured_twice_with_one_seed_what_is_not_timed_is_the_same(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (found_in_json(capsys, "outliers", str(path), *QUICK) for _ in "12")
    assert first["tables"] == second["tables"]


def test_a_text_of_ones_own_is_read_instead(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own text.txt"
    own.write_text("It was a bright cold day in April. " * 20, encoding="utf-8")
    theirs = found_in_json(capsys, "outliers", str(path), *QUICK)
    mine = found_in_json(capsys, "outliers", str(path), *QUICK, "--text", str(own))
    assert mine["tables"] != theirs["tables"]
    assert mine["command"].endswith(f"--text '{own}'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"short", "the text has 5 tokens"),
        (b"\xff\xfe\x00", "is not UTF-8 text (invalid start byte at byte 0)"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused(
    content: bytes | None,
    message: str,
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    assert message in refused(capsys, "outliers", str(path), *QUICK, "--text", str(text))


def test_a_table_that_is_not_there_is_refused_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert f"take one of {', '.join(SECTIONS)}, or all" in refused(capsys, "cahce", "model")


def test_a_table_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "say of which model: farthing lab cache MODEL" in refused(capsys, "cache")


def test_a_matrix_that_the_model_does_not_have_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "matrix", str(path), "--matrix", "layers.0.dwn")
    assert "take one like layers.0.down.weight" in said


def test_without_torch_the_table_that_needs_it_is_skipped_and_says_how_to_get_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["lab", "cache", str(path), *QUICK]) == 0
    out = capsys.readouterr().out
    assert "skipped: peak memory by tensor: " in out
    assert "torch is not installed here: pip install 'farthing[torch]'" in out
    found = found_in_json(capsys, "cache", str(path), *QUICK)
    assert [table["key"] for table in found["tables"]] == ["text", "head", "products"]
    assert [each["what"] for each in found["skipped"]] == ["peak memory by tensor"]


@pytest.mark.parametrize("flag", [["--rounds", "0"], ["--seed", "-1"], ["--threads", "0"]])
def test_a_number_out_of_range_is_a_usage_error(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "kv", "model", *flag]) == 2
    assert "must be at least" in capsys.readouterr().err
