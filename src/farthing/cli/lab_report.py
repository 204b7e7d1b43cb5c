"""What `farthing lab` prints: tables for people, or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.cli.terminal import write_table

if TYPE_CHECKING:
    from farthing.lab.table import Section, Table


def print_section(section: Section) -> None:
    """Tables, each with what was found and what was expected, then where they come from."""
    for table in section.tables:
        _print_table(table)
    where, model = section.provenance, section.provenance["model"]
    machine = where["machine"]
    print(f"{section.command}  ({section.seconds:.1f} s, seed {section.seed})")
    print(f"  farthing {where['version']}, {model['name']}, sha256 {model['sha256'][:16]}...")
    print(
        f"  {machine['processor']}, {machine['cores']} cores, {where['threads']} threads, "
        f"instructions: {where['isa']}, cache {where['kv_dtype']}, "
        f"activations {where['activations']}"
    )


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
        print(f"note: medians of {table.repeats} rounds, in brackets the least and the most")
    for note in table.notes:
        print(f"note: {note}")
    print()
