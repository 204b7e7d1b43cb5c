"""The prefix index: which full blocks of cache hold the beginning of which texts.

A block's hash is that of its 32 tokens and of the block before it, so it stands for a whole prefix;
the first has a hash of the caller's key before it, so that no key finds another's blocks. An entry
lives as long as its block is held or cached. Whoever holds a block holds those before it, and
tables are given back from their end: so an entry never outlives the one before it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Literal

from farthing.core import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from farthing.engine.kv import BlockPool

HASH_BYTES = 16

_MOST_EVICTED = 4096
"""Hashes remembered of blocks that are gone, to tell a miss from a prefix never seen."""

_MOST_COMPARED = 256


@dataclass(frozen=True)
class Entry:
    """A full block that is known: `hash` stands for its tokens and all before them."""

    hash: bytes
    parent: bytes
    tokens: tuple[int, ...]
    block: int


@dataclass(frozen=True)
class Miss:
    """Where the cache ended for a prompt, and why.

    `position` is that of the first token that had to be computed. "differs": a known text goes on
    with `other_token` where this one has `token`. "evicted": it was known, and its blocks were
    needed for others. "new": no known text goes on from there. `recomputed` tokens of the prompt
    followed, of which the known text could have saved `avoidable` at least, had it not differed.
    """

    reason: Literal["differs", "evicted", "new"]
    position: int
    token: int
    other_token: int | None
    reused: int
    recomputed: int
    avoidable: int


class PrefixIndex:
    """Finds blocks by the prefix they hold. Used by one thread at a time."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._entries: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._children: dict[bytes, dict[bytes, Entry]] = {}
        self._evicted: dict[bytes, None] = {}
        pool.on_evict = self._evict

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, hash_: bytes) -> Entry | None:
        """The entry of a prefix, if there is one."""
        return self._entries.get(hash_)

    def holds(self, block: int) -> bool:
        """Whether a block can be found."""
        return block in self._by_block

    def add(self, hash_: bytes, parent: bytes, tokens: Sequence[int], block: int) -> int:
        """Makes a full, computed block known; returns the block that stands for its prefix.

        That is another one when somebody computed the same meanwhile: the caller's reference then
        moves to that one, and `block` is given back.
        """
        known = self._entries.get(hash_)
        if known is not None:
            if known.block != block:
                self._pool.share(known.block)
                self._pool.give([block])
            return known.block
        entry = Entry(hash_, parent, tuple(tokens), block)
        self._pool.set_indexed(block, True)
        self._entries[hash_] = self._by_block[block] = entry
        self._children.setdefault(parent, {})[hash_] = entry
        self._evicted.pop(hash_, None)
        return block

    def forget(self, block: int) -> None:
        """Takes a block's entry out, so that its holder may write to it."""
        self._pool.set_indexed(block, False)
        self._remove(block)

    def closest(self, parent: bytes, tokens: Sequence[int]) -> tuple[Entry, int] | None:
        """The block after `parent` that begins most like `tokens`, and how many are the same.

        Of many, only those are compared that were added last.
        """
        newest = islice(reversed(self._children.get(parent, _NONE).values()), _MOST_COMPARED)
        alike = [(_common(each.tokens, tokens), each) for each in newest]
        if not alike:
            return None
        count, entry = max(alike, key=lambda pair: pair[0])
        return entry, count

    def explain(
        self, chain: Sequence[bytes], root: bytes, tokens: Sequence[int], reused: int
    ) -> Miss:
        """Why no more than the first `reused` tokens of a prompt came from the cache."""
        blocks, inside = divmod(reused, BLOCK_TOKENS)
        parent = chain[blocks - 1] if blocks else root
        found = self.closest(parent, tokens[blocks * BLOCK_TOKENS : (blocks + 1) * BLOCK_TOKENS])
        reason: Literal["differs", "evicted", "new"] = "new"
        other, avoidable = None, 0
        if found is not None and reused > 0 and found[1] == inside:
            reason, other = "differs", found[0].tokens[inside]
            avoidable = min(self._reach(found[0]) - inside, len(tokens) - reused)
        elif blocks < len(chain) and chain[blocks] in self._evicted:
            reason = "evicted"
            gone = takewhile(self._evicted.__contains__, chain[blocks:])
            avoidable = sum(BLOCK_TOKENS for _ in gone) - inside
        return Miss(reason, reused, tokens[reused], other, reused, len(tokens) - reused, avoidable)

    def entries(self) -> Iterator[Entry]:
        """All entries: the held ones, then the cached ones, the one used last first.

        An entry never comes before the one that it continues.
        """
        cached = self._pool.by_use()
        idle = set(cached)
        held = [entry for entry in self._entries.values() if entry.block not in idle]
        # They were added in that order, except for those that were restored.
        yield from _parents_first(held)
        yield from (self._by_block[block] for block in reversed(cached))

    def restore(self, parent: bytes, tokens: Sequence[int]) -> int | None:
        """A cached block for the given tokens, whose bytes the caller fills in at once.

        None when the prefix is known already, or no block is free. Either way it counts as used
        last: so what continues a prefix is restored before it.
        """
        hash_ = block_hash(parent, tokens)
        known = self._entries.get(hash_)
        if known is not None:
            self._pool.share(known.block)
            self._pool.give([known.block])
            return None
        if not self._pool.free:
            return None
        [block] = self._pool.take(1)
        self.add(hash_, parent, tokens, block)
        self._pool.give([block])
        return block

    def check(self) -> None:
        """Raises `ValueError` unless every entry is whole, and so is the way to it."""
        roots = {entry.parent for entry in self._entries.values()} - self._entries.keys()
        for entry in self._entries.values():
            siblings = self._children[entry.parent]
            if self._by_block.get(entry.block) is not entry or entry.hash not in siblings:
                raise ValueError(f"block {entry.block} is not where the prefix index says")
            if entry.parent in roots and entry.parent in self._evicted:
                raise ValueError(f"block {entry.block} continues a prefix that was given up")
        listed = sum(map(len, self._children.values()))
        if not len(self._entries) == len(self._by_block) == listed:
            raise ValueError(
                f"the prefix index is inconsistent: {len(self._entries)} entries, "
                f"{len(self._by_block)} blocks, {listed} continuations"
            )

    def _evict(self, block: int) -> None:
        entry = self._remove(block)
        self._evicted[entry.hash] = None
        if len(self._evicted) > _MOST_EVICTED:
            del self._evicted[next(iter(self._evicted))]

    def _remove(self, block: int) -> Entry:
        entry = self._by_block.pop(block)
        del self._entries[entry.hash]
        siblings = self._children[entry.parent]
        del siblings[entry.hash]
        if not siblings:
            del self._children[entry.parent]
        return entry

    def _reach(self, entry: Entry) -> int:
        """Tokens from the beginning of an entry's block to the end of what is known after it."""
        count = BLOCK_TOKENS
        while (children := self._children.get(entry.hash)) is not None:
            entry = next(iter(children.values()))
            count += BLOCK_TOKENS
        return count


_NONE: dict[bytes, Entry] = {}


def root_hash(key: str) -> bytes:
    """What stands before the first block of a caller's texts."""
    return blake2b(key.encode(), digest_size=HASH_BYTES, person=b"farthing key").digest()


def block_hash(parent: bytes, tokens: Iterable[int]) -> bytes:
    """The hash of 32 tokens that come after `parent`."""
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=HASH_BYTES).digest()


def extend_chain(chain: list[bytes], root: bytes, tokens: Sequence[int], end: int) -> None:
    """Appends the hashes of the full blocks among the first `end` tokens that are not there yet."""
    while (len(chain) + 1) * BLOCK_TOKENS <= end:
        first = len(chain) * BLOCK_TOKENS
        parent = chain[-1] if chain else root
        chain.append(block_hash(parent, tokens[first : first + BLOCK_TOKENS]))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _parents_first(entries: list[Entry]) -> Iterator[Entry]:
    waiting = {entry.hash: entry for entry in entries}
    for entry in entries:
        line = []
        while (each := waiting.pop(entry.hash, None)) is not None:
            line.append(each)
            entry = waiting.get(each.parent, each)
        yield from reversed(line)
