"""An engine without arithmetic that has answered a few texts, and what it saves of them."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, rambling
from farthing.backends.null import NullBackend
from farthing.engine.prefix import block_hash, root_hash
from farthing.engine.store import Restored, restore, save

ROOM = 1 << 20
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 150)]
BLOCKS = 11
"""What `busy` knows: 5 of the first text, 2 more of the fork, 4 of the other key's."""
RECORD = 1 + 16 + 16 + 128 + 128 + 32
"""Bytes of a null backend's block in a file."""


def driver(total_blocks: int = 64) -> Driver:
    return Driver(NullBackend(rambling, VOCABULARY, total_blocks))


def busy(total_blocks: int = 64) -> Driver:
    """An engine that has answered several texts, which share beginnings, for two keys."""
    made = driver(total_blocks)
    made.finish([request("first", PROMPT, 20)])
    made.finish([request("fork", PROMPT[:80] + PROMPT[:50], 10)])
    made.finish([request("other", PROMPT[::-1], 3, key="other")])
    made.finish([request("again", PROMPT[:70], 4)])
    return made


@cache
def saved_file() -> bytes:
    """What `busy` saves."""
    with TemporaryDirectory() as folder:
        made = busy()
        save(Path(folder) / "prefixes", made.index, made.backend, ROOM)
        return (Path(folder) / "prefixes").read_bytes()


def known(made: Driver) -> dict[bytes, tuple[tuple[int, ...], bytes]]:
    """Every prefix that the index knows: its last block's tokens and bytes."""
    pool = made.backend.cache_bytes()
    return {
        entry.hash: (entry.tokens, pool[entry.block].tobytes()) for entry in made.index.entries()
    }


def assert_sound(made: Driver) -> None:
    """The null backend's blocks are their tokens: so what is known must be what is there."""
    made.scheduler.check()
    ours = [root_hash(key) for key in ("", "other")]
    seen = set(ours)
    for entry in made.index.entries():
        assert entry.hash == block_hash(entry.parent, entry.tokens)
        assert entry.parent in seen, "an entry goes on from one that is not there"
        seen.add(entry.hash)
        content = made.backend.cache_bytes()[entry.block].view(np.int32)
        assert content.tolist() == list(entry.tokens)


def restored_from(content: bytes, path: Path, total_blocks: int = 64) -> tuple[Driver, Restored]:
    path.write_bytes(content)
    made = driver(total_blocks)
    return made, restore(path, made.index, made.backend)


def header_bytes(content: bytes) -> int:
    return 16 + struct.unpack_from("<I", content, 12)[0] + 32
