"""Finished sections on disk, so that a run that was killed goes on where it was.

They lie in `<cache>/lab/`, in a file for each thing that they depend on: the model, all settings,
the machine, its instructions, the kernels and the program's own source. Another thing is another
file, so nothing is misread. Each section is added by one rename.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import farthing
from farthing.core import FarthingError, FileFormatError
from farthing.files.cache import models_folder
from farthing.files.json_files import read_json_object
from farthing.files.locks import take
from farthing.files.replacing import replacing, write_advice
from farthing.lab.facts import model_hash
from farthing.lab.report.stored import section_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from farthing.lab.subject import Subject
    from farthing.lab.table import Section

_VERSION = 3
_KEPT_FILES = 16
"""Of runs that were never gone on with, the latest so many are kept."""


def folder() -> Path:
    """Where unfinished runs lie."""
    return models_folder().parent / "lab"


def depends_on(subject: Subject, command: str) -> dict[str, Any]:
    """Everything that the sections of a run depend on. `command` has all settings that matter."""
    from farthing.backends.ceilings import Ceilings

    ceilings = Ceilings(1, 1 << 16)
    tier = ceilings.tier
    ceilings.close()
    return {
        **subject.provenance(),
        "isa": tier,
        "command": command,
        "seed": subject.seed,
        "texts": subject.texts_digest,
        "other models": [_other_model(each) for each in (subject.draft, subject.student)],
        "source": source_digest(),
    }


def source_digest() -> str:
    """Of every Python file of the package: a section that is measured otherwise is another one."""
    digest = blake2b(digest_size=16)
    package = Path(farthing.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def alone() -> Iterator[None]:
    """While the block runs, no other run of this user's measures here: each would slow the other.

    Raises `FarthingError` where one does, and where the folder cannot be used.
    """
    path = folder() / ".lock"
    busy = FarthingError(
        "another `farthing lab all` is measuring on this machine, and each would slow the other: "
        "wait until it is done"
    )
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock = take(path, busy)
    except OSError as error:
        raise FarthingError(
            f"{write_advice(path, error)} (FARTHING_CACHE names another)"
        ) from error
    with lock:
        yield


class WorkFile:
    """The finished sections of one run, by name. Not for several at once: see `alone`."""

    def __init__(self, dependencies: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Reads what is there, unless `fresh`. What cannot be read is as if it were not there."""
        self._dependencies = json.loads(json.dumps(dependencies))
        name = blake2b(json.dumps(dependencies, sort_keys=True).encode(), digest_size=16)
        self.path = folder() / f"{name.hexdigest()}.json"
        self.sections: dict[str, Section] = {}
        self.started = now()
        if fresh:
            self.discard()
        else:
            self._read()

    def add(self, section: Section) -> None:
        """Returns when the section is on disk. Raises `FarthingError` where it cannot be."""
        self.sections[section.name] = section
        content = {
            "version": _VERSION,
            "depends_on": self._dependencies,
            "started": self.started,
            "sections": [each.as_json() for each in self.sections.values()],
        }
        with replacing(self.path) as file:
            file.write(json.dumps(content).encode())
        _prune()

    def discard(self) -> None:
        """Nothing is kept of the run."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            found = read_json_object(self.path)
            if found["version"] != _VERSION or found["depends_on"] != self._dependencies:
                return
            stored = found["sections"]
            if not isinstance(stored, list):
                return
            sections = [section_of(each) for each in stored]
            self.started = str(found["started"])
        except (FileFormatError, LookupError, TypeError, ValueError, OSError):
            return
        self.sections = {section.name: section for section in sections}


def _other_model(name: str | None) -> str | None:
    """The hash of a model at a path; what is named in a catalog or a hub is known by its name."""
    if name is None:
        return None
    path = Path(name).expanduser()
    return model_hash(path) if path.exists() else name


def now() -> str:
    """The time, as ISO 8601 says, in UTC and to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _prune() -> None:
    with suppress(OSError):
        files = sorted(folder().glob("*.json"), key=lambda each: each.stat().st_mtime)
        for path in files[:-_KEPT_FILES]:
            path.unlink(missing_ok=True)
