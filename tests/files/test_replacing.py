"""A file is replaced by a whole one or not at all, whoever writes, fails or dies meanwhile."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import farthing
from farthing.core import FarthingError
from farthing.files.replacing import replacing

SOURCES = Path(farthing.__file__).parents[1]
# Writes half of a file, says so, and writes the rest when it is told to.
WRITER = """
import sys
from pathlib import Path
from farthing.files.replacing import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(sys.argv[2].encode() * 100_000)
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(sys.argv[2].encode() * 100_000)
print("done", flush=True)
"""


def writer(path: Path, letter: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), letter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def write(path: Path, content: bytes, then: type[BaseException] | None = None) -> None:
    with replacing(path) as file:
        file.write(content)
        if then is not None:
            raise then


def test_a_place_that_is_none_is_told_in_words_and_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path, problem in (
        (tmp_path / "none" / "p.svg", f"there is no folder {tmp_path / 'none'} for p.svg"),
        (tmp_path / "file" / "p.svg", f"there is no folder {tmp_path / 'file'} for p.svg"),
        (tmp_path / "folder", f"{tmp_path / 'folder'} cannot be written (Is a directory)"),
        (tmp_path / ("x" * 250), "cannot be written (File name too long)"),
    ):
        with pytest.raises(FarthingError) as refusal:
            write(path, b"new")
        assert problem in str(refusal.value)
        assert "Errno" not in str(refusal.value)
        assert ".partial" not in str(refusal.value)


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old and longer"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("private", "before", "after"),
    [(True, None, 0o600), (True, 0o640, 0o600), (False, None, 0o644), (False, 0o640, 0o640)],
)
def test_who_may_read_a_file_is_its_owner_or_whoever_could(
    tmp_path: Path, private: bool, before: int | None, after: int
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_text("old")
        path.chmod(before)
    mask = os.umask(0o022)
    try:
        with replacing(path, private=private) as file:
            file.write(b"new")
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == after


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, FarthingError])
def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write(path, b"new", then=error)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_clears_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    process = writer(path, "k")
    assert says(process) == "half"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.read_bytes() == b"old"
    assert (tmp_path / ".file.partial").stat().st_size == 100_000
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_processes_that_write_at_once_the_last_whole_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first = writer(path, "a")
    assert says(first) == "half"
    second = writer(path, "b")
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.5)
    first.communicate("\n")
    assert path.read_bytes() == b"a" * 200_000
    assert says(second) == "half"
    assert path.read_bytes() == b"a" * 200_000
    second.communicate("\n")
    assert path.read_bytes() == b"b" * 200_000
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_dies_lets_the_next_one_go_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first = writer(path, "a")
    assert says(first) == "half"
    second = writer(path, "b")
    first.kill()
    first.communicate()
    assert second.communicate("\n")[0].split() == ["half", "done"]
    assert path.read_bytes() == b"b" * 200_000
    assert list(tmp_path.iterdir()) == [path]


def test_many_threads_never_mix_what_they_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + number]) * 50_000 for number in range(8)]
    threads = [threading.Thread(target=write, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_of_one_does_not_take_the_file_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first = writer(path, "a")
    assert says(first) == "half"
    second = writer(path, "b")
    first.send_signal(signal.SIGINT)
    assert second.communicate("\n")[0].split() == ["half", "done"]
    first.communicate()
    assert first.returncode != 0
    assert path.read_bytes() == b"b" * 200_000
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_laid_where_the_new_file_stands_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".file.partial").symlink_to(victim)
    with pytest.raises(FarthingError, match="file cannot be written"):
        write(tmp_path / "file", b"new")
    assert victim.read_bytes() == b"mine"


def test_a_folder_in_the_way_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(FarthingError, match=r"file cannot be written \(.*choose another place"):
        write(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_device_without_room_is_called_full(tmp_path: Path) -> None:
    with (
        pytest.raises(FarthingError, match="is full: make room, or write to another disk"),
        replacing(tmp_path / "file"),
        Path("/dev/full").open("wb", buffering=0) as device,
    ):
        device.write(b"x")
    assert list(tmp_path.iterdir()) == []
