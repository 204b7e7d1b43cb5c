"""One process has a lock at a time; whoever else wants it is refused, or waits."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from farthing.core import FarthingError
from farthing.files.locks import is_at, locked, take, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import sys
from pathlib import Path
from farthing.files.locks import take
file = take(Path(sys.argv[1]), lambda: None)
print("locked", flush=True)
sys.stdin.readline()
"""

BUSY = FarthingError("another process is writing: wait for it")


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock until it reads a line, or is killed."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_whoever_is_late_is_refused_and_the_file_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with (
        held_elsewhere(path),
        pytest.raises(FarthingError, match="another process is writing"),
        locked(path, BUSY),
    ):
        pass
    assert path.read_text() == "content"


def test_whoever_waits_is_told_first_and_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with held_elsewhere(path) as holder:

        def told() -> None:
            assert holder.stdin is not None
            assert holder.poll() is None
            holder.stdin.write("\n")
            holder.stdin.close()

        with locked(path, told):
            assert holder.wait(10) == 0


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with held_elsewhere(path) as holder:
        holder.kill()
        holder.wait()
        with locked(path, BUSY):
            pass


@pytest.mark.parametrize("way", ["renamed", "removed"])
def test_what_got_another_name_meanwhile_is_no_longer_the_file(tmp_path: Path, way: str) -> None:
    """Else two would write: one to the file that had the name, one to that which has it now."""
    path = tmp_path / "file"
    with held_elsewhere(path) as holder:

        def told() -> None:
            if way == "renamed":
                path.rename(tmp_path / "other")
            else:
                path.unlink()
            holder.kill()

        with locked(path, told) as file:
            assert is_at(file, path)
            assert file.read() == b""
            file.write(b"new")
    assert path.read_bytes() == b"new"


def test_a_lock_is_let_go_though_a_forked_process_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with locked(path, BUSY) as file:
        copy = os.dup(file.fileno())  # as a fork has it
    with locked(path, BUSY):
        pass
    os.close(copy)


def test_a_lock_lasts_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = take(path, BUSY)
    with pytest.raises(FarthingError, match="wait for it"):
        take(path, BUSY)
    file.close()
    take(path, BUSY).close()


def test_a_folder_can_be_locked_too(tmp_path: Path) -> None:
    one, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert try_lock(one)
    assert not try_lock(other)
    assert is_at(one, tmp_path)
    os.close(one)
    assert try_lock(other)
    os.close(other)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("content")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="file"):
        take(tmp_path / "file", BUSY)
    assert (tmp_path / "victim").read_text() == "content"
