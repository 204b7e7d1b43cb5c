"""Where a model that is being written stands until it is whole, and what may be replaced by it."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.files.replacing import write_advice
from farthing.files.safetensors import SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_output(out: Path, folder: bool, force: bool) -> None:
    """Raises `FarthingError` when a file or `folder` cannot or must not be written to `out`.

    With `force` a file may be replaced by a file, and the folder of a model (model.safetensors and
    other files, no folders) by a folder.
    """
    if not out.parent.is_dir():
        raise FarthingError(
            f"there is no folder {out.parent} to write {out.name} to: make it first"
        )
    if not os.path.lexists(out):
        return
    if not force:
        raise FarthingError(f"{out} exists: choose another name, or replace it with --force")
    if folder and not (out.is_dir() and _is_model_folder(out)):
        raise FarthingError(
            f"{out} is no folder that holds a model and nothing else, so --force does not replace "
            "it: choose another name"
        )
    if not folder and out.is_dir():
        raise FarthingError(f"{out} is a folder, and the result a file: choose another name")


def check_room(out: Path, needed: int) -> None:
    """Raises `FarthingError` when the disk of `out` has less than `needed` bytes free."""
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise FarthingError(
            f"{out} needs {needed / 1e6:,.1f} MB and its disk has {free / 1e6:,.1f} MB free: make "
            "room, or write to another disk"
        )


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Gives a path beside `out` for the file or folder to be made, which then takes its place.

    When the block fails or is interrupted, nothing of it remains and `out` is as it was.
    Raises `FarthingError` in place of an `OSError`.
    """
    # Named after this process: what stands there was left by one that is gone.
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        remove(partial)
        yield partial
        put_in_place(partial, out)
    except OSError as error:
        raise FarthingError(write_advice(out, error)) from error
    finally:
        remove(partial)


def put_in_place(made: Path, out: Path) -> None:
    """Gives the file or folder `made` the name `out`; what had it is gone, or still has it."""
    if not made.is_dir():
        made.replace(out)
        return
    # A folder cannot be renamed over another. The name is this process's: what stands there was
    # left by one that is gone.
    replaced = out.with_name(f".{out.name}.{os.getpid()}.replaced")
    remove(replaced)
    if os.path.lexists(out):
        out.rename(replaced)
    try:
        made.rename(out)
    except BaseException:
        if os.path.lexists(replaced):
            replaced.rename(out)
        raise
    remove(replaced)


def remove(path: Path) -> None:
    """Makes sure that nothing has that name: a link goes, and what it points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_model_folder(folder: Path) -> bool:
    return (folder / SINGLE).is_file() and all(entry.is_file() for entry in folder.iterdir())
