"""The file of usage: sums by day, key and model in SQLite, with an end to its age and size.

Its log of writes (WAL) lets a killed process leave a readable file behind.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

log = logging.getLogger("farthing.serve")

_VERSION = 1
_APPLICATION = 0x66617274
"""By this a file is known to be one of these."""

_BUSY_SECONDS = 1.0
_LOG_BYTES = 1 << 20
_LOG_PAGES = 64

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    machine_seconds REAL NOT NULL,
    cost REAL NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID
"""
_SCHEMA_OF_SPILLS = "CREATE TABLE IF NOT EXISTS spilled (id TEXT PRIMARY KEY) WITHOUT ROWID"
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, key, model) DO UPDATE SET
    requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    generated_tokens = generated_tokens + excluded.generated_tokens,
    machine_seconds = machine_seconds + excluded.machine_seconds,
    cost = cost + excluded.cost
"""
_READ = """
SELECT day, key, model, requests, prompt_tokens, cached_tokens, generated_tokens, machine_seconds,
    cost
FROM usage WHERE day BETWEEN ? AND ? AND (? IS NULL OR key = ?) ORDER BY day, key, model
"""


class DamagedError(Exception):
    """The file is not what was written."""


@dataclass(frozen=True)
class Used:
    """What a key used of a model in a day (in UTC), or in several.

    `cached_tokens` of the prompts needed no computing. `machine_seconds` are its share of the time
    that steps took (see `engine/charge.py`), and `cost` is that at the price of the machine when
    it was used: time in which nobody asked is nobody's.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    machine_seconds: float = 0.0
    cost: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.machine_seconds + other.machine_seconds,
            self.cost + other.cost,
        )


Row = tuple[str, str, str]
"""Day, key and model."""


class UsageFile:
    """Used by one thread at a time. What it raises besides is `sqlite3.Error` or `OSError`.

    Without a `path` it is in memory, until it is closed.
    """

    def __init__(self, path: Path | None, most_days: int, most_bytes: int) -> None:
        """Opens nothing yet."""
        self.path = path
        self._most_days = most_days
        self._most_bytes = most_bytes
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Makes the file where there is none.

        Raises `DamagedError` where it is damaged, and `sqlite3.OperationalError` for another's.
        """
        with _telling_damage():
            self._open()

    def add(self, some: Mapping[Row, Used], spill: str | None = None) -> None:
        """Adds to what is there, all or nothing; it is on disk when this returns.

        What came from the `spill` of that id is added once, however often it is tried. Raises
        `DamagedError` where the file is damaged.
        """
        with _telling_damage():
            connection = self._open()
            with connection:
                if spill is not None:
                    taken = connection.execute("INSERT OR IGNORE INTO spilled VALUES (?)", (spill,))
                    if not taken.rowcount:
                        return
                connection.executemany(_ADD, [(*row, *astuple(used)) for row, used in some.items()])

    def read(self, since: date, until: date, key: str | None) -> dict[Row, Used]:
        """What is there of the days from `since` to `until`, of one key or of all.

        Raises `DamagedError` where the file is damaged.
        """
        with _telling_damage():
            bounds = (str(since), str(until), key, key)
            rows = self._open().execute(_READ, bounds).fetchall()
        return {(row[0], row[1], row[2]): Used(*row[3:]) for row in rows}

    def retain(self, today: date) -> None:
        """Deletes the days that are too old, and the oldest ones while the file is too large."""
        connection = self._open()
        oldest = str(today - timedelta(days=self._most_days))
        with connection:
            gone = connection.execute("DELETE FROM usage WHERE day < ?", (oldest,)).rowcount
        if gone:
            log.info("usage before %s is deleted: %d entries", oldest, gone)
        shrunk = bool(gone)
        while _bytes(connection) > self._most_bytes:
            first, last = connection.execute("SELECT min(day), max(day) FROM usage").fetchone()
            if first is None or first == last:
                break
            with connection:
                connection.execute("DELETE FROM usage WHERE day = ?", (first,))
            log.warning(
                "usage of %s is deleted: all of it may have %d bytes", first, self._most_bytes
            )
            shrunk = True
            connection.execute("PRAGMA incremental_vacuum").fetchall()
        if shrunk:
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """It is opened again when it is used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def set_aside(self, now: datetime) -> Path:
        """Gives a damaged file another name, and returns that."""
        if self.path is None:
            raise OSError("what is in memory has no name")
        self.close()
        stamp = now.strftime("%Y%m%dT%H%M%S")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                source.rename(aside.with_name(aside.name + suffix))
        return aside

    def _open(self) -> sqlite3.Connection:
        """The connection, made anew where there is none. Raises `sqlite3.Error` or `OSError`."""
        if self._connection is not None:
            return self._connection
        if self.path is not None:
            _make(self.path)
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=_BUSY_SECONDS,
            isolation_level="IMMEDIATE",
            check_same_thread=False,
        )
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


def _make(path: Path) -> None:
    """Makes the file for its owner alone; SQLite gives its other files the same mode."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


@contextmanager
def _telling_damage() -> Iterator[None]:
    """A database that is full or locked is an `OperationalError`; other errors are damage."""
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise DamagedError(str(error)) from error


def _prepare(connection: sqlite3.Connection) -> None:
    """Makes an empty file one of these. Raises `sqlite3.OperationalError` for another's file."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and (application != _APPLICATION or version != _VERSION):
        raise sqlite3.OperationalError("it is not a file of usage, or of another version")
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}").fetchall()
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchall()
    with connection:
        connection.execute(_SCHEMA)
        connection.execute(_SCHEMA_OF_SPILLS)


def _bytes(connection: sqlite3.Connection) -> int:
    with closing(connection.execute("PRAGMA page_count")) as pages:
        [count] = pages.fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    return int(count) * int(size)
