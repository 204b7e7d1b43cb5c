"""Pages of a mapped file leave the process when they are released, and come back when read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from farthing.files.gguf import map_file
from farthing.files.pages import release_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SIZE = 32 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def resident(path: Path) -> int:
    """Bytes of the file's pages that this process holds."""
    found = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name:
            inside = line.endswith(str(path))
        elif inside and name == "Rss":
            found += int(value.split()[0]) * 1024
    return found


def test_released_pages_leave_the_process_and_read_the_same_afterwards(path):
    data = map_file(path)
    before = bytes(data)
    assert resident(path) == SIZE
    release_pages(data)
    assert resident(path) == 0
    assert bytes(data) == before


def test_a_part_is_released_without_its_neighbours(path):
    data = map_file(path)
    data.sum()
    quarters = data[100:-100][: SIZE // 4 * 3].reshape(3, -1)
    release_pages(quarters[1:2].reshape(-1))  # a view of a view
    left = SIZE - quarters[1].nbytes
    # The system may hold a file in pages of 2 MB, and take the outer ones along.
    assert left - (4 << 20) <= resident(path) <= left


def test_an_array_of_its_own_memory_is_left_alone():
    data = np.arange(100_000, dtype=np.uint8)
    release_pages(data)
    release_pages(data[500:].copy())
    assert data[200] == 200


def test_an_empty_part_is_no_error(path):
    release_pages(map_file(path)[100:100])
