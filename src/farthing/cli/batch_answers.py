"""The file that a batch's answers go to: appended one whole line at a time, and read to go on.

An answer is written with one call when its text has ended, so a process that is killed loses none;
the disk is waited for once a second and at the end, so a power cut loses those of the last second,
and they are made again. What was torn off in the middle of a line is dropped.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError, RequestError
from farthing.files.locks import try_lock
from farthing.files.replacing import sync_folder, write_advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SYNC_SECONDS = 1.0

_LONGEST_ANSWER = 256 << 20
_BEGINNING = b'{"index": '
# What Python and others take for the end of a line, though JSON does not.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class Answers:
    """An open file of answers, which no other process writes to meanwhile.

    `done[i]` says whether the request of index i has its answer; `kept` counts those that were
    there before, `written` those since. `settings` is what the kept ones say they were made with.
    """

    def __init__(self, path: Path, digests: Sequence[str]) -> None:
        """Opens or creates the file, takes in its answers to the requests of these digests.

        Raises `RequestError` when it is no regular file, cannot be written, is being written by
        another process, or holds anything but answers to these very requests; then it is as before.
        """
        self.path = path
        self.done = bytearray(len(digests))
        self.kept = 0
        self.written = 0
        self.settings: str | None = None
        self._unsynced = False
        self._synced_at = monotonic()
        self._descriptor = _open(path)
        try:
            self._lock()
            end = self._take_in(digests)
            self._drop_after(end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, answer: dict[str, Any]) -> None:
        """Appends an answer, whose first field is its `index`.

        Raises `FarthingError` when the disk is full or fails; the file then ends with the answer
        before.
        """
        line = json.dumps(answer, ensure_ascii=False).translate(_LINE_ENDS)
        data = memoryview(line.encode() + b"\n")
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._unsynced = True
            if monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            with suppress(OSError):  # else it is dropped when the file is next read
                os.ftruncate(self._descriptor, end)
            raise FarthingError(write_advice(self.path, error)) from error
        self.done[answer["index"]] = 1
        self.written += 1

    def close(self) -> None:
        """Waits for the disk and lets the file go. Raises `FarthingError` when the disk fails."""
        try:
            if self._unsynced:
                self._sync()
        except OSError as error:
            raise FarthingError(write_advice(self.path, error)) from error
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            if try_lock(self._descriptor):
                return
        except OSError as error:
            raise FarthingError(write_advice(self.path, error)) from error
        raise RequestError(
            f"another process is writing to {self.path}: wait for it, or give another --out"
        )

    def _take_in(self, digests: Sequence[str]) -> int:
        """Marks what is answered, and returns where the last whole answer ends."""
        end = 0
        for number, line in enumerate(self._lines(), 1):
            if not line.endswith(b"\n") and _is_torn(line):
                break
            answer = _answer(line)
            if answer is None:
                raise self._refused(number, "is no answer that farthing has written")
            index, request, settings = answer
            if index >= len(digests):
                raise self._refused(number, f"answers request {index} of {len(digests)}")
            if self.done[index]:
                raise self._refused(number, f"answers request {index}, which has an answer above")
            if request != digests[index]:
                raise self._refused(
                    number,
                    f"answers request {index} as it was before its id, its prompt or its sampling "
                    "(flags of this command included) was changed",
                )
            if self.settings not in (None, settings):
                raise self._refused(number, "was made with another model or other settings")
            self.settings = settings
            self.done[index] = 1
            self.kept += 1
            end += len(line)
        return end

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self._descriptor, "rb", closefd=False) as file:
                while line := file.readline(_LONGEST_ANSWER):
                    yield line
        except OSError as error:
            raise RequestError(f"{self.path} cannot be read: {error.strerror}") from error

    def _drop_after(self, end: int) -> None:
        """Ends the file there, and with a line break."""
        try:
            os.ftruncate(self._descriptor, end)
            if end and os.pread(self._descriptor, 1, end - 1) != b"\n":
                os.write(self._descriptor, b"\n")
            os.fsync(self._descriptor)
            sync_folder(self.path.parent)
        except OSError as error:
            raise FarthingError(write_advice(self.path, error)) from error

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at = monotonic()
        self._unsynced = False

    def _refused(self, number: int, what: str) -> RequestError:
        return RequestError(
            f"{self.path}, line {number}, {what}: give another --out, or the batch that it is of"
        )


def _open(path: Path) -> int:
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            what = "is a folder" if path.is_dir() else "is no regular file"
            raise RequestError(f"{path} {what}: --out must be a file, which a later run can read")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RequestError(write_advice(path, error)) from error


def _answer(line: bytes) -> tuple[int, str, str] | None:
    """Index, digest of the request and digest of the settings; None where it is no answer."""
    entry = _parsed(line)
    if not isinstance(entry, dict):
        return None
    index, request, settings = (entry.get(name) for name in ("index", "request", "settings"))
    if type(index) is not int or index < 0 or type(request) is not str:
        return None
    return (index, request, settings) if type(settings) is str else None


def _is_torn(line: bytes) -> bool:
    """Whether the end of a file may be what is left of an answer, and is nothing of a person's.

    A file system may have lengthened the file with zeros for data that then never came.
    """
    if len(line) == _LONGEST_ANSWER:
        return False  # there is more of it
    begun = line.rstrip(b"\0")
    is_ours = begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun)
    return is_ours and _parsed(line) is None


def _parsed(line: bytes) -> object:
    """What JSON a line holds, None where none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
