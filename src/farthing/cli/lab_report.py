"""What `farthing lab` prints: tables for people, or one JSON object."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from farthing.cli.plan_report import counted
from farthing.cli.terminal import visible, write_table
from farthing.lab.drift import drift_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.lab.drift import Drift
    from farthing.lab.report.contents import Report
    from farthing.lab.table import Section, Table


def print_section(section: Section) -> None:
    """Tables, each with what was found and what was expected, then where they come from."""
    _print_tables(section)
    print(visible(f"{section.command}  ({section.seconds:.1f} s, seed {section.seed})"))
    _print_provenance(section.provenance, drift_of(section.looks))


def print_report(report: Report) -> None:
    """Every section's tables, then what became of what was expected, then where all comes from."""
    for section in report.sections:
        print(f"{section.name}: {section.about}\n")
        _print_tables(section)
    print_expectations(report)
    print(visible(f"\n{report.command}  ({report.seconds:.0f} s, seed {report.seed})"))
    _print_provenance(report.provenance, report.drift)


def print_expectations(report: Report) -> None:
    """How many were met, which were not, and what failed."""
    counts = Counter(expectation.verdict for _, _, expectation in report.expectations)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"of {counts.total()} expectations {told}" if counts else "nothing was expected")
    for section, table, expectation in report.expectations:
        if expectation.met is False:
            print(visible(f"  contradicted: {section.name} {table.key}: {expectation.text}"))
            print(visible(f"    found: {table.finding}"))
    for failure in report.failures:
        print(visible(f"  failed: {failure.section}: {failure.error}"))


def _print_provenance(where: Mapping[str, Any], drift: Drift) -> None:
    model, machine = where["model"], where["machine"]
    name = visible(model["name"])
    print(f"  farthing {where['version']}, {name}, sha256 {model['sha256'][:16]}...")
    print(
        f"  {machine['processor']}, {counted(machine['cores'], 'core')}, "
        f"{counted(where['threads'], 'thread')}, "
        f"instructions: {where['isa']}, cache {where['kv_dtype']}, "
        f"activations {where['activations']}"
    )
    print(f"  the machine's own speed meanwhile: {drift}")


def _print_tables(section: Section) -> None:
    for table in section.tables:
        _print_table(table)
    for each in section.skipped:
        print(visible(f"skipped: {each.what}: {each.reason}\n"))


def _print_table(table: Table) -> None:
    from rich.table import Table as Shown

    shown = Shown(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(table.columns):
        texts = all(row[at] is None or isinstance(row[at], str) for row in table.rows)
        shown.add_column(column.heading, justify="left" if texts else "right")
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        shown.add_row(*(column.shown(cell) for column, cell in cells))
    print(table.title)
    write_table(shown)
    print(f"found: {table.finding}")
    if table.expectation is not None:
        print(f"expected: {table.expectation.text}: {table.expectation.verdict}")
    if table.repeats > 1:
        print(
            f"note: medians of {table.repeats} rounds, in brackets the interval: the least and the "
            "most, and how far the machine's speed moved"
        )
    for note in table.notes:
        print(f"note: {note}")
    print()
