"""What a report holds: sections that were measured, and those that failed, with the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from farthing.lab.drift import drift_of

if TYPE_CHECKING:
    from farthing.lab.drift import Drift
    from farthing.lab.table import Expectation, Section, Table

VERSION = 3
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
    def drift(self) -> Drift:
        """How much the machine's own speed moved, over all sections."""
        return drift_of([look for section in self.sections for look in section.looks])

    def widened(self) -> Report:
        """With intervals that know how much the machine moved: a section's own rounds do not."""
        drift = self.drift
        return replace(self, sections=tuple(each.widened(drift) for each in self.sections))

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
            "drift": asdict(self.drift),
            "sections": [section.as_json() for section in self.sections],
            "failures": [
                {"section": each.section, "command": each.command, "error": each.error}
                for each in self.failures
            ],
        }
