"""All sections, one after the other: what is finished is kept, what fails is told."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import FarthingError, UnsupportedModelError
from farthing.engine.load import LoadProgress
from farthing.lab.report.contents import Failure, Report
from farthing.lab.report.work import now
from farthing.lab.sections import SECTIONS, USUAL_SECONDS, measure_section
from farthing.lab.table import Section, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.lab.report.work import WorkFile
    from farthing.lab.subject import Subject


class Pace(LoadProgress):
    """Tells how far a run is: in front of each phase the section, behind it about the time left.

    What sections usually take is scaled by what those that are done took beside it.
    """

    def __init__(
        self,
        progress: LoadProgress,
        names: Sequence[str],
        done: Mapping[str, float],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`done` is the seconds of sections that an earlier run has finished."""
        self._progress = progress
        self._names = tuple(names)
        self._done = dict(done)
        self._clock = clock
        self._name = ""
        self._began = clock()

    def begin_section(self, name: str) -> None:
        """The section `name` begins."""
        self._name = name
        self._began = self._clock()
        self.phase("begins")

    def end_section(self) -> None:
        """The section that began last is over."""
        self._done[self._name] = self._clock() - self._began
        self._name = ""

    def phase(self, name: str) -> None:
        """Hands the phase on with what is known of the whole."""
        number = self._names.index(self._name) + 1
        self._progress.phase(
            f"{number} of {len(self._names)}, {self._name}: {name}; {told(self.seconds_left)} left"
        )

    @property
    def seconds_left(self) -> float:
        """Until the end of all sections, about."""
        usual = sum(_usual(name) for name in self._done)
        scale = sum(self._done.values()) / usual if usual else 1.0
        left = sum(_usual(n) for n in self._names if n not in self._done and n != self._name)
        current = _usual(self._name) * scale - (self._clock() - self._began) if self._name else 0.0
        return left * scale + max(0.0, current)


def _usual(name: str) -> float:
    return USUAL_SECONDS.get(name, max(USUAL_SECONDS.values()))


def told(seconds: float) -> str:
    """About so long, for people."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5)):.0f} s"
    return f"about {seconds / 60:.0f} min"


def measure_all(
    subject: Subject,
    command: str,
    command_of: Callable[[str], str],
    names: Sequence[str],
    work: WorkFile,
    ended: Callable[[Section | Failure, Pace], None],
) -> Report:
    """Measures the sections `names` that `work` does not have, and adds each to it.

    `command_of` gives what a person types for one section, `command` is that for all. `ended` is
    told of each section that is over. A section that this model cannot have is skipped, with the
    reason; one that ends in a `FarthingError` is a failure of the report, and the rest goes on.
    """
    done = {name: each.seconds for name, each in work.sections.items()}
    pace = Pace(subject.progress, names, done)
    before, subject.progress = subject.progress, pace
    failures = []
    try:
        for name in names:
            if name in work.sections:
                continue
            pace.begin_section(name)
            started = perf_counter()
            outcome: Section | Failure
            try:
                outcome = measure_section(name, subject, command_of(name))
            except UnsupportedModelError as error:
                outcome = Section(
                    name,
                    SECTIONS[name],
                    command_of(name),
                    subject.seed,
                    subject.provenance(),
                    perf_counter() - started,
                    (),
                    (Skipped("all of it", str(error)),),
                )
            except FarthingError as error:
                outcome = Failure(name, command_of(name), str(error))
            pace.end_section()
            if isinstance(outcome, Section):
                work.add(outcome)
            else:
                failures.append(outcome)
            ended(outcome, pace)
    finally:
        subject.progress = before
    sections = tuple(work.sections[name] for name in names if name in work.sections)
    provenance = {**subject.provenance(), "isa": _isa(sections, subject)}
    return Report(
        provenance,
        command,
        subject.seed,
        work.started,
        now(),
        sections,
        tuple(failures),
    ).widened()


def _isa(sections: Sequence[Section], subject: Subject) -> str:
    """The instructions that some section used: a run that went on may have used none."""
    used = {str(each.provenance["isa"]) for each in sections} - {"not used"}
    return min(used, default=subject.isa)
