"""Where a distillation stands until it is whole: beside its result, in `.NAME.distilling`.

`settings.json` says what is being made, of which teacher, by which farthing; `schedule.json` how
many steps there are to be; `text/` holds what the teacher has written; `start/` is the student
before its first step and `checkpoint.safetensors` the last state that training had. Each of these
is there whole or not at all. So a run that was ended, however, goes on when it is asked for again.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError
from farthing.files.json_files import read_json_object
from farthing.files.locks import locked
from farthing.files.replacing import replacing, write_advice
from farthing.forge.distill_wish import told_change
from farthing.forge.output import remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

VERSION = 1

_LOCK = "lock"
_ADVICE = ": --restart throws away what is there"


class Workplace:
    """The folder of one distillation, locked by this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start = folder / "start"
        self.result = folder / "result"
        self.checkpoint = folder / "checkpoint.safetensors"
        self._schedule = folder / "schedule.json"
        (folder / "text").mkdir(exist_ok=True)

    def shard(self, number: int) -> Path:
        """Where a shard of the text lies, or will."""
        return self.folder / "text" / f"{number:05}.safetensors"

    def schedule(self) -> dict[str, Any] | None:
        """What has been decided of the steps; None before it was."""
        return read_json_object(self._schedule, _ADVICE) if self._schedule.exists() else None

    def decide(self, schedule: Mapping[str, Any]) -> None:
        """Keeps what is decided of the steps."""
        _write_json(self._schedule, schedule)


def folder_of(out: Path) -> Path:
    """The workplace of what will be `out`."""
    return out.with_name(f".{out.name}.distilling")


@contextmanager
def workplace(out: Path, settings: Mapping[str, Any], restart: bool) -> Iterator[Workplace]:
    """The workplace of `out`, as an earlier run with the same settings left it, or a new one.

    `settings` are plain JSON. With `restart` what an earlier run left is removed first. Whatever
    becomes of the block, it stays. Raises `FarthingError` where it was begun with other settings,
    naming them, where another process works there, and in place of an `OSError`.
    """
    folder = folder_of(out)
    busy = FarthingError(
        f"another process is distilling {out}: wait for it, or choose another name"
    )
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder / _LOCK, busy):
            _settle(folder, {"version": VERSION, **settings}, restart)
            yield Workplace(folder)
    except OSError as error:
        raise FarthingError(write_advice(folder, error)) from error


def _settle(folder: Path, settings: Mapping[str, Any], restart: bool) -> None:
    """Makes sure that what lies there is of these settings."""
    path = folder / "settings.json"
    wanted = json.loads(json.dumps(settings))
    if restart:
        for entry in folder.iterdir():
            if entry.name != _LOCK:
                remove(entry)
    if path.exists():
        found = read_json_object(path, _ADVICE)
        others = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        if others:
            changes = [_change(name, found.get(name), wanted.get(name)) for name in others]
            raise FarthingError(
                f"{folder} is of an unfinished run that was begun otherwise: {'; '.join(changes)}. "
                "Give the same to go on, or --restart to throw away what it has"
            )
        return
    _write_json(path, wanted)


def _change(name: str, was: object, now: object) -> str:
    match name:
        case "source":
            return "the teacher's files were others, or have changed"
        case "farthing":
            return f"it was by farthing {was}, and this is {now}"
        case "version":
            return f"its files were of version {was}, and are of {now}"
    return told_change(name, was, now)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")


def discard(out: Path) -> None:
    """Removes the workplace of what is finished."""
    shutil.rmtree(folder_of(out))
