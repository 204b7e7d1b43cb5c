"""A small subject for the laboratory, which says nothing while it is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.engine.load import LoadProgress
from farthing.lab.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path


def subject_at(path: Path | str, **settings: Any) -> Subject:
    settings = {"rounds": 2, "threads": 1, **settings}
    return Subject(str(path), progress=LoadProgress(), **settings)
