from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from farthing.cli import progress
from farthing.cli.progress import terminal_progress
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
        time.sleep(0.3 if slow else 0.0)
    assert ("pack" in terminal.getvalue()) == slow


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
