"""All sections: what fails is told and the rest goes on, and the time left is told on the way."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.core import FarthingError, UnsupportedModelError
from farthing.engine.load import LoadProgress
from farthing.lab.drift import DEVIATIONS, Reading
from farthing.lab.report import run
from farthing.lab.report.contents import Failure
from farthing.lab.report.run import Pace, measure_all, told
from farthing.lab.report.work import WorkFile, folder
from farthing.lab.samples import Samples
from farthing.lab.table import Section
from lab.report.made_report import section, table
from lab_subject import subject_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.lab.subject import Subject

NAMES = ("cache", "kv", "error")


class Spoken(LoadProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, name: str) -> None:
        self.said.append(name)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    folder().mkdir(parents=True)


@pytest.fixture
def subject() -> Subject:
    return subject_at(tiny.shared("llama", "gguf", "Q4_0"))


def test_a_section_that_fails_is_a_failure_and_one_that_cannot_be_is_skipped(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(name: str, _subject: Subject, command: str) -> Section:
        if name == "cache":
            raise FarthingError("the disk is full: make room")
        if name == "kv":
            raise UnsupportedModelError("this model has no cache")
        return section(name, table())

    monkeypatch.setattr(run, "measure_section", measured)
    work, ended = WorkFile({}), []
    report = measure_all(
        subject, "all", lambda name: f"lab {name}", NAMES, work, lambda each, _: ended.append(each)
    )
    assert report.failures == (Failure("cache", "lab cache", "the disk is full: make room"),)
    assert [each.name for each in report.sections] == ["kv", "error"]
    skipped = report.sections[0]
    assert skipped.tables == ()
    assert skipped.skipped[0].reason == "this model has no cache"
    assert [getattr(each, "name", "failed") for each in ended] == ["failed", "kv", "error"]
    assert list(WorkFile({}).sections) == ["kv", "error"]


def test_what_an_interrupted_run_has_finished_is_not_measured_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def until_interrupted(name: str, _subject: Subject, command: str) -> Section:
        if name == "error" and len(measured) < 3:
            measured.append("interrupted")
            raise KeyboardInterrupt
        measured.append(name)
        return section(name, table(rows=((name, len(measured), 1.0, 2.0),)))

    monkeypatch.setattr(run, "measure_section", until_interrupted)
    before = subject.progress
    with pytest.raises(KeyboardInterrupt):
        measure_all(subject, "all", str, NAMES, WorkFile({}), lambda *_: None)
    assert subject.progress is before
    report = measure_all(subject, "all", str, NAMES, WorkFile({}), lambda *_: None)
    assert measured == ["cache", "kv", "interrupted", "error"]
    assert [each.tables[0].rows[0][1] for each in report.sections] == [1, 2, 4]
    assert report.failures == ()


def test_every_interval_knows_how_far_the_machine_moved_over_all_sections(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"cache": 1.0, "kv": 1.1, "error": 1.2}

    def at_a_speed(name: str, _subject: Subject, command: str) -> Section:
        time = Samples((2.0, 2.0, 2.0))
        looks = ((Reading(1.0, speeds[name], 1.0),) * 2,) * 3
        return replace(section(name, table(rows=((name, 1, time, 3.0),))), looks=looks)

    monkeypatch.setattr(run, "measure_section", at_a_speed)
    measure_all(subject, "all", str, NAMES[:2], WorkFile({}), lambda *_: None)
    # A run that goes on has the looks of those sections that it does not measure again.
    report = measure_all(subject, "all", str, NAMES, WorkFile({}), lambda *_: None)
    drift = report.drift
    assert drift.looks == 9
    assert drift.multiplying == pytest.approx(log(1.2) / 2.563, rel=1e-3)
    for each in report.sections:
        _, _, time, counted = each.tables[0].rows[0]
        assert isinstance(time, Samples)
        assert time.high == pytest.approx(2 * exp(DEVIATIONS * drift.multiplying))
        assert counted == 3.0


def test_the_time_left_is_scaled_by_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "USUAL_SECONDS", {"cache": 10, "kv": 20, "error": 70})
    time = [0.0]
    spoken = Spoken()
    pace = Pace(spoken, NAMES, {}, lambda: time[0])
    assert pace.seconds_left == 100
    pace.begin_section("cache")
    time[0] = 4
    assert pace.seconds_left == pytest.approx(96)
    time[0] = 30  # three times what it usually takes
    pace.end_section()
    assert pace.seconds_left == pytest.approx(270)
    pace.begin_section("kv")
    pace.phase("round 1 of 3")
    assert spoken.said[-1] == "2 of 3, kv: round 1 of 3; about 4 min left"
    time[0] = 1e6
    assert pace.seconds_left == pytest.approx(210)


def test_a_run_that_goes_on_knows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "USUAL_SECONDS", {"cache": 10, "kv": 20, "error": 70})
    assert Pace(Spoken(), NAMES, {"error": 35}, lambda: 0.0).seconds_left == pytest.approx(15)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "about 5 s"), (33, "about 35 s"), (89, "about 90 s"), (300, "about 5 min")],
)
def test_about_how_long_is_told_in_round_numbers(seconds: float, words: str) -> None:
    assert told(seconds) == words
