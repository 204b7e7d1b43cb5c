from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farthing.engine.kv import BlockPool, blocks_for


@pytest.mark.parametrize(
    ("positions", "blocks"), [(0, 0), (1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)]
)
def test_a_block_holds_32_positions(positions: int, blocks: int) -> None:
    assert blocks_for(positions) == blocks


def test_blocks_are_taken_lowest_first_and_the_freed_last_is_taken_next() -> None:
    pool = BlockPool(5)
    assert pool.take(3) == [0, 1, 2]
    pool.give([1])
    assert pool.take(2) == [1, 3]


def test_taking_more_than_is_free_takes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free and 0 cached of 2"):
        pool.take(3)
    assert pool.free == 2


@pytest.mark.parametrize("blocks", [[0], [1, 1], [2]])
def test_a_block_that_nobody_holds_cannot_be_given_back(blocks: list[int]) -> None:
    pool = BlockPool(3)
    pool.take(2)
    if blocks != [1, 1]:
        pool.give([0])
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.give(blocks)


@pytest.mark.parametrize("fault", ["lost", "doubled", "free while referenced"])
def test_the_check_notices_a_pool_that_was_tampered_with(fault: str) -> None:
    pool = BlockPool(4)
    pool.take(1)
    pool.check()
    if fault == "lost":
        pool._free.pop()
    elif fault == "doubled":
        pool._free.append(pool._free[0])
    else:
        pool._free.append(0)
    with pytest.raises(ValueError, match="inconsistent"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Takes and gives in any order; keeps its own account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 12))
    def take(self, count: int) -> None:
        if count > self.pool.free:
            with pytest.raises(ValueError, match="wanted"):
                self.pool.take(count)
        else:
            self.tables.append(self.pool.take(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.give(self.tables.pop(index))

    @invariant()
    def every_block_is_free_or_held_by_one(self) -> None:
        self.pool.check()
        held = [block for table in self.tables for block in table]
        assert len(set(held)) == len(held) == self.pool.held
        assert self.pool.free + self.pool.held == 12


TestPoolMachine = PoolMachine.TestCase


@given(st.integers(0, 200))
def test_a_whole_pool_can_be_taken_and_given_back(total: int) -> None:
    pool = BlockPool(total)
    blocks = pool.take(total)
    assert sorted(blocks) == list(range(total))
    assert pool.free == 0
    pool.give(blocks)
    assert pool.free == total
