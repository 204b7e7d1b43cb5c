"""A row's attention is the same bits however it is computed; merges in another order are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_oracle import (
    CACHE_TYPES,
    CODED,
    TIERS,
    PagedCache,
    head_size,
    kernels,
    merge,
    normal,
    same_bits,
)
from covering import covering

tiers = pytest.mark.parametrize("tier", TIERS)
cache_types = pytest.mark.parametrize("cache_type", CACHE_TYPES)


@tiers
@cache_types
@settings(max_examples=15)
@given(
    head_dim=st.sampled_from([16, 24, 64, 80, 96, 128, 256]),
    group=st.integers(1, 9),
    first_position=st.integers(0, 600),
    window=st.sampled_from([0, 0, 1, 5, 40, 256, 300]),
    tiles=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_bits_do_not_depend_on_tiles_group_placement_garbage_or_later_tokens(
    tier, cache_type, head_dim, group, first_position, window, tiles, seed
):
    head_dim = head_size(cache_type, head_dim)
    queries = sum(tiles)
    keys, values = normal(seed, 2, first_position + queries, head_dim)
    query = normal(seed + 1, queries, group, head_dim)
    whole = PagedCache.of(tier, cache_type, keys, values, seed=seed)
    out = whole.attend(query, first_position, window=window)
    assert np.isfinite(out).all()
    assert same_bits(whole.attend(query, first_position, window=window, tiles=tiles), out)

    # One head of one query at a time, in a cache that ends there, lies elsewhere, and holds other
    # garbage in place of what left the window.
    for index in {0, queries // 2, queries - 1}:
        end = first_position + index + 1
        gone = max(0, end - window) if window else 0
        seen_keys, seen_values = keys[:end].copy(), values[:end].copy()
        seen_keys[:gone] = np.inf
        seen_values[:gone] = np.nan
        alone = PagedCache.of(
            tier, cache_type, seen_keys, seen_values, seed=seed + 7, garbage=None, spare_blocks=9
        )
        head = seed % group
        single = query[index : index + 1, head : head + 1]
        result = alone.attend(single, end - 1, window=window)
        assert same_bits(result[0, 0], out[index, head])


@tiers
@cache_types
@pytest.mark.parametrize("garbage", [0x00, 0x7C, 0x7F, 0x80, 0xFF, None])
def test_garbage_in_unused_slots_changes_no_bit(tier, cache_type, garbage):
    keys, values = normal(1, 2, 301, 64)
    query = normal(2, 5, 3, 64)
    clean = PagedCache.of(tier, cache_type, keys, values, garbage=0)
    dirty = PagedCache.of(tier, cache_type, keys, values, garbage=garbage)
    assert same_bits(dirty.attend(query, 296), clean.attend(query, 296))


@tiers
@cache_types
@pytest.mark.parametrize(
    ("head_dim", "first_position", "group"),
    covering([24, 64, 80, 96, 128, 256], [5, 252, 253, 306], [1, 3, 4]),
)
def test_rows_of_a_tile_do_not_see_what_is_no_number_in_later_ones(
    tier, cache_type, head_dim, group, first_position
):
    """Their neighbours in the tile read it in the same vectors, half of a pair even."""
    head_dim = head_size(cache_type, head_dim)
    keys, values = normal(13, 2, first_position + 8, head_dim)
    query = normal(14, 8, group, head_dim)
    cache = PagedCache.of(tier, cache_type, keys, values)
    clean = cache.attend(query, first_position)
    broken = np.full(head_dim, np.nan, np.float32)
    for index in range(7, 0, -1):
        cache.write(first_position + index, broken, broken)
        out = cache.attend(query, first_position)
        assert same_bits(out[:index], clean[:index])
        assert cache_type in CODED or np.isnan(out[index:]).all()


@tiers
@cache_types
@pytest.mark.parametrize(
    ("window", "head_dim", "first_position"),
    covering([1, 2, 3, 8, 33], [24, 64, 128], [40, 41, 260]),
)
def test_rows_of_a_tile_do_not_see_what_has_left_their_windows(
    tier, cache_type, head_dim, window, first_position
):
    head_dim = head_size(cache_type, head_dim)
    keys, values = normal(15, 2, first_position + 8, head_dim)
    query = normal(16, 8, 3, head_dim)
    cache = PagedCache.of(tier, cache_type, keys, values)
    clean = cache.attend(query, first_position, window=window)
    broken = np.full(head_dim, np.nan, np.float32)
    for index in range(1, 8):
        cache.write(first_position + index - window, broken, broken)
        out = cache.attend(query, first_position, window=window)
        assert same_bits(out[index:], clean[index:])
        assert cache_type in CODED or np.isnan(out[:index]).any()


@tiers
@cache_types
def test_every_position_a_row_may_see_changes_its_bits(tier, cache_type):
    keys, values = normal(3, 2, 290, 16)
    query = normal(4, 1, 1, 16)
    cache = PagedCache.of(tier, cache_type, keys, values)
    out = cache.attend(query, 289)
    for position in range(290):
        cache.write(position, keys[position], values[position] + 8)
        assert not same_bits(cache.attend(query, 289), out), position
        cache.write(position, keys[position], values[position])
    assert same_bits(cache.attend(query, 289), out)


@tiers
@cache_types
def test_a_partial_that_saw_nothing_changes_no_bit_of_a_state(tier, cache_type):
    keys, values = normal(5, 2, 300, 64)
    query = normal(6, 2, 3, 64)
    cache = PagedCache.of(tier, cache_type, keys, values)
    nothing = cache.chunk(query, 254, 0, 0.125, 1)
    # Largest scores on either side of whatever `nothing` has in the place of one.
    for lower in (0, 9):
        state = cache.chunk(query, 254, 0, 0.125, 0)
        state[:, 65] -= lower
        before = state.copy()
        kernels.attend_merge(tier, 64, state, nothing)
        assert same_bits(state, before)


@tiers
@pytest.mark.parametrize("head_dim", [8, 16, 64, 80])
def test_a_state_that_saw_nothing_becomes_the_partial(tier, head_dim):
    partial = normal(7, 3, kernels.partial_floats(head_dim))
    state = normal(8, *partial.shape)
    state[:, head_dim] = 0
    kernels.attend_merge(tier, head_dim, state, partial)
    used = head_dim + 2
    assert same_bits(state[:, :used].copy(), partial[:, :used].copy())


@tiers
@cache_types
def test_starting_from_the_first_partial_is_starting_from_nothing(tier, cache_type):
    keys, values = normal(9, 2, 1200, 64)
    query = normal(10, 1, 3, 64)
    cache = PagedCache.of(tier, cache_type, keys, values)
    partials = [cache.chunk(query, 1199, 0, 0.125, chunk) for chunk in range(5)]
    state = partials[0].copy()
    for partial in partials[1:]:
        kernels.attend_merge(tier, 64, state, partial)
    assert same_bits(state[:, :66].copy(), merge(tier, partials, 64)[:, :66].copy())


@tiers
@cache_types
def test_another_order_of_merges_changes_bits(tier, cache_type):
    keys, values = normal(11, 2, 1200, 64)
    query = normal(12, 8, 3, 64)
    cache = PagedCache.of(tier, cache_type, keys, values)
    out = cache.attend(query, 1192)
    reversed_out = cache.attend(query, 1192, reverse=True)
    assert not same_bits(out, reversed_out)
    assert np.allclose(out, reversed_out, rtol=1e-4, atol=1e-6)
