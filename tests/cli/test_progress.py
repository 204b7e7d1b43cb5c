from __future__ import annotations

import io
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.cli import main, progress
from farthing.cli.progress import terminal_progress
from farthing.core import FarthingError
from farthing.files.progress import Fetch

if TYPE_CHECKING:
    from collections.abc import Callable

FETCH = Fetch("some-model", "a package", "Apache-2.0", 50_000_000)


def fetched() -> None:
    with terminal_progress() as watching:
        watching.phase("find")
        watching.begin(FETCH)
        watching.advance(20_000_000)
        watching.end()
        watching.phase("open")


def test_a_fetch_shows_its_licence_even_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetched()
    assert capsys.readouterr().err == (
        "fetching some-model from a package, 50 MB\nlicence: Apache-2.0\n"
    )


def test_quiet_still_shows_a_licence(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_progress(quiet=True) as watching:
        watching.begin(FETCH)
        watching.end()
        watching.phase("open")
    assert "licence: Apache-2.0" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Puts a terminal in the place of stderr; pytest would take it away from a fixture."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_a_terminal_gets_a_bar_which_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    fetched()
    shown = terminal.getvalue()
    assert "20.0/50.0 MB" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is back


@pytest.mark.parametrize("slow", [False, True])
def test_only_a_slow_load_shows_what_it_does(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.01 if slow else 60.0)
    with terminal_progress() as watching:
        watching.phase("open")
        if slow:
            wait_until(lambda: watching._status is not None)  # type: ignore[attr-defined]
        watching.phase("pack")
        if slow:
            wait_until(lambda: "pack" in terminal.getvalue())
    assert ("pack" in terminal.getvalue()) == slow


def test_without_a_terminal_long_work_is_told_in_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "say", told.append)
    with terminal_progress() as watching:
        watching.phase("measuring cache")
        wait_until(lambda: len(told) > 1)
        watching.phase("measuring tiers")
        wait_until(lambda: "tiers" in told[-1])
    count = len(told)
    assert all(re.fullmatch(r"measuring (cache|tiers), \d:\d\d:\d\d so far", each) for each in told)
    time.sleep(0.1)
    assert len(told) == count  # nothing is told once it is over
    assert "\x1b" not in capsys.readouterr().err


def test_without_a_terminal_a_long_fetch_tells_how_much_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "say", told.append)
    with terminal_progress(quiet=True) as watching:
        watching.begin(FETCH)
        watching.advance(20_000_000)
        wait_until(lambda: any("some-model: 20 of 50 MB, 0:00:0" in each for each in told))
        watching.end()
        count = len(told)
        watching.phase("open")
        time.sleep(0.1)
        assert len(told) == count  # of other work, quiet says nothing


def test_without_a_terminal_quick_work_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_progress() as watching:
        watching.phase("open")
    assert capsys.readouterr().err == ""


def test_a_table_of_the_laboratory_is_told_of_while_its_json_goes_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def measure(*_: object) -> None:
        wait_until(lambda: any(each.startswith("measuring cache, ") for each in told))
        raise FarthingError("that will do")

    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "say", told.append)
    monkeypatch.setattr("farthing.lab.sections.measure_section", measure)
    assert main(["lab", "cache", str(tiny.shared("llama")), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "that will do" in captured.err


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
