"""Attention over the paged cache against float64 softmax attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_oracle import (
    CACHE_TYPES,
    CHUNK,
    TIERS,
    PagedCache,
    head_size,
    int4_codes,
    int4_numbers,
    kernels,
    keys_in_cache,
    normal,
    relative_error,
    rounded_attention,
    scaled_query,
    softmax_attention,
    values_in_cache,
)
from covering import covering

tiers = pytest.mark.parametrize("tier", TIERS)
cache_types = pytest.mark.parametrize("cache_type", CACHE_TYPES)


def error_of(tier, cache_type, query, keys, values, first_position, window=0, scale=None):
    cache = PagedCache.of(tier, cache_type, keys, values)
    out = cache.attend(query, first_position, window=window, scale=scale)
    arguments = (
        query,
        keys_in_cache(cache_type, keys),
        values_in_cache(cache_type, values),
        first_position,
        window,
        query.shape[-1] ** -0.5 if scale is None else scale,
    )
    if cache_type != "bf16":
        return relative_error(out, softmax_attention(*arguments))
    expected, slack = rounded_attention(*arguments)
    # The nearest to what is expected that is within the slack.
    nearest = np.clip(expected, out - slack[..., None], out + slack[..., None])
    return relative_error(nearest.astype(np.float32), expected)


@tiers
@pytest.mark.parametrize(
    ("head_dim", "cache_type", "group"),
    covering([8, 16, 24, 32, 64, 80, 96, 128, 256], CACHE_TYPES, [1, 3, 4]),
)
def test_prefill_of_any_head_size_agrees_with_softmax(tier, cache_type, head_dim, group):
    head_dim = head_size(cache_type, head_dim)
    keys, values = normal(head_dim, 2, 300, head_dim)
    query = normal(group, 21, group, head_dim)
    assert error_of(tier, cache_type, query, keys, values, 279) < 1e-5


@tiers
@cache_types
@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 9, 16, 64])
def test_decoding_with_any_group_agrees_with_softmax(tier, cache_type, group):
    keys, values = normal(group, 2, 530, 64)
    query = normal(group + 1, 1, group, 64)
    assert error_of(tier, cache_type, query, keys, values, 529) < 1e-5


@tiers
@cache_types
@pytest.mark.parametrize("window", [1, 2, 7, 31, 32, 33, 100, 256, 257, 511, 512, 600])
def test_a_window_hides_all_but_the_latest_positions(tier, cache_type, window):
    keys, values = normal(window, 2, 540, 32)
    query = normal(1, 40, 2, 32)
    assert error_of(tier, cache_type, query, keys, values, 500, window) < 1e-5


@tiers
@cache_types
@settings(max_examples=25)
@given(
    head_dim=st.integers(1, 20).map(lambda n: 8 * n),
    group=st.integers(1, 13),
    queries=st.integers(1, 20),
    first_position=st.integers(0, 600),
    window=st.one_of(st.just(0), st.integers(1, 700)),
    seed=st.integers(0, 1000),
)
def test_any_shape_agrees_with_softmax(
    tier, cache_type, head_dim, group, queries, first_position, window, seed
):
    head_dim = head_size(cache_type, head_dim)
    keys, values = normal(seed, 2, first_position + queries, head_dim)
    query = normal(seed + 1, queries, group, head_dim)
    assert error_of(tier, cache_type, query, keys, values, first_position, window) < 1e-5


@tiers
@cache_types
def test_a_long_context_agrees_with_softmax(tier, cache_type):
    keys, values = normal(1, 2, 4500, 16)
    query = normal(2, 3, 3, 16)
    assert error_of(tier, cache_type, query, keys, values, 4497) < 1e-5


@tiers
@cache_types
def test_scores_far_apart_choose_the_best_position(tier, cache_type):
    keys, values = normal(1, 2, 700, 64)
    query = 100 * normal(2, 4, 2, 64)
    cache = PagedCache.of(tier, cache_type, keys, values)
    out = cache.attend(query, 696, scale=10.0)
    scores = scaled_query(cache_type, query, 10.0) @ keys_in_cache(cache_type, keys).T
    for i in range(4):
        best = scores[i, :, : 697 + i].argmax(axis=-1)
        assert relative_error(out[i], values_in_cache(cache_type, values)[best]) < 1e-6


@tiers
@cache_types
def test_equal_keys_give_the_mean_of_the_values(tier, cache_type):
    keys = np.repeat(normal(1, 1, 64), 600, axis=0)
    values = normal(2, 600, 64)
    out = PagedCache.of(tier, cache_type, keys, values).attend(normal(3, 1, 5, 64), 599)
    mean = values_in_cache(cache_type, values).mean(axis=0)
    assert relative_error(out, np.broadcast_to(mean, out.shape)) < 1e-5


@tiers
@pytest.mark.parametrize("offset", [0, 3])
def test_rounding_to_bf16_costs_less_than_its_step(tier, offset):
    """Against attention that rounds nothing but the cache. An offset common to all values comes
    through nearly whole: weights are divided by the sum of what they were rounded to.
    """
    keys, values = normal(20, 2, 400, 64)
    values += np.float32(offset)
    query = normal(21, 16, 3, 64)
    out = PagedCache.of(tier, "bf16", keys, values).attend(query, 384)
    stored = [values_in_cache("bf16", x) for x in (keys, values)]
    exact = softmax_attention(query, *stored, 384, 0, 0.125)
    assert 0 < np.abs(out - exact).max() < 2.0**-8 * np.abs(exact - offset).max()


@tiers
def test_an_int8_value_of_zeros_weighs_as_much_as_another(tier):
    keys, values = normal(4, 2, 40, 32)
    values[7] = 0
    keys[9] = 0
    assert error_of(tier, "int8", normal(5, 1, 3, 32), keys, values, 39) < 1e-5


@tiers
@pytest.mark.parametrize("head_dim", [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_rotated_heads_of_every_size_agree_with_softmax(tier, head_dim):
    keys, values = normal(head_dim, 2, 70, head_dim)
    assert error_of(tier, "int4-keys", normal(1, 9, 3, head_dim), keys, values, 61) < 1e-5


def test_rotation_makes_four_bits_of_keys_with_outliers_worth_it():
    """One dimension fifty times as large as the others, as real keys have them."""
    keys, query = normal(1, 400, 64), normal(2, 400, 64)
    keys[:, 5] *= 50
    plain = int4_numbers(*int4_codes(keys))
    exact = np.einsum("ij,ij->i", query, keys.astype(np.float64))
    errors = [
        np.abs(np.einsum("ij,ij->i", query, each) - exact).mean()
        for each in (keys_in_cache("int4-keys", keys), plain)
    ]
    assert 2 * errors[0] < errors[1]


@tiers
def test_a_partial_holds_weighted_values_sum_of_weights_and_largest_score(tier):
    keys, values = normal(6, 2, 300, 32)
    query = normal(7, 1, 1, 32)
    cache = PagedCache.of(tier, "fp32", keys, values)
    scores = 0.5 * (keys.astype(np.float64) @ query[0, 0])
    for chunk in (0, 1):
        seen = slice(chunk * CHUNK, 300 if chunk else CHUNK)
        weights = np.exp(scores[seen] - scores[seen].max())
        partial = cache.chunk(query, 299, 0, 0.5, chunk)[0]
        assert partial[33] == pytest.approx(scores[seen].max() * np.log2(np.e), rel=1e-6)
        assert partial[32] == pytest.approx(weights.sum(), rel=1e-6)
        sums = weights @ values[seen].astype(np.float64)
        assert partial[:32] == pytest.approx(sums, rel=1e-5, abs=1e-5)
        assert np.isnan(partial[34:]).all(), "the padding is not the kernel's to write"


@tiers
@pytest.mark.parametrize(
    ("first_position", "window", "chunk"),
    [(255, 0, 1), (100, 0, 3), (600, 50, 0), (600, 89, 1), (600, 80, 0)],
)
def test_a_chunk_of_which_a_row_sees_nothing_has_sum_zero(tier, first_position, window, chunk):
    keys, values = normal(8, 2, 601, 16)
    cache = PagedCache.of(tier, "fp16", keys, values)
    partial = cache.chunk(normal(9, 1, 2, 16), first_position, window, 1.0, chunk)
    assert np.array_equal(partial[:, :17], np.zeros((2, 17), np.float32))


def test_bindings_refuse_arrays_of_the_wrong_shape():
    keys, values = normal(1, 2, 40, 16)
    cache = PagedCache.of("scalar", "fp32", keys, values)
    with pytest.raises(ValueError, match="queries"):
        cache.chunk(normal(2, 9, 1, 16), 20, 0, 1.0, 0)
    with pytest.raises(ValueError, match="head_block_bytes"):
        cache.chunk(normal(2, 1, 1, 32), 20, 0, 1.0, 0)
    for cache_type, size in (("bf16", 3), ("int4-keys", 1), ("int4-keys", 24), ("int4-keys", 2048)):
        with pytest.raises(ValueError, match="takes no heads of this head_dim"):
            PagedCache.of("scalar", cache_type, *normal(1, 2, 1, size))
    with pytest.raises(ValueError, match="twice as many"):
        kernels.rope("scalar", keys[0], values[0], values[0])
