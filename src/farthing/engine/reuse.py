"""What a sequence need not compute: what the cache has, or another is about to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.engine.kv import blocks_for
from farthing.engine.prefix import PrefixIndex, extend_chain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.engine.kv import BlockPool
    from farthing.engine.scheduler import Counters
    from farthing.engine.sequence import Sequence


class Reuse:
    """Takes blocks from the prefix index for sequences, and makes theirs known to it.

    A running sequence claims the blocks of its prompt that it is about to compute. Another that
    needs one of them waits for it: a claim lasts until the block is known, or its owner is out.
    """

    def __init__(self, pool: BlockPool, counters: Counters, *, sharing: bool) -> None:
        self.index = PrefixIndex(pool) if sharing else None
        self._pool = pool
        self._counters = counters
        self._claims: dict[bytes, Sequence] = {}

    def prepare(self, sequence: Sequence) -> None:
        """Hashes the full blocks of a new sequence's prompt."""
        if self.index is not None:
            extend_chain(sequence.chain, sequence.root, sequence.tokens, len(sequence.tokens))

    def wanted_blocks(self, sequence: Sequence) -> int:
        """How many of the available blocks a waiting sequence would take for all that it knows."""
        wanted = blocks_for(len(sequence.tokens))
        if self.index is not None:
            for hash_ in sequence.chain[: blocks_for(sequence.reusable)]:
                entry = self.index.get(hash_)
                if entry is None:
                    break
                # A cached block is available, and would be no longer.
                wanted -= self._pool.references(entry.block) > 0
        return wanted

    def resume(self, sequence: Sequence) -> bool:
        """Takes what the cache has of a running sequence's next tokens, all but the last known.

        And nothing of a prompt whose rows are wanted and were not taken yet. False while another is
        about to compute what comes next.
        """
        last = sequence.reusable
        if sequence.computed >= last:
            return True
        if sequence.fork_of is not None and not self._fork(sequence, sequence.fork_of):
            return False
        if self.index is None:
            return True
        while sequence.computed < last and sequence.computed % BLOCK_TOKENS == 0:
            at = sequence.computed // BLOCK_TOKENS
            if at == len(sequence.chain):
                break
            entry = self.index.get(sequence.chain[at])
            if entry is None:
                owner = self._claims.get(sequence.chain[at])
                if owner is not None and owner is not sequence:
                    return False
                break
            self._take(sequence, entry.block, min(BLOCK_TOKENS, last - sequence.computed))
        if not sequence.searched:
            self._search(sequence, self.index, last)
        return True

    def offer(self, sequence: Sequence) -> None:
        """Makes the full blocks known that a step has computed."""
        full = sequence.computed // BLOCK_TOKENS
        if self.index is None or full == sequence.indexed:
            return
        chain, tokens = sequence.chain, sequence.tokens
        extend_chain(chain, sequence.root, tokens, sequence.computed)
        for at in range(sequence.indexed, full):
            self._claims.pop(chain[at], None)
            sequence.blocks[at] = self.index.add(
                chain[at],
                chain[at - 1] if at else sequence.root,
                tokens[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS],
                sequence.blocks[at],
            )
        sequence.indexed = full

    def withdraw(self, sequence: Sequence) -> None:
        """A sequence that runs no longer computes nothing for others."""
        for hash_ in sequence.chain[sequence.indexed :]:
            if self._claims.get(hash_) is sequence:
                del self._claims[hash_]

    def forget(self, block: int) -> None:
        """Takes a block out of the index, so that its one holder may write to it."""
        if self.index is not None:
            self.index.forget(block)

    def check(self, running: Iterable[Sequence]) -> None:
        """Raises `ValueError` unless the index is whole and only running sequences have claims."""
        if self.index is not None:
            self.index.check()
        owners = {id(sequence) for sequence in running}
        if any(id(owner) not in owners for owner in self._claims.values()):
            raise ValueError("a sequence that does not run has claimed a block")

    def _fork(self, sequence: Sequence, parent: Sequence) -> bool:
        """Shares the prompt that another choice has computed; False while it is at it."""
        end = min(len(sequence.request.prompt) - 1, sequence.reusable)
        if not parent.running or sequence.computed >= end or sequence.computed % BLOCK_TOKENS:
            sequence.fork_of = None
            return True
        if parent.computed < end:
            return False
        sequence.fork_of = None
        for block in parent.blocks[len(sequence.blocks) : blocks_for(end)]:
            self._take(sequence, block, min(BLOCK_TOKENS, end - sequence.computed))
        return True

    def _search(self, sequence: Sequence, index: PrefixIndex, last: int) -> None:
        """Looks inside the block where the known prefix ends, and claims the rest of the prompt."""
        sequence.searched = True
        at = sequence.computed // BLOCK_TOKENS
        if sequence.computed % BLOCK_TOKENS == 0 and sequence.computed < last:
            parent = sequence.chain[at - 1] if at else sequence.root
            following = sequence.tokens[sequence.computed : sequence.computed + BLOCK_TOKENS]
            closest = index.closest(parent, following)
            if closest is not None and closest[1]:
                entry, alike = closest
                self._take(sequence, entry.block, min(alike, last - sequence.computed))
        if sequence.computed < last and sequence.preemptions == 0:
            sequence.miss = index.explain(
                sequence.chain, sequence.root, sequence.tokens, sequence.computed
            )
        for hash_ in sequence.chain[at:]:
            self._claims.setdefault(hash_, sequence)

    def _take(self, sequence: Sequence, block: int, tokens: int) -> None:
        """The first `tokens` positions of a block are the next ones of the sequence."""
        self._pool.share(block)
        sequence.blocks.append(block)
        sequence.computed += tokens
        sequence.furthest = max(sequence.furthest, sequence.computed)
        if self.index is not None and tokens == BLOCK_TOKENS:
            # Of a fork's block it is not known yet whether it is in the index.
            sequence.indexed += self.index.holds(block)
        if sequence.preemptions == 0:
            sequence.reused += tokens
            self._counters.reused_tokens += tokens
