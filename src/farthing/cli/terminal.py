"""A model's text, and tables, on their way to a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import TextType

_PIPE_COLUMNS = 240
_ENDLESS = 1 << 16

_LEAST_WORDS = 24
"""A column of words is not squeezed further than to so many characters."""

# What a model writes must not move the cursor or talk to the terminal: ESC is shown as ^[.
_CARETS = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if chr(code) not in "\n\t"}
_CARETS |= {code: f"\\x{code:02x}" for code in range(128, 160)}


def visible(text: str) -> str:
    """Text from a file or from the network, safe to show: its control characters are spelled out.

    Line breaks and tabs stay.
    """
    return text.translate(_CARETS)


def write(text: str) -> None:
    """Writes a piece of a model's text at once; on a terminal, its control characters are shown.

    A pipe or a file gets the text as it is.
    """
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_table(table: Table, keys: int = 1) -> None:
    """Writes a table as wide as the terminal; a pipe or a file gets each row as one line.

    Nothing is cut, and no figure (what stands to the right, or may not wrap) is broken. A table
    that is too wide for that is written as several, one below the other, each of which begins with
    the first `keys` columns.
    """
    from rich.console import Console

    class Written(Console):
        """Where nobody reads any more, rich itself ends the process with 1: the answer is no."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = Written(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    for part in _fitting(table, keys, console):
        console.print(part)


def _fitting(table: Table, keys: int, console: Console) -> Iterator[Table]:
    """The table with widths that fit, or its columns shared out over several."""
    room = console.width
    sizes = [_sizes(column, console) for column in table.columns]
    first = list(range(min(keys, len(sizes))))
    chosen, title = first, table.title
    for at in range(len(first), len(sizes)):
        if len(chosen) > len(first) and _width(table, [sizes[n][0] for n in (*chosen, at)]) > room:
            yield _part(table, chosen, sizes, title, room)
            chosen, title = first, None
        chosen = [*chosen, at]
    yield _part(table, chosen, sizes, title, room)


def _sizes(column: Column, console: Console) -> tuple[int, int]:
    """Characters that a column must have, and those with which nothing in it wraps.

    A heading may wrap between its words, and so may a cell of words.
    """
    endless = console.options.update(width=_ENDLESS)
    header = console.measure(column.header, options=endless)
    cells = [console.measure(cell, options=endless) for cell in (*column.cells, column.footer)]
    widest = max(cell.maximum for cell in cells)
    figures = column.no_wrap or column.justify == "right"
    least = max(header.minimum, widest if figures else min(widest, _LEAST_WORDS))
    return least, max(header.maximum, widest)


def _width(table: Table, columns: Sequence[int]) -> int:
    """Characters of a table whose columns have so many, with what stands around and between."""
    _, right, _, left = table.padding
    edges = 0 if table.pad_edge else left + right
    lines = 0 if table.box is None else len(columns) + 1
    return sum(columns) + len(columns) * (left + right) - edges + lines


def _part(
    table: Table,
    chosen: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    title: TextType | None,
    room: int,
) -> Table:
    """The chosen columns as a table, the room that they leave shared out among those that wrap."""
    from rich.table import Table as Shown

    part = Shown(
        title=title,
        title_justify=table.title_justify,
        box=table.box,
        pad_edge=table.pad_edge,
        show_footer=table.show_footer,
        header_style=table.header_style,
    )
    spare = max(0, room - _width(table, [sizes[at][0] for at in chosen]))
    widths: dict[int, int] = {}
    for number, at in enumerate(sorted(chosen, key=lambda at: sizes[at][1] - sizes[at][0])):
        least, most = sizes[at]
        widths[at] = min(most, least + spare // (len(chosen) - number))
        spare -= widths[at] - least
    for at in chosen:
        column = table.columns[at]
        part.add_column(
            column.header,
            column.footer,
            justify=column.justify,
            overflow="fold",
            width=widths[at],
        )
    for row in zip(*(table.columns[at].cells for at in chosen), strict=True):
        part.add_row(*row)
    return part
