"""Temporary folders that do not outlive their process, not even one that is killed.

Each is locked by who made it, and a lock ends with its process: so whoever comes next removes those
that nobody holds.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.files.locks import is_at, try_lock
from farthing.files.replacing import write_advice

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "farthing-lab-"


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder under the system's temporary one, which is removed when the block ends.

    Removes first what processes of this user that were killed have left. Raises `FarthingError`
    where there can be no folder.
    """
    try:
        place = Path(gettempdir())
        _remove_stale(place)
        folder, descriptor = _locked(place)
    except OSError as error:
        where = Path(error.filename or "the temporary folder")
        raise FarthingError(f"{write_advice(where, error)} (TMPDIR names another)") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(place: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor whose lock it has."""
    while True:
        folder = Path(mkdtemp(prefix=_PREFIX, dir=place))
        descriptor = _lock(folder)
        if descriptor is not None:
            return folder, descriptor
        # Who removes stale folders was faster than the lock.


def _remove_stale(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """The descriptor of a folder of this user's that nobody had locked; None for any other."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        own = os.fstat(descriptor).st_uid == os.getuid()
        if own and try_lock(descriptor) and is_at(descriptor, folder):
            return descriptor
    os.close(descriptor)
    return None
