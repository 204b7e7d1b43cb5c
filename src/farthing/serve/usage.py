"""What each key used: tokens, seconds of the machine and money, by day and model, in SQLite.

Requests are added up in memory and written by a thread of their own, so the event loop never waits
for a disk. What was added is on disk `flush_seconds` later at most, and when the server ends; a
process that is killed loses that much. Where a write fails (the disk is full, another process has
the file locked), nothing is lost: it stays in memory and is written when that goes again. If it
does not go before the server has ended, it is left in a file beside, which the next start adds
(`usage_spill.py`); if not even that goes, the log tells all of it, line by line. A file that is
damaged is set aside under another name, and a new one begun. Each of these is logged, and counted
in the metrics.

No text is in the file, and only its owner can read it. Where nobody named one and the usual place
cannot be written, usage is kept in memory until the server ends; the log, GET /usage and the page
say so.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import FarthingError, RequestError
from farthing.serve.log import tell
from farthing.serve.places import file_at, kept_in_memory, unusable, usage_in_memory
from farthing.serve.settings import USUAL_USAGE_STORE
from farthing.serve.usage_file import DamagedError, Row, UsageFile, Used
from farthing.serve.usage_spill import spill, spills_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from farthing.serve.settings import Settings
    from farthing.serve.state import RequestRecord

log = logging.getLogger("farthing.serve")

_CLOSE_SECONDS = 5.0
_AGAIN_SECONDS = 0.25

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}
"""Errors of SQLite that are over when another process, or whoever fills the disk, is done."""


class Usage:
    """The usage of all keys of a server, in the file `path`; None keeps it in memory.

    `clock` is in seconds of the epoch.

    `failures` counts writes that did not go, `set_aside` files that were damaged, and `lost` the
    requests that were never written, which `close` logs. `spilled` is the file that `close` left.
    """

    def __init__(
        self,
        path: Path | None,
        model: str,
        *,
        price_per_hour: float,
        flush_seconds: float,
        most_days: int,
        most_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.failures = 0
        self.set_aside = 0
        self.lost = 0
        self.spilled: Path | None = None
        self._model = model
        self._price = price_per_hour / 3600
        self._flush_seconds = flush_seconds
        self._file = UsageFile(path, most_days, most_bytes)
        self._clock = clock
        self._pending: dict[Row, Used] = {}
        self._pending_lock = threading.Lock()
        self._some = threading.Event()
        self._ending = threading.Event()
        self._failing = False
        self._closed = False
        self._spills = [] if path is None else spills_beside(path)
        # Whoever writes or reads the file holds this.
        self._file_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="farthing-usage", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Makes the file where there is none. Waits for the disk.

        Raises `RequestError` where usage could never be kept there; a disk that is full, or a file
        that another process has locked, is no reason.
        """
        with self._file_lock:
            try:
                try:
                    self._file.open()
                except DamagedError as damage:
                    self._set_aside(damage)
                    self._file.open()
            except (sqlite3.Error, OSError, DamagedError) as error:
                self._file.close()
                if self.path is not None and not _is_passing(error):
                    raise unusable(self.path, str(error)) from error
        if self._spills:
            self.flush()

    def finished(self, record: RequestRecord) -> None:
        """Adds a request that was accepted. Waits for no disk."""
        if not record.prompt_tokens:
            return
        day = datetime.fromtimestamp(record.received, UTC).date().isoformat()
        used = Used(
            1,
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
            record.machine_seconds,
            record.machine_seconds * self._price,
        )
        self._add({(day, record.key, self._model): used})
        self._some.set()

    def report(self, since: date, until: date, key: str | None = None) -> list[tuple[Row, Used]]:
        """What was used from the day `since` to the day `until`, by one key or by all.

        Waits for the disk. Raises `FarthingError` where the file cannot be read.
        """
        self.flush()
        with self._file_lock:
            try:
                rows = self._file.read(since, until, key)
            except (sqlite3.Error, OSError, DamagedError) as error:
                if isinstance(error, DamagedError):
                    with suppress(OSError):
                        self._set_aside(error)
                raise FarthingError(
                    f"the usage in {self.path} cannot be read now ({error}): ask again later"
                ) from error
            unwritten = self._unwritten(str(since), str(until), key)
        for row, used in unwritten.items():
            rows[row] = rows.get(row, Used()) + used
        return sorted(rows.items())

    def flush(self) -> bool:
        """Writes what there is; False where that does not go now."""
        with self._file_lock:
            with self._pending_lock:
                pending, self._pending = self._pending, {}
            if not pending and not self._spills:
                return True
            try:
                self._take_spills()
                self._write(pending)
            except (sqlite3.Error, OSError, DamagedError) as error:
                self._add(pending)
                if self.path is not None:
                    self._file.close()
                self.failures += 1
                if not self._failing:
                    log.error(
                        "usage cannot be written to %s (%s): it is kept in memory, and tried again",
                        self.path,
                        error,
                    )
                self._failing = True
                return False
            if self._failing:
                log.warning("usage is written to %s again", self.path)
            self._failing = False
            return True

    def close(self, patience: float = _CLOSE_SECONDS) -> None:
        """Writes what there is, and ends; may be called again.

        What cannot be written within so many seconds goes into a file beside, and where that does
        not go either, it is logged entry by entry, and lost.
        """
        if self._closed:
            return
        self._closed = True
        self._ending.set()
        self._some.set()
        self._thread.join(_CLOSE_SECONDS)
        deadline = time.monotonic() + patience
        while not self.flush() and time.monotonic() < deadline:
            time.sleep(_AGAIN_SECONDS)
        with self._file_lock:
            self._file.close()
        with self._pending_lock:
            left, self._pending = self._pending, {}
        if left and self.path is not None:
            self._leave(self.path, left)

    def _leave(self, path: Path, left: dict[Row, Used]) -> None:
        try:
            self.spilled = spill(path, left)
        except OSError as error:
            self.lost = sum(left.values(), Used()).requests
            log.error(
                "the usage of %d requests can be written neither to %s nor beside it (%s) and is "
                "lost; this is all of it:",
                self.lost,
                path,
                error,
            )
            for (day, key, model), used in left.items():
                tell(
                    "usage_lost",
                    f"lost usage of {day}, key {key or 'anonymous'}, {model}: {used.requests} "
                    f"requests, {used.prompt_tokens} tokens of prompts ({used.cached_tokens} "
                    f"cached), {used.generated_tokens} generated, {used.machine_seconds:.3f} "
                    f"seconds, cost {used.cost:.6f}",
                    level=logging.ERROR,
                    day=day,
                    key=key,
                    model=model,
                    **asdict(used),
                )
        else:
            log.warning(
                "usage could not be written to %s: it is in %s, and the next start adds it",
                path,
                self.spilled,
            )

    def _take_spills(self) -> None:
        """Adds what earlier servers left, and deletes their files."""
        while self._spills:
            self._file.add(self._spills[0].rows, self._spills[0].id)
            taken = self._spills.pop(0)
            log.warning("usage that an earlier server left in %s is added", taken.path)
            with suppress(OSError):
                taken.path.unlink()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._some.wait()
            self._some.clear()
            self._ending.wait(self._flush_seconds)
            if not self.flush():
                self._some.set()

    def _add(self, some: dict[Row, Used]) -> None:
        with self._pending_lock:
            for row, used in some.items():
                self._pending[row] = self._pending.get(row, Used()) + used

    def _unwritten(self, since: str, until: str, key: str | None) -> dict[Row, Used]:
        found: dict[Row, Used] = {}
        with self._pending_lock:
            for rows in (self._pending, *(each.rows for each in self._spills)):
                for row, used in rows.items():
                    if since <= row[0] <= until and key in (None, row[1]):
                        found[row] = found.get(row, Used()) + used
        return found

    def _write(self, some: dict[Row, Used]) -> None:
        try:
            self._file.add(some)
        except DamagedError as damage:
            self._set_aside(damage)
            self._file.add(some)
        try:
            self._file.retain(datetime.fromtimestamp(self._clock(), UTC).date())
        except sqlite3.Error as error:
            # What was added is there, so this must not be taken for a failed write.
            log.warning("old usage cannot be deleted from %s (%s)", self.path, error)

    def _set_aside(self, damage: DamagedError) -> None:
        aside = self._file.set_aside(datetime.fromtimestamp(self._clock(), UTC))
        self.set_aside += 1
        log.error(
            "the file of usage was damaged (%s): it is set aside as %s, and a new one begun",
            damage,
            aside,
        )


def _is_passing(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def open_usage(settings: Settings, model: str) -> Usage | None:
    """The usage that the settings ask for, of a server of that model; None where it is off.

    Raises `RequestError` where usage could never be kept in the file that they name. Where that is
    the usual one, it is kept in memory, and a warning logged.
    """
    if settings.usage_store is None:
        return None

    def opened(path: Path | None) -> Usage:
        usage = Usage(
            path,
            model,
            price_per_hour=settings.price_per_hour,
            flush_seconds=settings.usage_flush_seconds,
            most_days=settings.usage_days,
            most_bytes=settings.usage_bytes,
        )
        try:
            usage.open()
        except RequestError:
            usage.close(0.0)
            raise
        return usage

    if (warning := usage_in_memory(settings)) is None:
        try:
            return opened(file_at("usage_store", settings.usage_store))
        except RequestError as error:
            if settings.usage_store != USUAL_USAGE_STORE:
                raise
            warning = kept_in_memory(str(error.__cause__))
    tell("usage_in_memory", warning, level=logging.WARNING)
    return opened(None)


def total(rows: Iterable[tuple[Row, Used]]) -> Used:
    """All together."""
    return sum((used for _, used in rows), Used())
