"""The block pool: which blocks of the paged cache are free, and how often each is held.

Who owns a block, and when it moves:

    free list --take()--> one sequence's block table --give()--> free list

A block is in exactly one of the two places. A table holds one reference to each of its blocks, and
the last reference given back frees the block. The bytes of a block live in the backend; here it is
a number from 0 to total - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable


def blocks_for(positions: int) -> int:
    """How many blocks hold `positions` token positions."""
    return -(-positions // BLOCK_TOKENS)


class BlockPool:
    """A fixed number of blocks; free + held = total, always."""

    def __init__(self, total: int) -> None:
        self.total = total
        # A stack: the block freed last, whose lines may still be in a CPU cache, is taken first.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """How many blocks somebody holds."""
        return self.total - len(self._free)

    def take(self, count: int) -> list[int]:
        """Moves `count` free blocks to the caller, who must `give` each back exactly once.

        Raises `ValueError` when fewer are free: whoever admits a sequence counts first.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} of {self.total} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def give(self, blocks: Iterable[int]) -> None:
        """Gives up one reference to each block; raises `ValueError` for one that nobody holds."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"block {block} is given back, but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """Raises `ValueError` unless every block is either free once or held."""
        free = set(self._free)
        unreferenced = {block for block, count in enumerate(self._references) if count == 0}
        if len(free) != len(self._free) or free != unreferenced or min(self._references) < 0:
            raise ValueError(
                f"the block pool is inconsistent: {len(self._free)} in the free list ({len(free)} "
                f"distinct), {len(unreferenced)} without a reference, {self.total} in all"
            )
