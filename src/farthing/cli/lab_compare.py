"""farthing lab compare: two reports, table by table."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.cli.terminal import visible, write_table

if TYPE_CHECKING:
    from farthing.lab.report.compare import Comparison, Difference


def run_compare(first: str, second: str, *, as_json: bool) -> int:
    """Prints what differs. Raises `RequestError` for a file that is no report."""
    from farthing.lab.report.compare import compare
    from farthing.lab.report.stored import read_report

    found = compare(read_report(Path(first)), read_report(Path(second)))
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print(found, first, second)
    return 0


def _print(found: Comparison, first: str, second: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from farthing.lab.report.compare import Verdict

    def shown(*columns: str) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        return table

    def row(table: Table, *cells: str) -> None:
        table.add_row(*(escape(visible(cell)) for cell in cells))

    print(visible(f"first:  {first}\nsecond: {second}\n"))
    if found.settings:
        settings = shown("not the same", "first", "second")
        for name, pair in found.settings.items():
            row(settings, name, *pair)
        write_table(settings)
        print()
    differing = [
        each for each in found.figures if each.verdict not in (Verdict.INSIDE, Verdict.SAME)
    ]
    alone = (Verdict.ONLY_FIRST, Verdict.ONLY_SECOND)
    for place, group in groupby(differing, key=lambda each: (each.section, each.table)):
        print(visible(" ".join(place)))
        told = list(group)
        for verdict in alone:
            names = [_name(each) for each in told if each.verdict is verdict]
            if names:
                print(visible(f"{verdict}: {', '.join(names)}"))
        pairs = [each for each in told if each.verdict not in alone]
        figures = shown("row", "figure", "first", "second", "change", "verdict")
        for column in figures.columns[2:5]:
            column.no_wrap = True
        for each in pairs:
            row(
                figures,
                each.row,
                each.column,
                each.first,
                each.second,
                "" if each.change is None else f"{each.change:+.1%}",
                each.verdict,
            )
        if pairs:
            write_table(figures, keys=2)
        print()
    tables = shown("table", *(str(verdict) for verdict in Verdict), "expected")
    for table in found.tables:
        counts = [str(table.counts.get(verdict, "")) for verdict in Verdict]
        if table.only is not None:
            counts[list(Verdict).index(table.only)] = "all of it"
        before, after = table.first_expectation, table.second_expectation
        expected = before if before == after or table.only is not None else f"{before} -> {after}"
        row(tables, f"{table.section} {table.table}", *counts, expected)
    write_table(tables)
    total = sum(each.verdict is Verdict.DIFFERS for each in found.figures)
    judged = sum(
        each.verdict in (Verdict.DIFFERS, Verdict.INSIDE, Verdict.SAME) for each in found.figures
    )
    print(f"\nof {judged:,} figures that are in both, {total:,} differ")


def _name(each: Difference) -> str:
    """What only one report has: a row, or a column of it."""
    return f"{each.row}, {each.column}" if each.column else each.row
