"""The prefix index on disk: what one engine has computed, found again by the next.

A file, whose numbers are little-endian:

    FARTHING, version u32, length of the header u32
    header    JSON: what the bits of a block depend on, by name
    checksum  blake2b of everything before, 32 bytes
    blocks    the one used last first, and every block after the one that it continues

and a block, of as many bytes as any other:

    begins u8      1 where it is the first of a text, and no other comes before it
    parent, hash   16 bytes each, as prefix.py makes them: a file knows keys by their hash only
    tokens         32 times i32
    content        what the backend has in the block
    checksum       blake2b of the block so far, keyed with the header's checksum, 32 bytes

Nothing in it is believed. Sizes follow from the backend and from the file's own size.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, FarthingError, FileFormatError
from farthing.engine.prefix import HASH_BYTES, block_hash
from farthing.files.json_files import parse_json_object
from farthing.files.replacing import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedReader
    from pathlib import Path

    from farthing.backends import Backend
    from farthing.engine.prefix import PrefixIndex

_MAGIC = b"FARTHING"
_VERSION = 1
_START = Struct("<8sII")
_BLOCK = Struct(f"<?{HASH_BYTES}s{HASH_BYTES}s{BLOCK_TOKENS}i")
_CHECKSUM_BYTES = 32
_MOST_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class Saved:
    """What was saved: `blocks` in a file of `bytes`, which had no room for `left_out` more."""

    path: Path
    blocks: int
    bytes: int
    left_out: int

    def __str__(self) -> str:
        more = f"; {self.left_out} more did not fit the limit" if self.left_out else ""
        return f"{_tokens(self.blocks)} saved in {self.path} ({self.bytes / 1e6:.1f} MB){more}"


@dataclass(frozen=True)
class Restored:
    """What was restored: `blocks`, unless the file was `refused` for the reason given.

    `damaged` blocks were not: they are torn or garbled, or continue one that is. For `left_out`
    more there was no free block.
    """

    path: Path
    blocks: int = 0
    damaged: int = 0
    left_out: int = 0
    refused: str | None = None

    def __str__(self) -> str:
        if self.refused is not None:
            return f"nothing is restored: {self.refused}"
        text = f"{_tokens(self.blocks)} restored from {self.path}"
        if self.damaged:
            text += f"; {self.damaged} are damaged, or continue one that is, and were left out"
        if self.left_out:
            text += f"; for {self.left_out} more no block was free"
        return text


def may_replace(path: Path) -> bool:
    """Whether a file is empty or begins as those of `save` do; raises `OSError` if unreadable."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) in (b"", _MAGIC)


def save(path: Path, index: PrefixIndex, backend: Backend, limit_bytes: int) -> Saved:
    """Writes what the index knows to a file of at most `limit_bytes`, between two steps.

    What was used last goes first. The file takes the place of one that is there once it is whole
    and on disk; only its owner can read it. Raises `FarthingError` when the limit leaves no room
    for a block, and when the system refuses: then the old file is as it was.
    """
    pool = backend.cache_bytes()
    start = _header(_identity(backend))
    key = start[-_CHECKSUM_BYTES:]
    block_bytes = _record_bytes(backend)
    room = (limit_bytes - len(start)) // block_bytes
    if room < 1:
        raise FarthingError(
            f"{limit_bytes} bytes hold no block: a file with one takes {len(start) + block_bytes}"
        )
    entries = list(index.entries())
    with replacing(path) as file:
        file.write(start)
        for entry in entries[:room]:
            begins = index.get(entry.parent) is None
            head = _BLOCK.pack(begins, entry.parent, entry.hash, *entry.tokens)
            content = pool[entry.block].data
            digest = blake2b(head, digest_size=_CHECKSUM_BYTES, key=key)
            digest.update(content)
            for part in (head, content, digest.digest()):
                file.write(part)
    blocks = min(room, len(entries))
    return Saved(path, blocks, len(start) + blocks * block_bytes, len(entries) - blocks)


def restore(path: Path, index: PrefixIndex, backend: Backend) -> Restored:
    """Puts the blocks of a file into free blocks, as cached ones in the order of their last use.

    A file of another format, with a damaged header, or made under other conditions is refused and
    changes nothing; of a file with damaged blocks the others are restored.
    """
    try:
        if not path.is_file():
            return Restored(path, refused=f"there is no file {path}")
        with path.open("rb") as file:
            try:
                key = _check_header(file, path, backend)
            except FileFormatError as error:
                return Restored(path, refused=str(error))
            size = os.fstat(file.fileno()).st_size - file.tell()
            return _restore_blocks(file, size, key, path, index, backend)
    except OSError as error:
        return Restored(path, refused=f"{path} cannot be read: {error.strerror}")


def _restore_blocks(
    file: BufferedReader, size: int, key: bytes, path: Path, index: PrefixIndex, backend: Backend
) -> Restored:
    pool = backend.cache_bytes()
    record = bytearray(_record_bytes(backend))
    content = np.frombuffer(record, np.uint8)[_BLOCK.size : -_CHECKSUM_BYTES]
    whole, torn = divmod(size, len(record))
    found: list[tuple[bytes, tuple[int, ...]]] = []
    restored, damaged, left_out = 0, int(torn > 0), 0
    for number in range(whole):
        # More than the pool has are not looked at: no file makes anybody wait for longer.
        if number == len(pool):
            left_out = whole - number
            break
        if not _filled(record, file):
            damaged += whole - number
            break
        known = _checked(record, key, index, backend.vocabulary_size)
        if known is None:
            damaged += 1
            continue
        hash_, parent, tokens = known
        if index.get(hash_) is None:
            block = index.restore(parent, tokens)
            if block is None:
                left_out = whole - number
                break
            pool[block] = content
            restored += 1
        found.append((parent, tokens))
    # The one used last stands first: so that it is again, each counts as used once more.
    for parent, tokens in reversed(found):
        index.restore(parent, tokens)
    return Restored(path, restored, damaged, left_out)


def _filled(record: bytearray, file: BufferedReader) -> bool:
    try:
        return file.readinto(record) == len(record)
    except OSError:
        return False


def _checked(
    record: bytearray, key: bytes, index: PrefixIndex, vocabulary_size: int
) -> tuple[bytes, bytes, tuple[int, ...]] | None:
    """A block's hash, its parent's and its tokens; None unless all of it is as it was written."""
    body = memoryview(record)[:-_CHECKSUM_BYTES]
    digest = blake2b(body, digest_size=_CHECKSUM_BYTES, key=key).digest()
    if digest != record[-_CHECKSUM_BYTES:]:
        return None
    begins, parent, hash_, *tokens = _BLOCK.unpack_from(record)
    if not begins and index.get(parent) is None:
        return None
    if not all(0 <= token < vocabulary_size for token in tokens):
        return None
    if hash_ != block_hash(parent, tokens):
        return None
    return hash_, parent, tuple(tokens)


def _identity(backend: Backend) -> dict[str, str]:
    """What a block's bits depend on, and how many they are."""
    return {**backend.identity, "block_bytes": str(backend.cache_bytes().shape[1])}


def _record_bytes(backend: Backend) -> int:
    block_bytes: int = backend.cache_bytes().shape[1]
    return _BLOCK.size + block_bytes + _CHECKSUM_BYTES


def _header(identity: Mapping[str, str]) -> bytes:
    content = json.dumps({"identity": identity}).encode()
    start = _START.pack(_MAGIC, _VERSION, len(content)) + content
    return start + blake2b(start, digest_size=_CHECKSUM_BYTES).digest()


def _check_header(file: BufferedReader, path: Path, backend: Backend) -> bytes:
    """Reads up to the first block and returns the header's checksum.

    Raises `FileFormatError` unless the file was written here under the same conditions.
    """
    start = file.read(_START.size)
    magic, version, length = _START.unpack(start.ljust(_START.size, b"\0"))
    if magic != _MAGIC:
        raise FileFormatError(f"{path} is no file of cached prefixes")
    if version != _VERSION:
        raise FileFormatError(
            f"{path} has version {version} of the format, and this farthing reads {_VERSION}"
        )
    damaged = FileFormatError(f"{path} is damaged: its header does not match its checksum")
    if length > _MOST_HEADER_BYTES:
        raise damaged
    content, checksum = file.read(length), file.read(_CHECKSUM_BYTES)
    if blake2b(start + content, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        raise damaged
    stored = parse_json_object(content.decode(errors="replace"), str(path)).get("identity")
    if not isinstance(stored, dict):
        raise damaged
    own = _identity(backend)
    if stored != own:
        raise FileFormatError(
            f"{path} was made under other conditions: {_differences(stored, own)}"
        )
    return checksum


def _differences(stored: Mapping[str, object], own: Mapping[str, str]) -> str:
    different = [
        f"{name} is {stored.get(name)!r:.80} there and {own[name]!r:.80} here"
        for name in own
        if stored.get(name) != own[name]
    ]
    if len(stored.keys() - own.keys()):
        different.append("it names conditions that are unknown here")
    return "; ".join(different)


def _tokens(blocks: int) -> str:
    return f"{blocks} blocks ({blocks * BLOCK_TOKENS:,} tokens)"
