"""A disk that is full, a file that is locked, damaged or somebody else's, and kill -9."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.threads import eventually
from farthing.core import FarthingError, RequestError
from farthing.serve.places import refuse_places, usage_in_memory
from farthing.serve.settings import Settings
from farthing.serve.usage import open_usage, total
from serve.server import serving
from serve.test_usage import EVER, kept, record

if TYPE_CHECKING:
    from farthing.serve.state import ServerState
    from farthing.serve.usage import Usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.sqlite"


def test_a_full_disk_loses_nothing_and_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kept(path) as usage:
        usage.finished(record())
        assert usage.flush()
        connection = usage._file._open()
        connection.execute("PRAGMA max_page_count = 4")
        keys = [f"key-{number}-{'x' * 200}" for number in range(60)]
        for key in keys:
            usage.finished(record(key))
        assert not usage.flush()
        usage._file._open().execute("PRAGMA max_page_count = 4")
        assert not usage.flush()
        assert usage.failures == 2
        assert sum("cannot be written" in line for line in caplog.messages) == 1
        # What is not on disk is reported all the same.
        assert total(usage.report(*EVER)).requests == 61
    assert usage.lost == 0
    with kept(path) as usage:
        assert total(usage.report(*EVER)).requests == 61


def test_usage_that_never_could_be_written_is_counted_and_logged_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    with kept(file / "usage.sqlite") as usage:
        usage.finished(record())
        usage.finished(record())
        assert not usage.flush()
        with pytest.raises(FarthingError, match="cannot be read"):
            usage.report(*EVER)
    assert usage.lost == 2
    assert (
        "lost usage of 2026-03-05, key a, model: 2 requests, 20 tokens of prompts (8 cached), "
        "10 generated, 18.000 seconds, cost 0.010000" in caplog.text
    )


def full(usage: Usage) -> None:
    """From now on the disk has no room for another page of the database."""
    opened = usage._file._open

    def opening() -> sqlite3.Connection:
        connection = opened()
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    usage._file._open = opening  # type: ignore[method-assign]


def many(usage: Usage, count: int = 60) -> None:
    for number in range(count):
        usage.finished(record(f"key-{number}-{'x' * 200}"))


def test_what_a_full_disk_kept_off_is_left_beside_and_added_once_by_the_next_start(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kept(path) as usage:
        usage.finished(record())
        assert usage.flush()
        full(usage)
        many(usage)
    assert (usage.lost, usage.failures > 1) == (0, True)
    left = usage.spilled
    assert left is not None
    assert left.stat().st_mode & 0o777 == 0o600
    assert left.name in caplog.text
    copy = left.read_bytes()
    with kept(path) as usage:
        full(usage)
        # Not yet in the database, and reported all the same.
        assert total(usage.report(*EVER)).requests == 61
    assert left.exists()
    for _ in range(2):
        with kept(path) as usage:
            assert total(usage.report(*EVER)).requests == 61
        assert not left.exists()
        left.write_bytes(copy)  # as if the process had been killed before it was deleted


def test_the_last_usage_waits_for_a_disk_that_has_room_again(path: Path) -> None:
    with kept(path) as usage:
        usage.finished(record())
        assert usage.flush()
        usable = usage._file._open
        full(usage)
        many(usage)
        assert not usage.flush()

        def cleared() -> None:
            usage._file._open = usable  # type: ignore[method-assign]

        timer = threading.Timer(0.4, cleared)
        timer.start()
        usage.close(patience=20)
        timer.join()
    assert (usage.lost, usage.spilled) == (0, None)
    with kept(path) as usage:
        assert total(usage.report(*EVER)).requests == 61


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"version": 2, "id": "a", "usage": []}',
        '{"version": 1, "id": 5, "usage": []}',
        '{"version": 1, "id": "a", "usage": [["2026-03-05", "k", "m", 1, 1, 1, 1, 1e999, 0]]}',
        '{"version": 1, "id": "a", "usage": [["2026-03-05", "k", "m", -1, 1, 1, 1, 1, 0]]}',
        '{"version": 1, "id": "a", "usage": [["yesterday", "k", "m", 1, 1, 1, 1, 1, 0]]}',
        '{"version": 1, "id": "a", "usage": [["2026-03-05", 1, "m", 1, 1, 1, 1, 1, 0]]}',
        '{"version": 1, "id": "a", "usage": [[]]}',
    ],
    ids=range(11),
)
def test_a_spill_that_is_not_as_it_was_left_is_neither_added_nor_deleted(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = path.with_name(f"{path.name}.unwritten-0.json")
    left.write_text(text)
    with kept(path) as usage:
        assert usage.report(*EVER) == []
    assert left.exists()
    assert "is not added" in caplog.text


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file/usage.sqlite", "file is no folder"),
        ("folder", "it is no file"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_place_where_usage_cannot_be_kept_is_refused_before_anything_is_made(
    tmp_path: Path, place: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    settings = Settings(usage_store=str(tmp_path / place))
    with pytest.raises(RequestError, match=f"{said}.*--usage-store off"):
        refuse_places(settings)
    assert sorted(tmp_path.rglob("*")) == before
    refuse_places(Settings(usage_store=str(tmp_path / "new" / "folders" / "usage.sqlite")))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_prefix_store_is_a_file_and_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in ("pipe", "", "none/store"):
        with pytest.raises(RequestError, match="prefix_store is"):
            refuse_places(Settings(prefix_store=str(tmp_path / place), usage_store=None))
    refuse_places(Settings(prefix_store=str(tmp_path / "store"), usage_store=None))


def test_a_prefix_store_takes_the_place_of_no_other_file(tmp_path: Path) -> None:
    named = Settings(prefix_store=str(tmp_path / "store"), usage_store=None)
    (tmp_path / "store").write_bytes(b"a thesis")
    with pytest.raises(RequestError, match="would be overwritten: name another file"):
        refuse_places(named)
    for own in (b"", b"FARTHING and what follows"):
        (tmp_path / "store").write_bytes(own)
        refuse_places(named)


def test_a_place_that_only_seems_writable_is_refused_when_it_is_opened() -> None:
    with pytest.raises(RequestError, match="usage_store is /proc/none/usage.sqlite"):
        open_usage(Settings(usage_store="/proc/none/usage.sqlite"), "model")


@pytest.mark.parametrize("home", ["absent", "file", "/proc", "diary"])
def test_where_nobody_named_a_place_usage_is_kept_in_memory_and_a_warning_logged(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "diary" / ".local" / "state" / "farthing"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "usage.sqlite")) as other, other:
        other.execute("CREATE TABLE diary (text)")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("HOME", str(tmp_path / home))
    refuse_places(Settings())
    with caplog.at_level(logging.WARNING):
        usage = open_usage(Settings(), "model")
    assert usage is not None
    assert usage.path is None
    for _ in range(2):
        usage.finished(record())
        assert usage.flush()
    assert total(usage.report(*EVER)).requests == 2
    usage.close()
    assert sorted(tmp_path.rglob("*")) == before
    (told,) = caplog.records
    assert "in memory only" in told.getMessage()
    assert "--usage-store" in told.getMessage()


def test_a_home_that_can_be_written_has_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert usage_in_memory(Settings()) is None
    usage = open_usage(Settings(), "model")
    assert usage is not None
    usage.close()
    assert usage.path == tmp_path / ".local" / "state" / "farthing" / "usage.sqlite"
    assert usage.path.exists()


def test_a_user_without_a_home_is_told_so_of_a_place_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert usage_in_memory(Settings()) is not None
    refuse_places(Settings())
    for settings in (Settings(usage_store="~/a"), Settings(prefix_store="~/a")):
        with pytest.raises(RequestError, match="is ~/a, and there is no home folder"):
            refuse_places(settings)


def test_a_locked_file_is_no_reason_not_to_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.serve.usage_file._BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        usage = open_usage(Settings(usage_store=str(path)), "model")
        assert usage is not None
        usage.finished(record())
        other.rollback()
        usage.close()
    assert (usage.lost, usage.spilled) == (0, None)


def test_a_locked_file_is_waited_for_and_the_server_answers_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.serve.usage_file._BUSY_SECONDS", 0.05)
    with kept(path, flush_seconds=0.05) as usage:
        usage.finished(record())
        assert usage.flush()

        def prepared(state: ServerState) -> None:
            state.usage = usage

        with closing(sqlite3.connect(path)) as other, serving(prepare=prepared) as server:
            other.execute("BEGIN IMMEDIATE")
            assert server.chat(max_tokens=2).status_code == 200
            assert eventually(lambda: usage.failures > 1)
            assert server.chat(max_tokens=2).status_code == 200
            assert server.http.get("/usage").status_code == 200
            other.rollback()
            assert eventually(lambda: total(usage.report(*EVER)).requests == 3 and usage.flush())
    with kept(path) as usage:
        assert total(usage.report(*EVER)).requests == 3


@pytest.mark.parametrize("damage", ["garbage", "cut", "middle"])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kept(path) as usage:
        for number in range(300):
            usage.finished(record(f"key-{number}"))
    whole = path.read_bytes()
    path.write_bytes(
        {
            "garbage": b"not a database at all" * 100,
            "cut": whole[:5000],
            "middle": whole[:4096] + os.urandom(len(whole) - 4096),
        }[damage]
    )
    with kept(path) as usage:
        usage.finished(record())
        assert usage.flush()
        assert usage.set_aside == 1
        assert total(usage.report(*EVER)).requests == 1
    [aside] = [each for each in path.parent.iterdir() if "damaged" in each.name]
    assert aside.name in caplog.text


def test_damage_that_is_found_while_reading_is_told_and_not_met_again(path: Path) -> None:
    with kept(path) as usage:
        for number in range(300):
            usage.finished(record(f"key-{number}"))
    path.write_bytes(path.read_bytes()[:4096] + bytes(50_000))
    with kept(path) as usage:
        with pytest.raises(FarthingError, match="cannot be read now"):
            usage.report(*EVER)
        assert usage.report(*EVER) == []
        assert usage.set_aside == 1


def test_another_programs_database_is_not_touched(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE diary (text)")
    before = path.read_bytes()
    with kept(path) as usage, caplog.at_level(logging.ERROR):
        usage.finished(record())
        assert not usage.flush()
    assert path.read_bytes() == before
    assert "not a file of usage" in caplog.text
    assert (usage.lost, usage.spilled is not None) == (0, True)
    with pytest.raises(RequestError, match="not a file of usage"):
        open_usage(Settings(usage_store=str(path)), "model")
    assert path.read_bytes() == before


_WRITER = """
import sys
from pathlib import Path
from serve.test_usage import kept, record
with kept(Path(sys.argv[1]), flush_seconds=0.01) as usage:
    for number in range(10**9):
        usage.finished(record())
        if number % 50 == 0:
            usage.flush()
            print(number + 1, flush=True)
"""


def test_a_process_that_is_killed_leaves_what_was_written(path: Path) -> None:
    folders = os.pathsep.join(each for each in sys.path if each)
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": folders},
        text=True,
    )
    assert writer.stdout is not None
    promised = 0
    with writer.stdout as lines:
        for _ in range(8):
            promised = int(lines.readline())
        writer.send_signal(signal.SIGKILL)
        promised = max([promised, *map(int, lines.read().split()[:-1])])
    assert writer.wait() == -signal.SIGKILL
    with kept(path) as usage:
        assert total(usage.report(*EVER)).requests >= promised
        usage.finished(record())
        assert usage.flush()
        assert usage.set_aside == 0
