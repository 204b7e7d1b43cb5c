"""The block pool: which blocks of the paged cache are free, cached or held, and by how many.

Who owns a block, and when it moves:

    free --take()--> held by one or more block tables --last give()--> free
                          ^                |
                          |                +--last give(), if the prefix index knows it--> cached
                          +--share()-- cached --take(), the one used longest ago--> held anew

A block is in exactly one of the three states, and free + cached + held = total. The bytes of a
block live in the backend; here it is a number from 0 to total - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def blocks_for(positions: int) -> int:
    """How many blocks hold `positions` token positions."""
    return -(-positions // BLOCK_TOKENS)


class BlockPool:
    """A fixed number of blocks, counted references, and the cached ones by time of last use.

    `on_evict` is told of each cached block whose content is given up for another.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.on_evict: Callable[[int], None] = _ignore
        # A stack: the block freed last, whose lines may still be in a CPU cache, is taken first.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._indexed = bytearray(total)
        # Keys in order of last use, the one used longest ago first.
        self._cached: dict[int, None] = {}

    @property
    def free(self) -> int:
        """How many blocks hold nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """How many blocks nobody holds, and the prefix index can still find."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """How many blocks somebody holds."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """How many blocks `take` could give."""
        return len(self._free) + len(self._cached)

    def references(self, block: int) -> int:
        """How many block tables list the block."""
        return self._references[block]

    def is_private(self, block: int) -> bool:
        """Whether its one holder may write to it: nobody else reads it, now or later."""
        return self._references[block] == 1 and not self._indexed[block]

    def take(self, count: int) -> list[int]:
        """Moves `count` blocks to the caller, who must `give` each back exactly once.

        Free ones first, then the cached ones used longest ago. Raises `ValueError` when fewer are
        available: whoever takes counts first.
        """
        if count > self.available:
            raise ValueError(
                f"{count} blocks wanted, {self.free} free and {self.cached} cached of {self.total}"
            )
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block = next(iter(self._cached))
                del self._cached[block]
                self._indexed[block] = 0
                self.on_evict(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """Adds a reference to a block that is held or cached; raises `ValueError` for others."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} is shared, but nobody holds it")
            del self._cached[block]
        self._references[block] += 1

    def give(self, blocks: Sequence[int]) -> None:
        """Gives up one reference to each block of a table, the last block first.

        So what continues a text is given up before what it continues. Raises `ValueError` for a
        block that nobody holds.
        """
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise ValueError(f"block {block} is given back, but nobody holds it")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._indexed[block]:
                self._cached[block] = None
            else:
                self._free.append(block)

    def set_indexed(self, block: int, indexed: bool) -> None:
        """Says whether the prefix index knows a held block."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is indexed, but nobody holds it")
        self._indexed[block] = indexed

    def by_use(self) -> list[int]:
        """The cached blocks, the one used longest ago first."""
        return list(self._cached)

    def check(self) -> None:
        """Raises `ValueError` unless every block is in exactly one state."""
        free = set(self._free)
        idle = {block for block, count in enumerate(self._references) if count == 0}
        cached = set(self._cached)
        if (
            len(free) != len(self._free)
            or free & cached
            or free | cached != idle
            or min(self._references, default=0) < 0
            or any(self._indexed[block] for block in free)
            or not all(self._indexed[block] for block in cached)
        ):
            raise ValueError(
                f"the block pool is inconsistent: {len(self._free)} in the free list "
                f"({len(free)} distinct), {len(cached)} cached, {len(idle)} without a reference, "
                f"{self.total} in all"
            )


def _ignore(block: int) -> None:
    pass
