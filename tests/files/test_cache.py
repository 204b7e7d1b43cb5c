"""The folder of fetched models: whole or absent, whoever fetches, whatever the disk does."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import farthing
from farthing.core import DownloadError, FarthingError
from farthing.files import cache
from farthing.files.progress import SILENT, _folder_bytes

SOURCES = Path(farthing.__file__).parents[1]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def fill_with(content: bytes, folder: Path) -> cache.Record:
    (folder / "toy.gguf").write_bytes(content)
    return cache.Record("toy", "here", "MIT", "toy.gguf", {"toy.gguf": len(content)})


def fetch(content: bytes = b"whole") -> Path:
    return cache.fetch("toy", "toy", SILENT, lambda folder: fill_with(content, folder))


def files_in(models: Path) -> set[str]:
    """Every file but the locks."""
    files = (path.relative_to(models) for path in models.rglob("*") if path.is_file())
    return {str(path) for path in files if path.parts[0] != ".locks"}


WHOLE = {"toy/toy.gguf", "toy/farthing.json"}


def test_a_fetched_model_is_found_with_its_record(models: Path) -> None:
    assert cache.find("toy") is None
    path = fetch()
    assert path == models / "toy" / "toy.gguf"
    record = cache.Record("toy", "here", "MIT", "toy.gguf", {"toy.gguf": 5})
    assert cache.find("toy") == (record, path)
    assert cache.all_records() == [(record, path)]
    assert files_in(models) == WHOLE


def test_what_is_there_is_not_fetched_again(models: Path) -> None:
    fetch(b"first")
    assert fetch(b"other").read_bytes() == b"first"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "toy.gguf").write_bytes(b"cut"),
        lambda folder: (folder / "toy.gguf").unlink(),
        lambda folder: (folder / "farthing.json").unlink(),
        lambda folder: (folder / "farthing.json").write_bytes(b""),
        lambda folder: (folder / "farthing.json").write_bytes(b"[]"),
        lambda folder: (folder / "farthing.json").write_bytes(b"{}"),
        lambda folder: (folder / "farthing.json").write_bytes(b'{"version": 99}'),
        lambda folder: (folder / "farthing.json").write_bytes(b'{"version": 1}'),
    ],
)  # fmt: skip
def test_a_damaged_model_is_not_found_and_is_fetched_again(damage: object, models: Path) -> None:
    fetch()
    damage(models / "toy")  # type: ignore[operator]
    assert cache.find("toy") is None
    assert cache.all_records() == []
    assert fetch(b"again").read_bytes() == b"again"


def test_what_a_killed_process_left_is_not_mistaken_for_a_model(models: Path) -> None:
    (models / ".partial" / "toy" / "wheel").mkdir(parents=True)
    (models / ".partial" / "toy" / "toy.gguf").write_bytes(b"half")
    assert cache.all_records() == []
    assert fetch().read_bytes() == b"whole"
    assert files_in(models) == WHOLE


@pytest.mark.parametrize("error", [DownloadError("no"), KeyboardInterrupt(), MemoryError()])
def test_a_fetch_that_fails_or_is_interrupted_keeps_nothing(
    error: BaseException, models: Path
) -> None:
    def fail(folder: Path) -> cache.Record:
        (folder / "toy.gguf").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        cache.fetch("toy", "toy", SILENT, fail)
    assert files_in(models) == set()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "is full: make room"),
        (errno.EDQUOT, "is full: make room"),
        (errno.EROFS, r"may not be used \(.*\): set FARTHING_CACHE"),
        (errno.EACCES, r"may not be used \(.*\): set FARTHING_CACHE"),
        (errno.EIO, "cannot be used"),
    ],
)
def test_a_disk_that_refuses_midway_keeps_nothing_and_says_what_to_do(
    code: int, message: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(DownloadError, match=message) as caught:
        fetch()
    assert str(models) in str(caught.value)
    assert files_in(models) == set()


def test_a_cache_that_may_not_be_written_is_said_so(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        DownloadError, match=r"models may not be used \(Permission denied\): set FARTHING"
    ):
        fetch()


def test_a_cache_below_a_file_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DownloadError, match=r"below.models cannot be used.*FARTHING_CACHE"):
        fetch()


def test_removing_a_model_leaves_nothing_of_it(models: Path) -> None:
    fetch(bytes(1000))
    assert cache.remove("toy", "toy", SILENT) > 1000
    assert files_in(models) == set()
    with pytest.raises(FarthingError, match="toy is not on disk"):
        cache.remove("toy", "toy", SILENT)


FETCH_SLOWLY = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from farthing.files import cache
    from farthing.files.progress import Progress

    class Told(Progress):
        def waiting(self, name):
            Path(f"waiting-{os.getpid()}").touch()

    def fill(folder):
        Path(f"filling-{os.getpid()}").touch()
        (folder / "toy.gguf").write_bytes(b"half")
        while not Path("go").exists():
            time.sleep(0.01)
        if sys.argv[1] == "die":
            os._exit(9)
        (folder / "toy.gguf").write_bytes(b"whole")
        return cache.Record("toy", "here", "MIT", "toy.gguf", {"toy.gguf": 5})

    print(cache.fetch("toy", "toy", Told(), fill).read_text())
""")


def start_fetching(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH_SLOWLY, how]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 30
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.01)


@pytest.mark.parametrize(("first_ends", "fills"), [("well", 1), ("die", 2)])
def test_two_processes_fetching_at_once_fetch_once_unless_the_first_dies(
    first_ends: str, fills: int, models: Path, tmp_path: Path
) -> None:
    first = start_fetching(tmp_path, first_ends)
    wait_for(tmp_path, "filling-*")
    second = start_fetching(tmp_path, "well")
    wait_for(tmp_path, f"waiting-{second.pid}")
    assert cache.find("toy") is None
    (tmp_path / "go").touch()
    answers = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert answers[1] == "whole\n"
    assert answers[0] == ("whole\n" if first_ends == "well" else "")
    assert len(list(tmp_path.glob("filling-*"))) == fills
    assert files_in(models) == WHOLE


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FARTHING_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/models"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/farthing/models"),
        ({"HOME": "/"}, "/.cache/farthing/models"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FARTHING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.models_folder() == Path(folder)


def test_bytes_of_a_folder_are_counted_while_another_process_empties_it(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        for turn in itertools.count():
            if stop.is_set():
                return
            folder = tmp_path / str(turn % 7) / "deep"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "part").write_bytes(b"12345")
            shutil.rmtree(folder.parent)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(0 <= _folder_bytes(tmp_path) <= 5 for _ in range(300))
    finally:
        stop.set()
        thread.join()
