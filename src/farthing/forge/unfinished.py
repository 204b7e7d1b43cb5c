"""A model that is being written: what is done of it survives a kill, and no other command uses it.

It lies beside its destination, in a folder `.NAME.partial` of its own: the model, and a journal of
lines of JSON. The journal's first line is the command: the source's files, every setting, the
version that wrote it. Another line names the layout, and each further one a tensor that stands in
its place with the digest of its bytes. Whoever runs the same command again goes on from there,
once the bytes have proved to be those; anybody else begins anew.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError
from farthing.files.locks import take
from farthing.files.replacing import sync_folder, write_advice
from farthing.forge.output import put_in_place, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

_JOURNAL = "journal.jsonl"
_MODEL = "model"


class Unfinished:
    """What stands beside `out`: `model` is the file or folder to be made, `went_on` whether some
    of it is from a run that was killed.
    """

    def __init__(self, folder: Path, journal: BinaryIO, command: Mapping[str, Any]) -> None:
        self.model = folder / _MODEL
        self._journal = journal
        self._layout: str | None = None
        self._finished: dict[str, str] = {}
        first, *lines = _sound_lines(journal) or [{}]
        self.went_on = first == command
        if not self.went_on:
            remove(self.model)
            journal.seek(0)
            journal.truncate()
            self._write(command)
            return
        for line in lines:
            if "layout" in line:
                self._layout, self._finished = line["layout"], {}
            else:
                self._finished[line["tensor"]] = line["digest"]

    @property
    def finished(self) -> Mapping[str, str]:
        """The tensors that an earlier run has put in their places, with their digests."""
        return self._finished

    def lay(self, layout: str) -> None:
        """Says how the model will be laid out; one that was laid out otherwise is removed."""
        if self._layout != layout:
            self._finished = {}
            remove(self.model)
            self._write({"layout": layout})

    def finish_tensor(self, name: str, digest: str) -> None:
        """Remembers a tensor that stands in its place."""
        self._write({"tensor": name, "digest": digest})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._journal.write(json.dumps(line).encode() + b"\n")
        self._journal.flush()


@contextmanager
def unfinished(out: Path, command: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Gives what is done of `out` by this command, and puts it in its place when the block ends.

    `command` is plain JSON. When the block fails or is interrupted from the keyboard, nothing of it
    remains, and `out` is as it was; when the process is killed or told to end, it stays for the
    next one. Raises `FarthingError` in place of an `OSError`, and where another process writes to
    `out`.
    """
    folder = out.with_name(f".{out.name}.partial")
    try:
        with _locked(folder, out) as journal:
            # As JSON has it: tuples are lists.
            made = Unfinished(folder, journal, json.loads(json.dumps(command)))
            try:
                yield made
                put_in_place(made.model, out)
            except SystemExit:
                raise
            except BaseException:
                _remove(folder)
                raise
            _remove(folder)
            sync_folder(out.parent)
    except OSError as error:
        raise FarthingError(write_advice(out, error)) from error


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[BinaryIO]:
    """The folder's journal while nobody else has it."""
    busy = FarthingError(f"another process is writing {out}: wait for it, or choose another name")
    while True:
        folder.mkdir(exist_ok=True)
        try:
            journal = take(folder / _JOURNAL, busy)
        except FileNotFoundError:  # removed since by whoever had it
            continue
        with journal:
            yield journal
            return


def _remove(folder: Path) -> None:
    """Removes what is ours in the folder, and the folder unless somebody put more into it."""
    remove(folder / _MODEL)
    (folder / _JOURNAL).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _sound_lines(journal: BinaryIO) -> list[dict[str, Any]]:
    """The journal's lines up to one that a kill has cut short, from which on it is cut off."""
    found: list[dict[str, Any]] = []
    end = 0
    for line in journal:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        found.append(entry)
        end += len(line)
    journal.seek(end)
    journal.truncate()
    return found
