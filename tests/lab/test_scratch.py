"""Temporary folders: gone with their process, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from farthing.core import FarthingError
from farthing.lab.scratch import scratch

if TYPE_CHECKING:
    from pathlib import Path

_KILLED = """
import os, signal
from farthing.lab.scratch import scratch
with scratch() as folder:
    (folder / "copy").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_gone_when_its_block_ends_also_by_an_error(place: Path) -> None:
    with scratch() as folder:
        assert folder.parent == place
        (folder / "file").write_text("x")
    with pytest.raises(ValueError, match="x"), scratch():
        raise ValueError("x")
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED], env=os.environ | {"TMPDIR": str(place)}, check=False
    )
    assert killed.returncode == -9
    [left] = place.iterdir()
    assert (left / "copy").exists()
    with scratch() as folder:
        assert list(place.iterdir()) == [folder]


def test_a_folder_that_another_one_works_in_stays(place: Path) -> None:
    with scratch() as one, scratch() as other:
        assert {*place.iterdir()} == {one, other}


def test_nothing_is_removed_through_a_link_or_that_is_no_folder(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (place / "farthing-lab-link").symlink_to(precious)
    (place / "farthing-lab-file").write_text("x")
    with scratch():
        pass
    assert sorted(each.name for each in place.iterdir()) == [
        "farthing-lab-file",
        "farthing-lab-link",
        "precious",
    ]


def test_where_there_can_be_no_folder_it_is_said_what_to_do(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    with pytest.raises(FarthingError, match="TMPDIR names another"), scratch():
        pass
