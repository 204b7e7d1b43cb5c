"""A report made by hand: every kind of cell, plot and verdict, and names that mean harm."""

from __future__ import annotations

from typing import Any

from farthing.lab.drift import Reading
from farthing.lab.report.contents import Failure, Report
from farthing.lab.samples import Interval, Samples
from farthing.lab.table import Column, Expectation, Plot, Section, Skipped, Table

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00\udc80 ]]> --> url(http://evil.example/x)"

PROVENANCE: dict[str, Any] = {
    "version": "0.1",
    "model": {"name": HOSTILE, "path": f"/models/{HOSTILE}", "sha256": "ab" * 32},
    "machine": {"processor": "P & Q", "cores": 2, "memory_bytes": 1 << 34, "system": "S 1"},
    "threads": 2,
    "isa": "scalar",
    "kernels": "k1",
    "kv_dtype": "bf16",
    "activations": "default",
    "rounds": 3,
}

LOOKS = tuple((Reading(2e9, speed, 3e7),) * 2 for speed in (1.0e9, 1.02e9, 0.98e9, 1.01e9, 1e9))
"""Of a machine that moves a little."""

COLUMNS = (
    Column("name"),
    Column("size", "tokens"),
    Column("time", "ms", ",.2f"),
    Column("share", "%", ".1f"),
)


def table(**changes: Any) -> Table:
    settings: dict[str, Any] = {
        "key": "t",
        "title": f"Times & {HOSTILE}",
        "columns": COLUMNS,
        "rows": (
            (HOSTILE, 1, Samples((3.0, 1.0, 2.0)), Interval(50.0, 40.0, 60.0)),
            ("b", 2, Samples((4.0,)), float("inf")),
            ("c", 4, 0.0, None),
            ("d", 8, 8.5, float("nan")),
        ),
        "finding": f"It is {HOSTILE}.",
        "expectation": Expectation("it grows", True),
        "notes": (HOSTILE,),
        "plots": (
            Plot("lines", "size", ("time", "share"), "log", "log", marks=((2.0, HOSTILE),)),
            Plot("lines", "name", ("time",), "names"),
            Plot("points", "size", ("time",), labels="name"),
            Plot("bars", "name", ("time", "share"), "names", "log"),
            Plot("stacked", "name", ("time", "share"), "names"),
        ),
    }
    return Table(**{**settings, **changes})


def section(name: str, *tables: Table, skipped: tuple[Skipped, ...] = ()) -> Section:
    return Section(
        name,
        f"about {name}",
        f"farthing lab {name} m",
        7,
        PROVENANCE,
        1.5,
        tables,
        skipped,
        LOOKS,
    )


def report(*sections: Section, failures: tuple[Failure, ...] = (), **changes: Any) -> Report:
    settings: dict[str, Any] = {
        "provenance": PROVENANCE,
        "command": "farthing lab all m",
        "seed": 7,
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-02T11:00:00+00:00",
        "sections": sections,
        "failures": failures,
    }
    return Report(**{**settings, **changes})


def whole() -> Report:
    return report(
        section(
            "first",
            table(),
            table(key="u", title="Second", expectation=Expectation("no", False), plots=()),
            table(key="v", title="Third", expectation=Expectation("perhaps", None), plots=()),
        ),
        section("second", skipped=(Skipped("all of it", f"because {HOSTILE}"),)),
        failures=(Failure("third", "farthing lab third m", f"it broke: {HOSTILE}"),),
    )
