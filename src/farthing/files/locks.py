"""A lock on a file: one process has it at a time, and it ends with its process in any case."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farthing.core import FarthingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO


def try_lock(file: BinaryIO | int) -> bool:
    """Takes the lock of an open file or folder, until it is closed; False where another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(file: BinaryIO | int, path: Path) -> bool:
    """Whether an open file is what `path` names: it may have been renamed or removed since."""
    descriptor = file if isinstance(file, int) else file.fileno()
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def take(path: Path, busy: FarthingError | Callable[[], object], mode: int = 0o600) -> BinaryIO:
    """Opens the file, made with `mode` where there is none and never through a link, with its lock.

    The lock is held until the file is closed. Where another process has it, `busy` is raised, if it
    is an error; else it is called, and the lock waited for. Raises `OSError`.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode), "r+b")
        try:
            if not try_lock(file):
                if isinstance(busy, FarthingError):
                    raise busy
                busy()
                fcntl.flock(file, fcntl.LOCK_EX)
            if is_at(file, path):
                return file
        except BaseException:
            file.close()
            raise
        # Whoever had it before gave it another name, or removed it.
        file.close()


@contextmanager
def locked(
    path: Path, busy: FarthingError | Callable[[], object], mode: int = 0o600
) -> Iterator[BinaryIO]:
    """As `take`, while the block runs."""
    with take(path, busy, mode) as file:
        try:
            yield file
        finally:
            # A process forked meanwhile has the file open, too.
            fcntl.flock(file, fcntl.LOCK_UN)
