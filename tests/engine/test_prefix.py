from __future__ import annotations

import pytest

from farthing.engine.kv import BlockPool
from farthing.engine.prefix import PrefixIndex, block_hash, extend_chain, root_hash

A, B, C, D = (tuple(range(start, start + 32)) for start in (0, 100, 200, 300))
ROOT = root_hash("")


def filled(
    pool: BlockPool, index: PrefixIndex, *parts: tuple[int, ...]
) -> tuple[list[int], list[bytes]]:
    """A text of whole blocks, computed and then given up; its blocks and its hashes."""
    tokens = [token for part in parts for token in part]
    chain: list[bytes] = []
    extend_chain(chain, ROOT, tokens, len(tokens))
    blocks = pool.take(len(parts))
    for at, part in enumerate(parts):
        blocks[at] = index.add(chain[at], chain[at - 1] if at else ROOT, part, blocks[at])
    pool.give(blocks)
    return blocks, chain


def test_a_hash_stands_for_a_block_and_all_before_it_and_for_its_caller() -> None:
    assert block_hash(ROOT, A) == block_hash(root_hash(""), A)
    assert block_hash(ROOT, A) != block_hash(root_hash("somebody"), A)
    assert block_hash(block_hash(ROOT, A), C) != block_hash(block_hash(ROOT, B), C)


def test_a_chain_grows_by_whole_blocks_only() -> None:
    chain: list[bytes] = []
    extend_chain(chain, ROOT, [*A, *B], 63)
    assert chain == [block_hash(ROOT, A)]
    extend_chain(chain, ROOT, [*A, *B], 64)
    assert chain == [block_hash(ROOT, A), block_hash(chain[0], B)]


def test_the_end_of_a_text_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(4)
    index = PrefixIndex(pool)
    _, chain = filled(pool, index, A, B, C)
    assert (pool.free, pool.cached) == (1, 3)
    pool.take(2)
    assert [index.get(hash_) is not None for hash_ in chain] == [True, True, False]
    index.check()


def test_of_two_texts_the_one_used_longest_ago_goes_first() -> None:
    pool = BlockPool(4)
    index = PrefixIndex(pool)
    _, old = filled(pool, index, A, B)
    _, new = filled(pool, index, C, D)
    entry = index.get(old[0])
    assert entry is not None
    pool.share(entry.block)
    pool.give([entry.block])
    pool.take(2)
    assert index.get(old[0]) is not None
    assert [index.get(hash_) is not None for hash_ in (old[1], *new)] == [False, True, False]


def test_a_block_that_was_computed_twice_is_kept_once() -> None:
    pool = BlockPool(4)
    index = PrefixIndex(pool)
    [first], _ = filled(pool, index, A)
    [second], _ = filled(pool, index, A)
    assert first == second
    assert (pool.free, pool.cached, len(index)) == (3, 1, 1)


def test_the_closest_known_block_is_the_one_that_begins_most_like_it() -> None:
    pool = BlockPool(8)
    index = PrefixIndex(pool)
    filled(pool, index, A, B)
    filled(pool, index, A, (*B[:20], *C[:12]))
    parent = block_hash(ROOT, A)
    closest = index.closest(parent, [*B[:20], C[0], 7])
    assert closest is not None
    assert closest[1] == 21
    assert index.closest(block_hash(ROOT, C), B) is None


def explained(
    pool: BlockPool, index: PrefixIndex, tokens: list[int], reused: int
) -> tuple[object, ...]:
    chain: list[bytes] = []
    extend_chain(chain, ROOT, tokens, len(tokens))
    miss = index.explain(chain, ROOT, tokens, reused)
    assert (miss.position, miss.reused, miss.recomputed) == (reused, reused, len(tokens) - reused)
    return miss.reason, miss.token, miss.other_token, miss.avoidable


def test_a_miss_says_which_token_differs_and_what_it_cost() -> None:
    pool = BlockPool(8)
    index = PrefixIndex(pool)
    filled(pool, index, A, B, C)
    changed = [*A, *B[:10], 999, *B[11:], *C, 5, 6]
    assert explained(pool, index, changed, 42) == ("differs", 999, 110, 54)


def test_a_miss_says_that_the_text_was_evicted() -> None:
    pool = BlockPool(3)
    index = PrefixIndex(pool)
    filled(pool, index, A, B, C)
    pool.take(2)
    assert explained(pool, index, [*A, *B, *C, 5], 32) == ("evicted", B[0], None, 64)


def test_a_miss_says_that_nothing_was_known() -> None:
    pool = BlockPool(4)
    index = PrefixIndex(pool)
    filled(pool, index, A)
    assert explained(pool, index, [*A, *B], 32) == ("new", B[0], None, 0)
    assert explained(pool, index, [*B, 5], 0) == ("new", B[0], None, 0)


def test_what_was_restored_is_found_and_evicted_from_its_end() -> None:
    pool = BlockPool(3)
    index = PrefixIndex(pool)
    first = block_hash(ROOT, A)
    assert index.restore(first, B) == 0
    assert index.restore(ROOT, A) == 1
    assert index.restore(ROOT, A) is None
    index.check()
    assert [entry.tokens for entry in index.entries()] == [A, B]
    pool.take(2)
    assert [entry.tokens for entry in index.entries()] == [A]


def test_nothing_is_restored_into_a_full_pool() -> None:
    pool = BlockPool(1)
    index = PrefixIndex(pool)
    filled(pool, index, A)
    assert index.restore(ROOT, B) is None
    assert index.get(block_hash(ROOT, A)) is not None


@pytest.mark.parametrize("fault", ["block", "sibling", "listed"])
def test_the_check_notices_an_index_that_was_tampered_with(fault: str) -> None:
    pool = BlockPool(4)
    index = PrefixIndex(pool)
    [block], [hash_] = filled(pool, index, A)
    if fault == "block":
        del index._by_block[block]
    elif fault == "sibling":
        index._children[ROOT] = {}
    else:
        index._children[hash_] = {hash_: index._entries[hash_]}
    with pytest.raises(ValueError, match="prefix index"):
        index.check()
