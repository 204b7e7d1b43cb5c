"""A disk that is full, a file that is locked, damaged or somebody else's, and kill -9."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from engine.threads import eventually
from farthing.core import FarthingError
from farthing.serve.usage import total
from serve.server import serving
from serve.test_usage import EVER, kept, record

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.serve.state import ServerState


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
    assert "usage of 2 requests (20 tokens of prompts, 10 generated" in caplog.text


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
    assert usage.lost == 1


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
