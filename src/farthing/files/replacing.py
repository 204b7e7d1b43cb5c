"""A file that takes the place of another when it is whole, and what to say where it cannot."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.files.locks import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, private: bool = True) -> Iterator[BinaryIO]:
    """Gives an empty file, which then takes the place of `path`.

    A `private` one is its owner's only; another may be read by whoever could read `path`, or any
    new file of this process.

    It is on disk by then. When the block fails or is interrupted, `path` is as it was and nothing
    of the new file remains; a process that is killed leaves `.<name>.partial`, which the next one
    uses. Who writes to the same path at the same time comes after the first.
    Raises `FarthingError` in place of an `OSError`.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with locked(partial, lambda: None, 0o600 if private else 0o666) as file:
            try:
                file.truncate()
                if private:
                    os.fchmod(file.fileno(), 0o600)
                elif path.exists():
                    os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)
    except OSError as error:
        raise FarthingError(write_advice(path, error)) from error


def sync_folder(folder: Path) -> None:
    """Returns when the names in the folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_advice(path: Path, error: OSError) -> str:
    """Why the system refuses to write `path`, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk of {path} is full: make room, or write to another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path} cannot be written to: choose a place that you may write to"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} for {path.name}: make it first"
    return f"{path} cannot be written ({error.strerror or error}): choose another place"
