"""Sections and reports read back from their JSON, which may be anybody's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from farthing.core import RequestError
from farthing.files.text_files import read_bounded
from farthing.lab.drift import Reading
from farthing.lab.report.contents import VERSION, Failure, Report
from farthing.lab.samples import Interval, Samples
from farthing.lab.table import Cell, Column, Expectation, Plot, Section, Skipped, Table

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 16 << 20
_LARGEST = 10**30

# How Python formats a number: without a bound, a hostile one would ask for a text of any length.
_SPEC = re.compile(r"\+?,?(\.\d{1,2})?[fge%]?")

_Number = float | Literal["inf", "-inf", "nan"]
_Speed = Annotated[float, msgspec.Meta(gt=1e-9, lt=1e24)]
_PROVENANCE = ("version", "model", "machine", "threads", "isa", "kernels", "kv_dtype")
_PROVENANCE_SETTINGS = ("activations", "rounds")


class _Cell(msgspec.Struct, forbid_unknown_fields=True):
    """A cell that is more than a text or a number: samples, an interval, or no finite number."""

    values: Annotated[list[_Number], msgspec.Meta(min_length=1)] | None = None
    n: int | None = None
    median: _Number | None = None
    middle: _Number | None = None
    low: _Number | None = None
    high: _Number | None = None
    not_finite: Literal["inf", "-inf", "nan"] | None = None
    level: _Number | None = None
    paired: bool = False
    least: float = 0.0
    moved: _Number = 0.0


class _Column(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    unit: str
    spec: str


class _Expectation(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    met: bool | None


class _Plot(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["lines", "points", "bars", "stacked"]
    x: str
    y: list[str]
    x_scale: Literal["linear", "log", "names"]
    y_scale: Literal["linear", "log"]
    labels: str
    marks: list[tuple[float, str]]


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    title: str
    columns: list[_Column]
    rows: list[list[str | int | float | _Cell | None]]
    finding: str
    expectation: _Expectation | None
    notes: list[str]
    plots: list[_Plot]


class _Skipped(msgspec.Struct, forbid_unknown_fields=True):
    what: str
    reason: str


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    path: str
    sha256: str


class _Machine(msgspec.Struct, forbid_unknown_fields=True):
    processor: str
    cores: int
    memory_bytes: int
    system: str


class _Provenance(msgspec.Struct):
    version: str
    model: _Model
    machine: _Machine
    threads: int
    isa: str
    kernels: str
    kv_dtype: str
    activations: str
    rounds: int
    seed: int


class _Reading(msgspec.Struct, forbid_unknown_fields=True):
    reading: _Speed
    multiplying: _Speed
    interpreting: _Speed


class _Section(_Provenance):
    section: str
    about: str
    command: str
    seconds: float
    tables: list[_Table]
    skipped: list[_Skipped]
    looks: list[Annotated[list[_Reading], msgspec.Meta(min_length=1)]]


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    section: str
    command: str
    error: str


class _Report(_Provenance):
    report: int
    command: str
    started: str
    finished: str
    sections: list[_Section]
    failures: list[_Failure]


def read_report(path: Path) -> Report:
    """What `farthing lab --json` wrote: a report of all sections, or one section as a report of it.

    Raises `RequestError` where the file cannot be read, is larger than 16 MB, or is no such JSON.
    """
    content = read_bounded(path, _MOST_BYTES)
    try:
        found = json.loads(content)
        if isinstance(found, dict) and "report" in found:
            if found["report"] != VERSION:
                raise RequestError(
                    f"{path} is a report of version {found['report']!r:.20}, and this farthing "
                    f"reads version {VERSION}: measure again, or use the farthing that wrote it"
                )
            return _report(msgspec.convert(found, _Report))
        section = section_of(found)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RequestError(
            f"{path} is no report of the laboratory ({error!s:.200}): give what "
            "`farthing lab all MODEL --json` or `farthing lab TABLE MODEL --json` printed"
        ) from None
    return Report(section.provenance, section.command, section.seed, "", "", (section,))


def section_of(found: Any) -> Section:
    """The section whose JSON, parsed, is `found`. Raises `ValueError` for anything else."""
    return _section(msgspec.convert(found, _Section))


def _report(found: _Report) -> Report:
    return Report(
        _provenance(found),
        found.command,
        found.seed,
        found.started,
        found.finished,
        tuple(_section(each) for each in found.sections),
        tuple(Failure(each.section, each.command, each.error) for each in found.failures),
    )


def _section(found: _Section) -> Section:
    return Section(
        found.section,
        found.about,
        found.command,
        found.seed,
        _provenance(found),
        found.seconds,
        tuple(_table(each) for each in found.tables),
        tuple(Skipped(each.what, each.reason) for each in found.skipped),
        tuple(
            tuple(Reading(each.reading, each.multiplying, each.interpreting) for each in look)
            for look in found.looks
        ),
    )


def _provenance(found: _Provenance) -> dict[str, Any]:
    names = (*_PROVENANCE, *_PROVENANCE_SETTINGS)
    return {name: msgspec.to_builtins(getattr(found, name)) for name in names}


def _table(found: _Table) -> Table:
    for column in found.columns:
        if not _SPEC.fullmatch(column.spec):
            raise ValueError(f"{found.key}: no number is shown as {column.spec!r:.40}")
    expected = found.expectation
    return Table(
        found.key,
        found.title,
        tuple(Column(each.name, each.unit, each.spec) for each in found.columns),
        tuple(tuple(_cell(cell) for cell in row) for row in found.rows),
        found.finding,
        None if expected is None else Expectation(expected.text, expected.met),
        tuple(found.notes),
        tuple(
            Plot(
                each.kind,
                each.x,
                tuple(each.y),
                each.x_scale,
                each.y_scale,
                each.labels,
                tuple(each.marks),
            )
            for each in found.plots
        ),
    )


def _cell(found: str | int | float | _Cell | None) -> Cell:
    if isinstance(found, int) and abs(found) > _LARGEST:
        raise ValueError("a whole number is larger than anything that is counted here")
    if not isinstance(found, _Cell):
        return found
    if found.not_finite is not None:
        return float(found.not_finite)
    if found.values is not None:
        return Samples(
            tuple(float(each) for each in found.values),
            None if found.level is None else float(found.level),
            found.paired,
            found.least,
            float(found.moved),
        )
    if found.middle is None or found.low is None or found.high is None:
        raise ValueError("a cell is neither samples nor an interval nor a number")
    return Interval(float(found.middle), float(found.low), float(found.high))
