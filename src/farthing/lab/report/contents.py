"""What a report holds: sections that were measured, and those that failed, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farthing.lab.table import Expectation, Section, Table

VERSION = 1
"""Of the JSON form: one that is not this one is refused."""


@dataclass(frozen=True)
class Failure:
    """A section that ended in an error. `command` is what a person types to try it again."""

    section: str
    command: str
    error: str


@dataclass(frozen=True)
class Report:
    """Sections and failures in the order of the laboratory's list.

    `provenance` is what `Subject.provenance` gives. `seconds` is how long measuring took, without
    the time between a kill and the resumption. Times are of the first start and of the end, as
    ISO 8601 says, in UTC.
    """

    provenance: dict[str, Any]
    command: str
    seed: int
    started: str
    finished: str
    sections: tuple[Section, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all sections."""
        return sum(section.seconds for section in self.sections)

    @property
    def expectations(self) -> list[tuple[Section, Table, Expectation]]:
        """Everything that was expected, in order."""
        return [
            (section, table, table.expectation)
            for section in self.sections
            for table in section.tables
            if table.expectation is not None
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything, under stable names."""
        return {
            "report": VERSION,
            **self.provenance,
            "command": self.command,
            "seed": self.seed,
            "started": self.started,
            "finished": self.finished,
            "seconds": self.seconds,
            "sections": [section.as_json() for section in self.sections],
            "failures": [
                {"section": each.section, "command": each.command, "error": each.error}
                for each in self.failures
            ],
        }
