"""A report as one HTML file: it asks for nothing else, and runs no script."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from farthing.lab.report.chart import draw
from farthing.lab.report.frame import patterns
from farthing.lab.report.run import told

if TYPE_CHECKING:
    from farthing.lab.report.contents import Report
    from farthing.lab.table import Cell, Column, Plot, Table

_HERE = Path(__file__).parent

# What a name or a path may hold and HTML may not: shown as what cannot be shown.
_UNSHOWN = dict.fromkeys(
    (*range(9), 11, 12, *range(14, 32), *range(127, 160), 0xFFFE, 0xFFFF), "\ufffd"
)
_UNSHOWN |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")

VERDICTS = ("contradicted", "not judged here", "met")
"""In the order in which a reader wants them."""


def render(report: Report) -> str:
    """The whole page, to be written as UTF-8."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = count(1)

    def picture(table: Table, plot: Plot) -> str:
        return draw(table, plot, f"plot-{next(numbers)}").translate(_UNSHOWN)

    return environment.get_template("page.html").render(
        report=report,
        name=_name(report.provenance["model"]["name"]),
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
        patterns=patterns(),
        picture=picture,
        is_text=_is_text,
        by_verdict=_by_verdict(report),
        told=told,
    )


def _shown(value: Any) -> Any:
    # What has `__html__` is markup of ours, in which every text was escaped as it was drawn.
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.translate(_UNSHOWN)
    return value


def _name(model: str) -> str:
    """What a model is called: of a path its last part."""
    return Path(model).name if model.startswith(("/", "./", "../", "~")) else model


def _is_text(table: Table, column: Column) -> bool:
    """Whether a column has words, not numbers: those begin at its left edge."""
    at = table.columns.index(column)
    cells: list[Cell] = [row[at] for row in table.rows]
    return all(cell is None or isinstance(cell, str) for cell in cells)


def _by_verdict(report: Report) -> dict[str, list[tuple[str, str, str]]]:
    """(anchor, title, what was expected), by verdict; a verdict that nothing got has none."""
    found: dict[str, list[tuple[str, str, str]]] = {verdict: [] for verdict in VERDICTS}
    for section, table, expectation in report.expectations:
        anchor = f"{section.name}-{table.key}"
        found[expectation.verdict].append((anchor, table.title, expectation.text))
    return found
