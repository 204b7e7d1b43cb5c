"""The work file: what is finished is found again, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from farthing.core import FarthingError
from farthing.lab.report import work
from farthing.lab.report.work import WorkFile, alone, depends_on, folder
from lab.report.made_report import section, table
from lab_subject import subject_at


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    folder().mkdir(parents=True)


def test_a_finished_section_is_found_again_as_it_was() -> None:
    first = WorkFile({"a": 1})
    assert first.sections == {}
    sections = [section("one", table(rows=(("x", 1, 2.0, None),))), section("two")]
    for each in sections:
        first.add(each)
    again = WorkFile({"a": 1})
    assert list(again.sections.values()) == sections
    assert again.started == first.started


def test_what_depends_on_something_else_is_not_found() -> None:
    WorkFile({"a": 1}).add(section("one"))
    assert WorkFile({"a": 2}).sections == {}
    assert WorkFile({"a": 1, "b": None}).sections == {}


def test_fresh_starts_over_and_a_run_that_is_done_leaves_nothing() -> None:
    WorkFile({"a": 1}).add(section("one"))
    assert WorkFile({"a": 1}, fresh=True).sections == {}
    assert WorkFile({"a": 1}).sections == {}
    done = WorkFile({"a": 1})
    done.add(section("one"))
    done.discard()
    assert not list(folder().glob("*.json"))


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{}",
        "cut",
        '{"version": 3, "depends_on": {"a": 1}}',
        '{"version": 3, "depends_on": {"a": 1}, "sections": 1}',
        "\x00",
    ],
)
def test_a_file_that_is_damaged_is_as_if_it_were_not_there(damage: str) -> None:
    kept = WorkFile({"a": 1})
    kept.add(section("one", table()))
    text = kept.path.read_text()
    kept.path.write_text(text[: len(text) // 2] if damage == "cut" else damage)
    assert WorkFile({"a": 1}).sections == {}


def test_another_version_or_dependencies_in_a_file_of_that_name_are_not_taken() -> None:
    kept = WorkFile({"a": 1})
    kept.add(section("one"))
    text = kept.path.read_text()
    for old, new in (('"version": 3', '"version": 2'), ('"a": 1', '"a": 3')):
        kept.path.write_text(text.replace(old, new, 1))
        assert WorkFile({"a": 1}).sections == {}


def test_only_the_latest_unfinished_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_KEPT_FILES", 3)
    files = []
    for number in range(5):
        kept = WorkFile({"a": number})
        kept.add(section("one"))
        os.utime(kept.path, (number, number))
        files.append(kept.path)
    WorkFile({"a": 5}).add(section("one"))
    assert [path.exists() for path in files] == [False, False, False, True, True]


def test_a_run_depends_on_the_model_every_setting_and_the_programs_own_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny.shared("llama", "gguf", "Q4_0")

    def key(command: str = "c", **settings: object) -> dict[str, object]:
        return depends_on(subject_at(path, **settings), command)

    usual = key()
    assert usual == key()
    assert usual["isa"] != "not used"
    others = [
        key("d"),
        key(seed=1),
        key(rounds=3),
        key(threads=2),
        key(text="another text"),
        key(draft=str(path)),
        key(draft="of the catalog"),
        depends_on(subject_at(tiny.shared("llama", "gguf", "Q4_1")), "c"),
    ]
    monkeypatch.setattr(work, "source_digest", lambda: "changed")
    others.append(key())
    assert all(each != usual for each in others)


def test_two_runs_at_once_are_refused() -> None:
    told = "another `farthing lab all` is measuring"
    with alone(), pytest.raises(FarthingError, match=told), alone():
        pass
    with alone():
        pass


def test_a_cache_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARTHING_CACHE", "/proc/none")
    with pytest.raises(FarthingError, match="FARTHING_CACHE"), alone():
        pass


_WRITER = """
from lab.report.made_report import section, table
from farthing.lab.report.work import WorkFile
work = WorkFile({"a": 1})
number = 0
while True:
    number += 1
    work.add(section(f"s{number % 7}", table()))
    print(number, flush=True)
"""


def test_whoever_is_killed_while_writing_leaves_a_file_that_is_whole() -> None:
    tests = Path(__file__).parents[2]
    path = os.pathsep.join([str(tests), str(tests.parent / "src")])
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    for _ in range(9):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert sorted(WorkFile({"a": 1}).sections) == [f"s{number}" for number in range(7)]
