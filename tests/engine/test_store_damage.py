"""A file of cached prefixes that is damaged, foreign or hostile is never misread."""

from __future__ import annotations

import errno
import json
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, rambling
from engine.stored import (
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
from farthing.engine.prefix import block_hash, root_hash
from farthing.engine.store import restore, save

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_a_damaged_block_goes_with_all_that_continue_it(tmp_path: Path) -> None:
    content = bytearray(saved_file())
    entries = list(busy().index.entries())
    [first] = [at for at, e in enumerate(entries) if e.tokens == tuple(PROMPT[:32])]
    content[header_bytes(content) + first * RECORD + RECORD // 2] ^= 1
    made, restored = restored_from(bytes(content), tmp_path / "prefixes")
    # Only the other key's text does not begin with it.
    assert (restored.blocks, restored.damaged) == (4, 7)
    assert "7 are damaged, or continue one that is, and were left out" in str(restored)
    assert {entry.tokens for entry in made.index.entries()} == {
        tuple(PROMPT[::-1][at : at + 32]) for at in range(0, 128, 32)
    }
    assert_sound(made)


@given(at=st.integers(0, 1 << 16), flip=st.integers(1, 255))
@settings(max_examples=300)
def test_a_flipped_byte_anywhere_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int
) -> None:
    content = bytearray(saved_file())
    at %= len(content)
    content[at] ^= flip
    path = tmp_path_factory.getbasetemp() / "flipped"
    made, restored = restored_from(bytes(content), path)
    assert restored.refused is not None or restored.damaged > 0
    assert (restored.refused is not None) == (at < header_bytes(saved_file()))
    assert known(made).items() <= known(busy()).items()
    assert_sound(made)


@given(length=st.integers(0, 1 << 16))
@settings(max_examples=100)
def test_a_file_cut_anywhere_gives_what_is_whole(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    length %= len(saved_file())
    path = tmp_path_factory.getbasetemp() / "cut"
    made, restored = restored_from(saved_file()[:length], path)
    if length < header_bytes(saved_file()):
        assert restored.refused is not None
    else:
        assert restored.blocks == (length - header_bytes(saved_file())) // RECORD
        assert restored.damaged == ((length - header_bytes(saved_file())) % RECORD > 0)
    assert_sound(made)


@given(data=st.data())
@settings(max_examples=200)
def test_no_rearrangement_of_blocks_and_garbage_is_misread(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    start = header_bytes(saved_file())
    blocks = [saved_file()[at : at + RECORD] for at in range(start, len(saved_file()), RECORD)]
    piece = st.one_of(st.sampled_from(blocks), st.binary(max_size=2 * RECORD))
    pieces = data.draw(st.lists(piece, max_size=20))
    path = tmp_path_factory.getbasetemp() / "rearranged"
    made, _ = restored_from(saved_file()[:start] + b"".join(pieces), path)
    assert known(made).items() <= known(busy()).items()
    assert_sound(made)


def forged(head: tuple[Any, ...], content: bytes = bytes(128)) -> bytes:
    """A block whose checksum is right, whatever it says."""
    key = saved_file()[: header_bytes(saved_file())][-32:]
    body = struct.pack("<?16s16s32i", *head) + content
    return body + blake2b(body, digest_size=32, key=key).digest()


@pytest.mark.parametrize(
    ("tokens", "wrong"),
    [
        ([VOCABULARY] * 32, {}),
        ([-1] * 32, {}),
        ([1] * 32, {"hash": bytes(16)}),
        ([1] * 32, {"begins": False}),
    ],
    ids=["token too large", "token negative", "another hash", "nothing before it"],
)
def test_a_block_with_a_right_checksum_and_wrong_content_is_left_out(
    tmp_path: Path, tokens: list[int], wrong: dict[str, Any]
) -> None:
    root = root_hash("")
    own = {"begins": True, "parent": root, "hash": block_hash(root, tokens), **wrong}
    block = forged((*own.values(), *tokens))
    made, restored = restored_from(
        saved_file()[: header_bytes(saved_file())] + block, tmp_path / "prefixes"
    )
    assert (restored.blocks, restored.damaged) == (0, 1)
    assert len(made.index) == 0


# --- what is refused, and why


def starting(magic: bytes = b"FARTHING", version: int = 1, length: int | None = None) -> bytes:
    header = json.dumps({"identity": {}}).encode()
    start = struct.pack("<8sII", magic, version, len(header) if length is None else length) + header
    return start + blake2b(start, digest_size=32).digest()


def forged_header(header: bytes) -> bytes:
    start = struct.pack("<8sII", b"FARTHING", 1, len(header)) + header
    return start + blake2b(start, digest_size=32).digest()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is no file of cached prefixes"),
        (b"GGUF" * 100, "is no file of cached prefixes"),
        (starting(magic=b"FARTHIN\0"), "is no file of cached prefixes"),
        (starting(version=2), "has version 2 of the format, and this farthing reads 1"),
        (starting(length=2**32 - 1), "is damaged: its header"),
        (starting(length=5), "is damaged: its header"),
        (starting()[:-1], "is damaged: its header"),
        (starting(), "was made under other conditions: backend is None there and 'null' here"),
        (forged_header(b"[" * 5000), "is not sound JSON"),
        (forged_header(b"[]"), "holds a list where an object is needed"),
        (forged_header(b"{}"), "is damaged: its header"),
        (forged_header(b'{"identity": 3}'), "is damaged: its header"),
        (forged_header(b"\xff\xfe"), "is not sound JSON"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, says: str
) -> None:
    made, restored = restored_from(content, tmp_path / "prefixes")
    assert restored.refused is not None
    assert says in restored.refused
    assert str(tmp_path / "prefixes") in restored.refused
    assert str(restored) == f"nothing is restored: {restored.refused}"
    assert restored.blocks == len(made.index) == 0


def test_a_path_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    made = driver()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", tmp_path / "file" / "below"):
        assert restore(path, made.index, made.backend).refused == f"there is no file {path}"


def test_a_file_that_the_system_refuses_to_open_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefixes").write_bytes(saved_file())

    def refusing(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refusing)
    made = driver()
    restored = restore(tmp_path / "prefixes", made.index, made.backend)
    assert restored.refused == f"{tmp_path / 'prefixes'} cannot be read: Permission denied"


class Named(NullBackend):
    """A null backend with the conditions of a real one."""

    def __init__(self, identity: Mapping[str, str], block_bytes: int = 128) -> None:
        super().__init__(rambling, VOCABULARY)
        self.named = identity
        self.block_bytes = block_bytes

    @property
    def identity(self) -> Mapping[str, str]:
        return self.named

    def cache_bytes(self) -> np.ndarray[Any, Any]:
        pool = super().cache_bytes()
        return pool if self.block_bytes == 128 else np.zeros((64, self.block_bytes), np.uint8)


IDENTITY = {
    "backend": "native",
    "model": "85f67e5f",
    "formats": "Q4_1 as Q4_1",
    "kv_dtype": "fp16",
    "activations": "default",
    "isa": "avx512",
    "kernels": "6d55e687",
    "block": "32 positions in 128 bytes",
}


def named_file(path: Path) -> Path:
    made = Driver(Named(IDENTITY))
    made.finish([request("text", PROMPT, 2)])
    assert save(path, made.index, made.backend, ROOM).blocks == 4
    return path


@pytest.mark.parametrize("part", IDENTITY)
def test_one_other_condition_is_enough_to_refuse_and_is_named(tmp_path: Path, part: str) -> None:
    path = named_file(tmp_path / "prefixes")
    same, other = Driver(Named(dict(IDENTITY))), Driver(Named({**IDENTITY, part: "another"}))
    assert restore(path, same.index, same.backend).blocks == 4
    assert restore(path, other.index, other.backend).refused == (
        f"{path} was made under other conditions: {part} is {IDENTITY[part]!r} there and "
        "'another' here"
    )
    assert len(other.index) == 0


def test_blocks_of_another_size_and_conditions_of_a_later_version_are_refused(
    tmp_path: Path,
) -> None:
    path = named_file(tmp_path / "prefixes")
    larger = Driver(Named(IDENTITY, block_bytes=256))
    refused = restore(path, larger.index, larger.backend).refused
    assert refused is not None
    assert refused.endswith("block_bytes is '128' there and '256' here")
    fewer = Driver(Named({k: v for k, v in IDENTITY.items() if k != "isa"}))
    refused = restore(path, fewer.index, fewer.backend).refused
    assert refused is not None
    assert refused.endswith("it names conditions that are unknown here")
