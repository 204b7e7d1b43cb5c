"""The place of the cache where there is no home, or none that can be used."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farthing.core import DownloadError
from farthing.files import cache_place
from farthing.files.cache_place import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where temporary folders lie, while nobody names a cache."""
    for name in ("FARTHING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    cache_place._temporary.cache_clear()
    yield folder
    cache_place._temporary.cache_clear()


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", ["absent", "file", "/proc/1"])
def test_without_a_home_that_can_be_used_a_folder_of_the_users_own_is_and_is_warned_of_once(
    home: str,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    if home == "/proc/1":
        monkeypatch.setattr(cache_place.os, "access", lambda *_: False)
    with caplog.at_level(logging.WARNING):
        folder = cache_folder()
        assert cache_folder() == folder
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    (record,) = caplog.records
    assert "set FARTHING_CACHE" in record.getMessage()
    assert not (tmp_path / "absent").exists()


def test_a_user_whom_the_system_does_not_know_has_one_too(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder().parent == temporary


def test_a_cache_that_is_there_is_read_though_its_home_cannot_be_written(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / ".cache" / "farthing"
    usual.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cache_place.os, "access", lambda _, mode: not mode & cache_place.os.W_OK)
    assert cache_folder() == usual
    assert not list(temporary.iterdir())


def test_a_cache_that_somebody_names_is_never_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("FARTHING_CACHE", "/proc/none")
    assert cache_folder() == Path("/proc/none")
    monkeypatch.setattr(Path, "expanduser", lambda _: homeless())
    with pytest.raises(DownloadError, match="name a folder from the root"):
        cache_folder()


@pytest.mark.parametrize("what", ["open", "link", "file"])
def test_a_temporary_folder_that_others_may_change_is_refused(
    what: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    place = temporary / f"farthing-{cache_place.os.getuid()}"
    if what == "open":
        place.mkdir()
        place.chmod(0o777)
    elif what == "link":
        place.symlink_to(tmp_path)
    else:
        place.write_text("")
    with pytest.raises(DownloadError, match=r"/dev/null.*set FARTHING_CACHE"):
        cache_folder()
