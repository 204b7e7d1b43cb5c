"""The prefix index on disk: what is saved is found again, whole and in order, or not written."""

from __future__ import annotations

import errno
import os
import resource
import stat
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, rambling
from engine.stored import (
    BLOCKS,
    PROMPT,
    RECORD,
    ROOM,
    assert_sound,
    busy,
    driver,
    header_bytes,
    known,
    restored_from,
    saved_file,
)
from farthing.backends.null import NullBackend
from farthing.core import FarthingError, KVDtype
from farthing.engine.store import Restored, restore, save
from native_steps import model_at, native

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.backends import Backend


# --- there and back


def test_a_saved_index_comes_back_whole_and_in_order_of_use(tmp_path: Path) -> None:
    before, after = busy(), driver()
    path = tmp_path / "prefixes"
    saved = save(path, before.index, before.backend, ROOM)
    assert saved.blocks == len(before.index) == BLOCKS
    assert saved.left_out == 0
    assert saved.bytes == path.stat().st_size
    restored = restore(path, after.index, after.backend)
    assert restored == Restored(path, blocks=BLOCKS)
    assert known(after) == known(before)
    order = [entry.hash for entry in before.index.entries()]
    assert [entry.hash for entry in after.index.entries()] == order
    assert after.scheduler.pool.cached == BLOCKS
    assert after.scheduler.pool.held == 0
    assert_sound(after)
    assert str(saved) == f"11 blocks (352 tokens) saved in {path} (0.0 MB)"
    assert str(restored) == f"11 blocks (352 tokens) restored from {path}"


def test_what_is_restored_is_reused_and_changes_no_token(tmp_path: Path) -> None:
    before, after, fresh = busy(), driver(), driver()
    save(tmp_path / "prefixes", before.index, before.backend, ROOM)
    restore(tmp_path / "prefixes", after.index, after.backend)
    asked = request("asked", PROMPT, 12)
    [warm], [cold] = after.finish([asked]), fresh.finish([asked])
    assert warm.output == cold.output
    assert after.logits == fresh.logits
    assert (warm.reused, cold.reused) == (149, 0)


def test_a_key_finds_its_own_blocks_only(tmp_path: Path) -> None:
    before, after = busy(), driver()
    save(tmp_path / "prefixes", before.index, before.backend, ROOM)
    restore(tmp_path / "prefixes", after.index, after.backend)
    prompt = PROMPT[::-1]
    [stranger] = after.finish([request("stranger", prompt, 1, key="somebody else")])
    [nobody] = after.finish([request("nobody", prompt, 1)])
    [owner] = after.finish([request("owner", prompt, 1, key="other")])
    assert (stranger.reused, nobody.reused, owner.reused) == (0, 0, 128)
    assert b"other" not in (tmp_path / "prefixes").read_bytes()


def test_blocks_that_are_held_are_saved_too(tmp_path: Path) -> None:
    before, after = busy(), driver()
    before.submit([request("running", PROMPT[50:] + PROMPT, 100)])
    for _ in range(3):
        before.step()
    assert before.scheduler.pool.held >= 7
    save(tmp_path / "prefixes", before.index, before.backend, ROOM)
    restore(tmp_path / "prefixes", after.index, after.backend)
    assert known(after) == known(before)
    assert_sound(after)


def test_an_empty_index_saves_an_empty_file(tmp_path: Path) -> None:
    made = driver()
    assert save(tmp_path / "prefixes", made.index, made.backend, ROOM).blocks == 0
    assert restore(tmp_path / "prefixes", made.index, made.backend).refused is None
    assert len(made.index) == 0


def test_restoring_twice_changes_nothing(tmp_path: Path) -> None:
    made, _ = restored_from(saved_file(), tmp_path / "prefixes")
    before = known(made)
    assert restore(tmp_path / "prefixes", made.index, made.backend).blocks == 0
    assert known(made) == before
    assert_sound(made)


def test_a_running_engine_keeps_what_it_has(tmp_path: Path) -> None:
    made = driver()
    made.finish([request("own", PROMPT[20:], 30)])
    own = known(made)
    (tmp_path / "prefixes").write_bytes(saved_file())
    assert restore(tmp_path / "prefixes", made.index, made.backend).blocks == BLOCKS
    assert own.items() <= known(made).items()
    assert_sound(made)


# --- bounds


@pytest.mark.parametrize("blocks", [1, 2, 5, 10, 11])
def test_the_limit_keeps_what_was_used_last(tmp_path: Path, blocks: int) -> None:
    before, after = busy(), driver()
    path = tmp_path / "prefixes"
    limit = header_bytes(saved_file()) + blocks * RECORD
    for room in (limit, limit + RECORD - 1):
        saved = save(path, before.index, before.backend, room)
        assert path.stat().st_size == saved.bytes == limit
        assert (saved.blocks, saved.left_out) == (blocks, BLOCKS - blocks)
    restore(path, after.index, after.backend)
    wanted = [entry.hash for entry in before.index.entries()][:blocks]
    assert [entry.hash for entry in after.index.entries()] == wanted
    assert_sound(after)


def test_a_limit_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    made = busy()
    least = header_bytes(saved_file()) + RECORD
    for limit in (0, -5, least - 1):
        with pytest.raises(FarthingError, match=f"hold no block: a file with one takes {least}"):
            save(tmp_path / "prefixes", made.index, made.backend, limit)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocks", [1, 4, 10, 11, 12])
def test_a_smaller_pool_takes_what_was_used_last(tmp_path: Path, blocks: int) -> None:
    made, restored = restored_from(saved_file(), tmp_path / "prefixes", total_blocks=blocks)
    kept = min(blocks, BLOCKS)
    assert (restored.blocks, restored.damaged, restored.left_out) == (kept, 0, BLOCKS - kept)
    order = [entry.hash for entry in busy().index.entries()]
    assert [entry.hash for entry in made.index.entries()] == order[:kept]
    assert_sound(made)
    if blocks < BLOCKS:
        assert f"for {BLOCKS - blocks} more no block was free" in str(restored)


def test_nothing_that_is_cached_or_held_gives_way_to_what_is_restored(tmp_path: Path) -> None:
    made = driver(total_blocks=10)
    made.finish([request("own", PROMPT[20:], 2)])
    made.submit([request("running", PROMPT[30:], 20)])
    made.step()
    own, free = known(made), made.scheduler.pool.free
    assert 0 < free < 10 - len(own)
    (tmp_path / "prefixes").write_bytes(saved_file())
    assert restore(tmp_path / "prefixes", made.index, made.backend).blocks == free
    assert own.items() <= known(made).items()
    assert made.scheduler.pool.free == 0
    made.scheduler.check()


def test_a_huge_file_is_neither_read_whole_nor_believed(tmp_path: Path) -> None:
    path = tmp_path / "prefixes"
    path.write_bytes(saved_file())
    os.truncate(path, 1 << 40)
    made = driver()
    tracemalloc.start()
    try:
        restored = restore(path, made.index, made.backend)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert restored.blocks == BLOCKS
    assert restored.damaged + restored.left_out > 1 << 30
    assert_sound(made)


# --- writing


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    made = busy()
    path = tmp_path / "prefixes"
    path.touch(0o666)
    path.chmod(0o666)
    before = os.umask(0)
    try:
        save(path, made.index, made.backend, ROOM)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "prefixes"
    made = driver()
    made.finish([request("old", PROMPT, 1)])
    save(path, made.index, made.backend, ROOM)
    return path


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    before = path.read_bytes()
    made = busy()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (header_bytes(before) + 5 * RECORD, hard))
    try:
        with pytest.raises(FarthingError, match=f"the disk of {path} is full: make room"):
            save(path, made.index, made.backend, ROOM)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert save(path, made.index, made.backend, ROOM).blocks == BLOCKS


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "is full: make room"),
        (errno.EROFS, "cannot be written to: choose a place"),
        (errno.EIO, "cannot be written (.*): choose another place"),
    ],
)
def test_a_disk_that_fails_at_the_end_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    path = old_file(tmp_path)
    before, made = path.read_bytes(), busy()

    def failing(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(FarthingError, match=says):
        save(path, made.index, made.backend, ROOM)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    made = busy()
    with pytest.raises(FarthingError, match=r"there is no folder .*absent for prefixes: make it"):
        save(tmp_path / "absent" / "prefixes", made.index, made.backend, ROOM)


def test_an_interrupted_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    before, made = path.read_bytes(), busy()
    backend = Interrupted(made.backend)
    with pytest.raises(KeyboardInterrupt):
        save(path, made.index, backend, ROOM)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Interrupted(NullBackend):
    """Somebody presses Ctrl-C when its seventh block is read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(rambling, VOCABULARY)
        self.pool = _InterruptedPool(backend.cache_bytes())

    def cache_bytes(self) -> Any:
        return self.pool


class _InterruptedPool:
    def __init__(self, pool: np.ndarray[Any, Any]) -> None:
        self.shape, self.reads, self.pool = pool.shape, 0, pool

    def __getitem__(self, block: int) -> np.ndarray[Any, Any]:
        self.reads += 1
        if self.reads == 7:
            raise KeyboardInterrupt
        return self.pool[block]


# --- the real model


@pytest.mark.parametrize("kv_dtype", [KVDtype.FP16, KVDtype.INT8, KVDtype.INT4_KEYS])
def test_a_real_models_cache_comes_back_to_the_bit(
    smollm2_path: Path, tmp_path: Path, kv_dtype: KVDtype
) -> None:
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, 49_000, 110)]
    greedy = request("greedy", prompt, 12)
    sampled = request("sampled", prompt[:100] + prompt, 8, temperature=0.9, seed=7)
    make: Callable[[], Driver] = lambda: Driver(  # noqa: E731
        native(model_at(smollm2_path), context_length=256, kv_dtype=kv_dtype, threads=1)
    )
    before, fresh, after = make(), make(), make()
    before.finish([greedy])
    saved = save(tmp_path / "prefixes", before.index, before.backend, 1 << 30)
    assert saved.blocks == 3
    assert restore(tmp_path / "prefixes", after.index, after.backend).blocks == 3
    assert np.array_equal(
        *(
            each.backend.cache_bytes()[[entry.block for entry in each.index.entries()]]
            for each in (before, after)
        )
    )
    warm, cold = after.finish([greedy, sampled]), fresh.finish([greedy, sampled])
    assert [sequence.output for sequence in warm] == [sequence.output for sequence in cold]
    assert after.logits == fresh.logits
    assert [sequence.reused for sequence in warm] == [96, 96]
