"""A model's text, and tables, on their way to a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_PIPE_COLUMNS = 240

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


def write_table(table: Table) -> None:
    """Writes a table as wide as the terminal; a pipe or a file gets each row as one line."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(table)
