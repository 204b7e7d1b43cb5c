"""Tables as wide as the terminal: nothing cut, no figure broken, every row found again."""

from __future__ import annotations

import io
import re
import sys
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich import box
from rich.table import Table

from farthing.cli.terminal import write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

FIGURES = st.from_regex(r"[0-9]{1,3}(,[0-9]{3}){0,3}( (MiB|ms|to [0-9]{1,4}))?", fullmatch=True)
HEADINGS = st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), min_size=1, max_size=4)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What a person sees."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).splitlines()


def shown(
    columns: int, headings: Sequence[str], rows: Sequence[Sequence[str]], keys: int = 1
) -> list[str]:
    """The lines that a terminal of so many columns gets of a table of figures."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        write_table(table, keys)
    return terminal.lines()


@settings(max_examples=60, deadline=None)
@given(
    columns=st.integers(50, 130),
    headings=st.lists(HEADINGS.map(" ".join), min_size=2, max_size=14),
    data=st.data(),
)
def test_no_figure_is_cut_or_broken_and_no_line_is_too_long(
    columns: int, headings: list[str], data: st.DataObject
) -> None:
    row = data.draw(st.lists(FIGURES, min_size=len(headings), max_size=len(headings)))
    lines = shown(columns, headings, [row])
    assert all(len(line) <= columns for line in lines)
    assert "…" not in "".join(lines)
    rows = "\n".join(line for line in lines if row[0] in line)
    for figure in row:
        assert figure in rows
    words = " ".join(lines).split()
    for heading in headings:
        assert set(heading.split()) <= set(words)


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_columns_again() -> None:
    headings = ["context", "users", *(f"figure{number}" for number in range(8))]
    rows = [[f"{1000 * n}", f"{n}", *(f"{n}{at}.125" for at in range(8))] for n in (1, 2, 3)]
    lines = shown(60, headings, rows, keys=2)
    parts = [at for at, line in enumerate(lines) if "context" in line]
    assert len(parts) > 1
    for at in parts:
        assert lines[at].split()[:2] == ["context", "users"]
        assert [line.split()[:2] for line in lines[at + 2 : at + 5]] == [row[:2] for row in rows]
    found = [line.split()[2:] for at in parts for line in lines[at + 2 : at + 5]]
    for number, row in enumerate(rows):
        assert [*chain(*found[number :: len(rows)])] == row[2:]


def test_a_table_that_fits_is_one_and_a_heading_wraps_before_it_is_split() -> None:
    wide = shown(200, ["first heading of many words", "second"], [["1", "2"]])
    assert sum("second" in line for line in wide) == 1
    assert any("first heading of many words" in line for line in wide)
    narrow = shown(26, ["first heading of many words", "second"], [["1", "2"]])
    assert [line.split() for line in narrow if "1" in line] == [["1", "2"]]


def test_words_wrap_and_a_word_that_is_longer_than_the_screen_is_all_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/".join(["a-long-folder"] * 8)
    table = Table(box=None, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("where")
    table.add_row("model", path)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    write_table(table)
    lines = terminal.lines()
    assert all(len(line) <= 50 for line in lines)
    assert path in "".join(line.strip() for line in lines)


def test_a_pipe_gets_a_row_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for number in range(12):
        table.add_column(f"a heading with the number {number}", justify="right")
    table.add_row(*(f"{number}.5" for number in range(12)))
    write_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "0.5" in line] == [[f"{n}.5" for n in range(12)]]


def test_a_reader_who_has_left_is_no_answer_of_no() -> None:
    """Which is what an exit code of 1 says."""

    class Left(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    table = Table("figures")
    table.add_row("1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Left())
        with pytest.raises(BrokenPipeError):
            write_table(table)
