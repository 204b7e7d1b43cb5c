"""What a measurement of the laboratory is: a table, and what it says about this model and machine.

The sentence `finding` is made from the numbers. Where the numbers contradict what was expected,
`expectation` says so: a result is told as it came out. `plots` say how a report draws the table.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from farthing.lab.samples import Interval, Samples

if TYPE_CHECKING:
    from farthing.lab.drift import Drift, Look

Cell: TypeAlias = str | int | float | Samples | Interval | None
"""None: there is no such figure; a note of the table says why where it is not plain."""

Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True)
class Column:
    """`unit` is that of its numbers; `spec` is how Python formats them for people."""

    name: str
    unit: str = ""
    spec: str = ","

    @property
    def heading(self) -> str:
        """For people."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def shown(self, cell: Cell) -> str:
        """A cell for people: of what was measured the median and, in brackets, its interval."""
        middle, spread = self.parts(cell)
        return f"{middle} ({spread})" if spread else middle

    def parts(self, cell: Cell) -> tuple[str, str]:
        """A cell's figure and, where it has an interval, "low to high"."""
        if cell is None:
            return "", ""
        if isinstance(cell, str):
            return cell, ""
        if isinstance(cell, Samples) and cell.count == 1:
            return self._figure(cell.median), ""
        if isinstance(cell, Samples | Interval):
            middle = cell.median if isinstance(cell, Samples) else cell.middle
            return self._figure(middle), f"{self._figure(cell.low)} to {self._figure(cell.high)}"
        return self._figure(cell), ""

    def _figure(self, value: float) -> str:
        """As `spec` says; what is not nothing is not shown as nothing, but with one digit."""
        shown = format(value, self.spec)
        if not value or not math.isfinite(value) or any(digit in shown for digit in "123456789"):
            return shown
        digit, power = f"{value:.0e}".split("e")
        return f"{digit}e{int(power)}"


@dataclass(frozen=True)
class Expectation:
    """What theory or other people's measurements say. `met` is None where nothing was judged."""

    text: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """For people."""
        if self.met is None:
            return "not judged here"
        return "met" if self.met else "contradicted"


def judged(came_out: bool, surely_not: bool) -> bool | None:
    """`Expectation.met`, where figures have intervals: not judged where what was expected did not
    come out, but lies within what the machine may have moved.
    """
    return True if came_out else False if surely_not else None


@dataclass(frozen=True)
class Plot:
    """How a table is drawn: columns by name, `y` over `x`, one series for each `y`.

    `labels` is a column that names each point. "stacked" draws the `y` of each `x`, parts of a
    whole, as one bar of their shares. `marks` are places on the x axis with a word for each.
    """

    kind: Literal["lines", "points", "bars", "stacked"]
    x: str
    y: tuple[str, ...]
    x_scale: Literal["linear", "log", "names"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    labels: str = ""
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """One table of a section. `key` is its stable name within the section."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    finding: str
    expectation: Expectation | None = None
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.key}: {len(row)} cells for {len(self.columns)} columns")
        names = {column.name for column in self.columns}
        if len(names) < len(self.columns):
            raise ValueError(f"{self.key}: two columns have one name")
        for plot in self.plots:
            wanted = {plot.x, *plot.y, *([plot.labels] if plot.labels else [])}
            if not wanted <= names:
                raise ValueError(f"{self.key}: a plot of {', '.join(sorted(wanted - names))}")

    @property
    def repeats(self) -> int:
        """The most often that a figure of the table was measured; 0 where all are counted."""
        cells = [cell for row in self.rows for cell in row if isinstance(cell, Samples)]
        return max((cell.count for cell in cells), default=0)

    def widened(self, drift: Drift) -> Table:
        """With the intervals that are due where the machine moves so much."""
        rows = tuple(
            tuple(cell.widened(drift) if isinstance(cell, Samples) else cell for cell in row)
            for row in self.rows
        )
        return replace(self, rows=rows)

    def as_json(self) -> dict[str, Any]:
        """Everything; a figure that was measured has its values beside its median."""
        return {
            "key": self.key,
            "title": self.title,
            "columns": [
                {"name": each.name, "unit": each.unit, "spec": each.spec} for each in self.columns
            ],
            "rows": [[_cell_as_json(cell) for cell in row] for row in self.rows],
            "finding": self.finding,
            "expectation": None
            if self.expectation is None
            else {"text": self.expectation.text, "met": self.expectation.met},
            "notes": list(self.notes),
            "plots": [
                {
                    "kind": plot.kind,
                    "x": plot.x,
                    "y": list(plot.y),
                    "x_scale": plot.x_scale,
                    "y_scale": plot.y_scale,
                    "labels": plot.labels,
                    "marks": [list(mark) for mark in plot.marks],
                }
                for plot in self.plots
            ],
        }


@dataclass(frozen=True)
class Skipped:
    """What a section would have measured, and why it cannot: on this model, or on this machine.

    A section that can measure nothing gives this alone, in place of its tables.
    """

    what: str
    reason: str


@dataclass(frozen=True)
class Section:
    """The tables of one command, what it had to leave out, and where they come from.

    `provenance` is what `Subject.provenance` gives. `seconds` is how long it all took. `looks`
    are the machine's speed on the way.
    """

    name: str
    about: str
    command: str
    seed: int
    provenance: dict[str, Any]
    seconds: float
    tables: tuple[Table, ...]
    skipped: tuple[Skipped, ...] = ()
    looks: tuple[Look, ...] = ()

    def widened(self, drift: Drift) -> Section:
        """With the intervals that are due where the machine moves so much."""
        return replace(self, tables=tuple(table.widened(drift) for table in self.tables))

    def as_json(self) -> dict[str, Any]:
        """Everything, under stable names."""
        return {
            **self.provenance,
            "section": self.name,
            "about": self.about,
            "command": self.command,
            "seed": self.seed,
            "seconds": self.seconds,
            "tables": [table.as_json() for table in self.tables],
            "skipped": [{"what": each.what, "reason": each.reason} for each in self.skipped],
            "looks": [[asdict(each) for each in look] for look in self.looks],
        }


def _cell_as_json(cell: Cell) -> Any:
    if isinstance(cell, Samples):
        return {
            "median": _number(cell.median),
            "low": _number(cell.low),
            "high": _number(cell.high),
            "n": cell.count,
            "values": [_number(each) for each in cell.values],
            "level": None if cell.level is None else _number(cell.level),
            "paired": cell.paired,
            "least": cell.least,
            "moved": _number(cell.moved),
        }
    if isinstance(cell, Interval):
        return {name: _number(getattr(cell, name)) for name in ("middle", "low", "high")}
    if isinstance(cell, float) and not math.isfinite(cell):
        return {"not_finite": str(cell)}
    return cell


def _number(value: float) -> float | str:
    """JSON has no infinities, and no number that is none: these are "inf", "-inf" and "nan"."""
    return value if math.isfinite(value) else str(value)
