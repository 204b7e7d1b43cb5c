"""farthing lab all: every section, kept as it is finished, and a page that shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from farthing.cli.lab_report import print_expectations, print_report
from farthing.cli.process import say
from farthing.files.replacing import replacing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from farthing.lab.report.contents import Failure, Report
    from farthing.lab.report.run import Pace
    from farthing.lab.subject import Subject
    from farthing.lab.table import Section


def write_page(report: Report, path: Path) -> None:
    """The report as a page; raises `FarthingError` where it cannot be written."""
    from farthing.lab.report.page import render

    with replacing(path, private=False) as file:
        file.write(render(report).encode("utf-8"))
    say(f"the report is {path}")


def measured(
    fresh: bool,
    page: Path | None,
    open_subject: Callable[[], Subject],
    command_of: Callable[[str], str],
) -> Report:
    """The report of all sections, of which only those are measured that are not kept from before.

    It is written to `page`. When no section failed, nothing is kept of the run any more.
    """
    from farthing.lab.report.run import measure_all
    from farthing.lab.report.work import WorkFile, alone, depends_on
    from farthing.lab.sections import SECTIONS

    with alone():
        subject = open_subject()
        command = command_of("all")
        work = WorkFile(depends_on(subject, command), fresh=fresh)
        if work.sections:
            say(
                f"{', '.join(work.sections)}: finished by a run begun {work.started}, and taken "
                "from there; --fresh measures everything anew"
            )
        try:
            report = measure_all(subject, command, command_of, tuple(SECTIONS), work, _tell)
        except (KeyboardInterrupt, SystemExit):
            say(
                f"{len(work.sections)} of {len(SECTIONS)} sections are finished and kept: the "
                "same command goes on from there"
            )
            raise
        if page is not None:
            write_page(report, page)
        if not report.failures:
            work.discard()
    return report


def print_all(report: Report, *, as_json: bool, short: bool) -> int:
    """Prints the report, or, where it is `short`, what became of expectations.

    0: everything was measured; 1: a section failed.
    """
    if as_json:
        print(json.dumps(report.as_json()))
    elif short:
        print_expectations(report)
    else:
        print_report(report)
    return 1 if report.failures else 0


def _tell(outcome: Section | Failure, pace: Pace) -> None:
    """A line for each section that is over."""
    from farthing.lab.report.run import told
    from farthing.lab.table import Section

    left = pace.seconds_left
    more = f"; {told(left)} left" if left else ""
    if not isinstance(outcome, Section):
        say(f"{outcome.section}: FAILED: {outcome.error}{more}")
        return
    skipped = "".join(f"; skipped {each.what}: {each.reason}" for each in outcome.skipped)
    say(f"{outcome.name}: {outcome.seconds:.0f} s{skipped}{more}")
