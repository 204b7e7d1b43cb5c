"""Two reports beside each other: of two machines, two days, two versions or two models.

Tables are matched by section and key, rows by their names, columns by theirs. Two measured figures
differ where their intervals, which know how far the machine's speed moved, do not meet; where they
do, nothing is said to differ. A counted figure differs where it is shown differently.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any

from farthing.lab.report.series import middle
from farthing.lab.samples import Interval, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from farthing.lab.report.contents import Report
    from farthing.lab.table import Cell, Column, Row, Table

    _Tables = Mapping[tuple[str, str], Table]


class Verdict(StrEnum):
    """What two figures of one thing say. Those measured once, and apart, are not judged."""

    DIFFERS = "differs"
    INSIDE = "inside the intervals"
    SAME = "the same"
    ONCE = "measured once"
    ONLY_FIRST = "only in the first"
    ONLY_SECOND = "only in the second"


@dataclass(frozen=True)
class Difference:
    """One figure in both reports, as it is shown. `change` is by what share the second is more."""

    section: str
    table: str
    row: str
    column: str
    first: str
    second: str
    change: float | None
    verdict: Verdict


@dataclass(frozen=True)
class TableDifference:
    """How many figures of a table there are, by verdict; verdicts on what was expected, if any.

    `only` is set, and the rest empty, for a table that one report lacks.
    """

    section: str
    table: str
    title: str
    counts: Mapping[Verdict, int]
    first_expectation: str
    second_expectation: str
    only: Verdict | None = None


@dataclass(frozen=True)
class Comparison:
    """What the reports speak of where that differs, their tables, and each figure."""

    settings: Mapping[str, tuple[str, str]]
    tables: tuple[TableDifference, ...]
    figures: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, under stable names."""
        return {
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "tables": [
                {
                    "section": each.section,
                    "table": each.table,
                    "title": each.title,
                    "only": None if each.only is None else each.only.name.lower(),
                    "counts": {verdict.name.lower(): n for verdict, n in each.counts.items()},
                    "expectations": [each.first_expectation, each.second_expectation],
                }
                for each in self.tables
            ],
            "figures": [
                {
                    "section": each.section,
                    "table": each.table,
                    "row": each.row,
                    "column": each.column,
                    "first": each.first,
                    "second": each.second,
                    "change": each.change,
                    "verdict": each.verdict.name.lower(),
                }
                for each in self.figures
            ],
        }


def compare(first: Report, second: Report) -> Comparison:
    """Every table of either report, in the order of the first, then what the second has alone."""
    ones, others = _tables(first), _tables(second)
    tables, figures = [], []
    for place in dict.fromkeys((*ones, *others)):
        one, other = ones.get(place), others.get(place)
        found = [] if one is None or other is None else list(_differences(place[0], one, other))
        figures += found
        tables.append(_table_difference(place, one, other, found))
    return Comparison(_settings(first, second), tuple(tables), tuple(figures))


def judge(one: Cell, other: Cell, first: Column, second: Column) -> Verdict:
    """What two cells say that are about the same."""
    intervals = [cell for cell in (one, other) if isinstance(cell, Samples | Interval)]
    if middle(one) is None or middle(other) is None or not intervals:
        return Verdict.SAME if first.shown(one) == second.shown(other) else Verdict.DIFFERS
    (low, high), (other_low, other_high) = _bounds(one), _bounds(other)
    if low <= other_high and other_low <= high:
        return Verdict.INSIDE
    if any(isinstance(cell, Samples) and cell.count == 1 for cell in (one, other)):
        return Verdict.ONCE
    return Verdict.DIFFERS


def row_names(table: Table, columns: int | None = None) -> list[str]:
    """A name for each row: its first cells that were not measured, as few as tell rows apart.

    `columns` says how many, where another table needs more. Rows that still have one name are
    numbered.
    """
    cells = [_name_cells(table, row) for row in table.rows]
    if columns is None:
        columns = name_columns(table)
    names = [", ".join(each[:columns]) for each in cells]
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return numbered


def name_columns(table: Table) -> int:
    """How many of a row's cells it takes to tell the rows apart; all that there are, else."""
    cells = [_name_cells(table, row) for row in table.rows]
    most = max((len(each) for each in cells), default=1)
    for count in range(1, most):
        if len({tuple(each[:count]) for each in cells}) == len(cells):
            return count
    return max(most, 1)


def _name_cells(table: Table, row: Row) -> list[str]:
    """The cells from the left up to the first that is no text and no whole number."""
    found: list[str] = []
    for column, cell in zip(table.columns, row, strict=True):
        if not isinstance(cell, str | int) or (found and not isinstance(cell, str)):
            break
        found.append(column.shown(cell))
    return found or [
        column.shown(cell) for column, cell in zip(table.columns[:1], row, strict=False)
    ]


def _differences(section: str, one: Table, other: Table) -> Iterator[Difference]:
    columns = max(name_columns(one), name_columns(other))
    ones = dict(zip(row_names(one, columns), one.rows, strict=True))
    others = dict(zip(row_names(other, columns), other.rows, strict=True))
    places = {column.name: at for at, column in enumerate(one.columns)}
    other_places = {column.name: at for at, column in enumerate(other.columns)}
    for name in dict.fromkeys((*ones, *others)):
        if name not in ones or name not in others:
            only = Verdict.ONLY_FIRST if name in ones else Verdict.ONLY_SECOND
            yield Difference(section, one.key, name, "", "", "", None, only)
            continue
        for column in dict.fromkeys((*list(places)[columns:], *list(other_places)[columns:])):
            if column not in places or column not in other_places:
                only = Verdict.ONLY_FIRST if column in places else Verdict.ONLY_SECOND
                yield Difference(section, one.key, name, column, "", "", None, only)
                continue
            at, other_at = places[column], other_places[column]
            cell, other_cell = ones[name][at], others[name][other_at]
            if cell is None and other_cell is None:
                continue
            heading, other_heading = one.columns[at], other.columns[other_at]
            yield Difference(
                section,
                one.key,
                name,
                column,
                heading.shown(cell),
                other_heading.shown(other_cell),
                _change(cell, other_cell),
                judge(cell, other_cell, heading, other_heading),
            )


def _table_difference(
    place: tuple[str, str],
    one: Table | None,
    other: Table | None,
    found: Sequence[Difference],
) -> TableDifference:
    title = one.title if one is not None else other.title if other is not None else ""
    only = None
    if one is None or other is None:
        only = Verdict.ONLY_SECOND if one is None else Verdict.ONLY_FIRST
    verdicts = [
        "" if table is None or table.expectation is None else table.expectation.verdict
        for table in (one, other)
    ]
    counts = Counter(each.verdict for each in found)
    return TableDifference(
        *place,
        title,
        {verdict: counts[verdict] for verdict in Verdict if counts[verdict]},
        verdicts[0],
        verdicts[1],
        only,
    )


def _tables(report: Report) -> dict[tuple[str, str], Table]:
    return {
        (section.name, table.key): table for section in report.sections for table in section.tables
    }


def _settings(first: Report, second: Report) -> dict[str, tuple[str, str]]:
    """What is told of where the reports come from, and is not the same in both."""
    pairs = zip(_facts(first).items(), _facts(second).values(), strict=True)
    return {name: (one, other) for (name, one), other in pairs if one != other}


def _facts(report: Report) -> dict[str, str]:
    where = report.provenance
    machine = where["machine"]
    return {
        "model": where["model"]["name"],
        "sha256 of the model": where["model"]["sha256"],
        "farthing": where["version"],
        "kernels": where["kernels"],
        "processor": machine["processor"],
        "cores": str(machine["cores"]),
        "memory, bytes": f"{machine['memory_bytes']:,}",
        "system": machine["system"],
        "threads": str(where["threads"]),
        "instructions": where["isa"],
        "cache": where["kv_dtype"],
        "activations": where["activations"],
        "rounds": str(where["rounds"]),
        "seed": str(report.seed),
        "measured": report.finished,
        "how far its speed moved": str(report.drift),
    }


def _bounds(cell: Cell) -> tuple[float, float]:
    if isinstance(cell, Samples | Interval):
        return cell.low, cell.high
    value = middle(cell)
    if value is None:
        raise TypeError(f"{cell!r} has no bounds")
    return value, value


def _change(one: Cell, other: Cell) -> float | None:
    """None where there is no such share."""
    before, after = middle(one), middle(other)
    if not before or after is None:
        return None
    change = after / before - 1
    return change if isfinite(change) else None
