"""The folder of fetched models: whole or absent, whoever fetches at the same time.

<cache>/models/<folder>/            a model's files and its record, farthing.json
<cache>/models/.partial/<folder>/   one being fetched; renamed when all of it is checked
<cache>/models/.locks/<folder>      held while it is fetched or removed
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from farthing.core import DownloadError, FarthingError, FileFormatError
from farthing.files.cache_place import cache_folder
from farthing.files.json_files import read_json_object
from farthing.files.locks import locked
from farthing.files.replacing import sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from farthing.files.progress import Progress

_RECORD = "farthing.json"
_RECORD_VERSION = 1


@dataclass(frozen=True)
class Record:
    """What is known of a fetched model. `open` is what to open in its folder, `.` for the folder.

    `files` gives every file's bytes: a model whose files differ is fetched again.
    """

    name: str
    source: str
    licence: str
    open: str
    files: dict[str, int]


def models_folder() -> Path:
    """`models` in the `cache_folder`, and raises as that does."""
    return cache_folder() / "models"


def find(folder_name: str) -> tuple[Record, Path] | None:
    """The record of a model that is whole, and the path to open; None where it is not."""
    folder = models_folder() / folder_name
    try:
        stored = read_json_object(folder / _RECORD)
        if stored.pop("version") != _RECORD_VERSION:
            return None
        record = Record(**stored)  # type: ignore[arg-type]
        whole = all((folder / name).stat().st_size == size for name, size in record.files.items())
        return (record, folder / record.open) if whole else None
    except (FileFormatError, OSError, KeyError, TypeError, AttributeError):
        return None


def all_records() -> list[tuple[Record, Path]]:
    """Every whole model on disk, by name. Raises `DownloadError` when none may be looked for."""
    folder = models_folder()
    with _reported(folder):
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    found = [entry for name in names if (entry := find(name)) is not None]
    return sorted(found, key=lambda entry: entry[0].name)


def fetch(folder_name: str, name: str, progress: Progress, fill: Callable[[Path], Record]) -> Path:
    """Runs `fill` on an empty folder and makes that folder the model's; returns what to open.

    `fill` puts the checked files there and returns their record. When it fails, or is interrupted,
    nothing of them remains. When another process is fetching the same model, waits for it and uses
    its result. Raises `DownloadError`, also in place of an `OSError` of `fill`.
    """
    models = models_folder()
    partial, final = models / ".partial" / folder_name, models / folder_name
    with _reported(models), _locked(folder_name, name, progress):
        found = find(folder_name)
        if found is not None:
            return found[1]
        # What a killed process left behind.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            record = fill(partial)
            text = json.dumps({"version": _RECORD_VERSION, **asdict(record)}, indent=2)
            write_durably(partial / _RECORD, text.encode())
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            sync_folder(models)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return final / record.open


def remove(folder_name: str, name: str, progress: Progress) -> int:
    """Removes a model from disk and returns the bytes that it took.

    Raises `FarthingError` when there is none, or when it cannot be removed.
    """
    models = models_folder()
    final, partial = models / folder_name, models / ".partial" / folder_name
    absent = FarthingError(f"{name} is not on disk; `farthing models` lists what is")
    with _reported(models):
        if not final.is_dir():
            raise absent
    with _reported(models), _locked(folder_name, name, progress):
        if not final.is_dir():  # another process was ahead
            raise absent
        size = sum(path.stat().st_size for path in final.rglob("*") if path.is_file())
        # Renamed first: a removal that is interrupted leaves no half model under its name.
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(exist_ok=True)
        final.rename(partial)
        shutil.rmtree(partial)
    return size


def check_room(needed: int, name: str) -> None:
    """Raises `DownloadError` when the cache's disk has less than `needed` bytes free."""
    models = models_folder()
    free = shutil.disk_usage(models).free
    if free < needed:
        raise DownloadError(
            f"{name} needs {needed / 1e6:.0f} MB on disk and {models} has {free / 1e6:.0f} MB "
            "free: make room, or set FARTHING_CACHE to a folder on another disk"
        )


def write_durably(path: Path, content: bytes) -> None:
    """Writes a small file so that it is on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(folder_name: str, name: str, progress: Progress) -> Iterator[None]:
    """One process at a time."""
    locks = models_folder() / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with locked(locks / folder_name, lambda: progress.waiting(name)):
        yield


@contextmanager
def _reported(models: Path) -> Iterator[None]:
    """Turns what the operating system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        elsewhere = "set FARTHING_CACHE to a folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = f"the disk of {models} is full: make room, or {elsewhere} on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = f"{models} may not be used ({error.strerror}): {elsewhere} of yours"
        else:
            advice = f"{models} cannot be used ({error}): {elsewhere} that can"
        raise DownloadError(advice) from error
