"""Products against exact integer sums and float64, and the same bits however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stored_rows
from covering import covering
from matrix_kernels import (
    FORMATS,
    GROUP,
    QUANTISED,
    TIERS,
    TILE,
    Packed,
    Prepared,
    dequantised,
    linear,
    mode_of,
    product,
    source_rows,
    whole_inputs,
)
from stored_rows import round_bf16

tiers = pytest.mark.parametrize("tier", TIERS)
every_format = pytest.mark.parametrize("format_name", FORMATS)
quantised = pytest.mark.parametrize("format_name", QUANTISED)
float_formats = pytest.mark.parametrize("format_name", [f for f in FORMATS if f not in QUANTISED])


def activations(rows, inputs, seed=0):
    """Normal values, some columns a hundred times larger."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (rows, inputs)).astype(np.float32)
    x[:, rng.integers(0, inputs, 1 + inputs // 50)] *= 100
    return x


def expected_of_codes(format_name, source, prepared):
    """float64 sums of weights times what the prepared codes stand for, and of their magnitudes."""
    codes = prepared.values.reshape(prepared.rows, -1, GROUP).astype(np.float64)
    x = codes * prepared.scale.astype(np.float64)[..., None]
    x = x.reshape(prepared.rows, -1)[:, : prepared.inputs]
    exact = x @ stored_rows.multiplied(format_name, source, prepared.inputs).T
    sizes = stored_rows.magnitudes(format_name, source, prepared.inputs)
    return exact, np.abs(x) @ sizes.T


@tiers
@quantised
@settings(max_examples=6, deadline=None)
@given(
    rows=st.integers(1, 70),
    outputs=st.integers(1, 100),
    inputs=st.integers(1, 640),
    seed=st.integers(0, 99),
)
def test_given_the_codes_a_product_is_right_to_float32(
    tier, format_name, rows, outputs, inputs, seed
):
    inputs = whole_inputs(format_name, inputs)
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(seed))
    packed = Packed.of(tier, format_name, source, inputs)
    prepared = Prepared.of(tier, "INT8", activations(rows, inputs, seed))
    out = linear(packed, prepared)[:, :outputs]
    exact, size = expected_of_codes(format_name, source, prepared)
    # Each group rounds its scales, its term and the running sum, by 2^-24 each.
    groups = -(-inputs // GROUP)
    assert np.all(np.abs(out - exact) <= (groups + 6) * 2.0**-23 * size)


@tiers
@quantised
def test_sums_within_a_group_are_exact_integers(tier, format_name):
    """With scales of one, every product is an integer below 2^24: no bit may be lost."""
    rng = np.random.default_rng(8)
    rows, outputs, inputs = 9, 53, whole_inputs(format_name, 96)
    source = source_rows(format_name, outputs, inputs, rng)
    source = stored_rows.with_unit_scales(format_name, source, inputs)
    x = rng.integers(-127, 128, (rows, inputs)).astype(np.float32)
    x[:, ::GROUP] = 127  # so that the scale of every group is one
    out = product(Packed.of(tier, format_name, source, inputs), x)
    exact = x.astype(np.int64) @ stored_rows.multiplied(format_name, source, inputs).T
    assert np.array_equal(exact, np.rint(exact))
    assert np.array_equal(out, exact)


@tiers
@quantised
@pytest.mark.parametrize("low_end", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_extreme_codes_do_not_saturate(tier, format_name, low_end, sign):
    outputs, inputs = 16, whole_inputs(format_name, 64)
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(9))
    source = stored_rows.with_unit_scales(format_name, source, inputs)
    source = stored_rows.with_codes(format_name, source, inputs, low_end)
    x = np.full((1, inputs), 127.0 * sign, np.float32)
    out = product(Packed.of(tier, format_name, source, inputs), x)
    assert np.array_equal(out, x @ stored_rows.multiplied(format_name, source, inputs).T)


@tiers
@float_formats
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 40), outputs=st.integers(1, 70), inputs=st.integers(1, 300))
def test_float_products_are_right_to_float32(tier, format_name, rows, outputs, inputs):
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(inputs))
    x = activations(rows, inputs, rows)
    out = product(Packed.of(tier, format_name, source, inputs), x)
    if format_name == "BF16":
        x = (round_bf16(x).astype(np.uint32) << 16).view(np.float32)
    weights = dequantised(format_name, source, inputs).astype(np.float64)
    exact = x.astype(np.float64) @ weights.T
    size = np.abs(x).astype(np.float64) @ np.abs(weights).T
    assert np.all(np.abs(out - exact) <= 1e-5 * size)


@pytest.mark.parametrize(
    ("tier", "format_name", "shape"), covering(TIERS, FORMATS, [(100, 32), (65, 224), (16, 96)])
)
def test_a_row_has_the_same_bits_alone_and_among_any_number_of_rows(tier, format_name, shape):
    outputs, inputs = shape[0], whole_inputs(format_name, shape[1])
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(10))
    packed = Packed.of(tier, format_name, source, inputs)
    x = Prepared.of(tier, mode_of(format_name), activations(70, inputs))
    alone = linear(packed, x, row_bounds=list(range(71))).view(np.uint32)
    for rows in range(1, 70):
        among = linear(packed, x, row_bounds=[0, rows, 70]).view(np.uint32)
        assert np.array_equal(among, alone), rows
    assert np.array_equal(linear(packed, x).view(np.uint32), alone)


def bounds(most):
    """Any way to cut [0, most) into pieces."""
    cuts = st.sets(st.integers(1, most - 1)) if most > 1 else st.just(set())
    return cuts.map(lambda chosen: [0, *sorted(chosen), most])


@tiers
@every_format
@settings(max_examples=12, deadline=None)
@given(data=st.data(), rows=st.integers(1, 30), tile_count=st.integers(1, 13))
def test_the_bits_do_not_depend_on_how_rows_and_tiles_are_cut(
    tier, format_name, data, rows, tile_count
):
    inputs = whole_inputs(format_name, 96)
    source = source_rows(format_name, tile_count * TILE - 3, inputs, np.random.default_rng(11))
    packed = Packed.of(tier, format_name, source, inputs)
    x = Prepared.of(tier, mode_of(format_name), activations(rows, inputs))
    whole = linear(packed, x)
    cut = linear(packed, x, data.draw(bounds(rows)), data.draw(bounds(tile_count)))
    assert np.array_equal(cut.view(np.uint32), whole.view(np.uint32))


@tiers
@every_format
def test_blocks_of_rows_that_fill_the_cache_change_no_bit(tier, format_name):
    """4,096 float32 inputs are 16 KB a row, so 60 rows do not stay in the cache together."""
    inputs = 4096
    source = source_rows(format_name, 32, inputs, np.random.default_rng(12))
    packed = Packed.of(tier, format_name, source, inputs)
    x = Prepared.of(tier, mode_of(format_name), activations(60, inputs))
    whole = linear(packed, x)
    cut = linear(packed, x, row_bounds=[0, 1, 3, 24, 59, 60])
    assert np.array_equal(whole.view(np.uint32), cut.view(np.uint32))


@tiers
@quantised
def test_tiles_unpacked_for_many_rows_change_no_bit(tier, format_name):
    """Three tiles are a pair and one alone; 24 groups and one are unpacked in two turns."""
    inputs = whole_inputs(format_name, 800)
    source = source_rows(format_name, 40, inputs, np.random.default_rng(18))
    packed = Packed.of(tier, format_name, source, inputs)
    x = Prepared.of(tier, mode_of(format_name), activations(64, inputs))
    few = linear(packed, x, row_bounds=[*range(0, 64, 2), 64])
    for rows in (9, 13, 36, 40, 64):
        many = linear(packed, x, row_bounds=sorted({0, rows, 64}))
        assert np.array_equal(many.view(np.uint32), few.view(np.uint32)), rows


@pytest.mark.skipif(not {"avx2", "avx512"} <= set(TIERS), reason="this machine lacks a tier")
@pytest.mark.parametrize("format_name", [f for f in FORMATS if f != "BF16"])
def test_the_tiers_that_round_alike_give_the_same_bits(format_name):
    """BF16 is left out: its AVX-512 instruction rounds in a way of its own."""
    inputs = whole_inputs(format_name, 352)
    source = source_rows(format_name, 77, inputs, np.random.default_rng(13))
    x = activations(11, inputs)
    first, second = [
        product(Packed.of(tier, format_name, source, inputs), x) for tier in ("avx2", "avx512")
    ]
    assert np.array_equal(first.view(np.uint32), second.view(np.uint32))


@pytest.mark.parametrize(
    ("tier", "format_name", "bad"), covering(TIERS, FORMATS, [np.nan, np.inf, -np.inf])
)
def test_a_bad_number_spoils_its_own_row_and_no_other(tier, format_name, bad):
    inputs = whole_inputs(format_name, 96)
    source = source_rows(format_name, 40, inputs, np.random.default_rng(14))
    packed = Packed.of(tier, format_name, source, inputs)
    x = activations(9, inputs)
    good = product(packed, x)
    x[4, 50] = bad
    out = product(packed, x)
    assert not np.any(np.isfinite(out[4]))
    others = [row for row in range(9) if row != 4]
    assert np.array_equal(out[others].view(np.uint32), good[others].view(np.uint32))


@tiers
@quantised
def test_a_scale_shifted_by_one_group_is_noticed(tier, format_name):
    """The tolerance of these tests can fail: a neighbour's scale is far outside it."""
    outputs, inputs = 32, 1024
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(15))
    scales = stored_rows.scale_bytes(format_name, source, inputs)
    scales = scales.view(np.float32 if format_name.startswith("INT8") else np.float16)
    scales = scales.reshape(outputs, -1)
    block = stored_rows.BLOCKS.get(format_name)
    shifted = np.roll(scales, block.halves if block else 1, axis=int(scales.shape[1] > 1))
    shifted = stored_rows.with_scales(format_name, source, inputs, shifted)
    prepared = Prepared.of(tier, "INT8", activations(3, inputs))
    packed = Packed.of(tier, format_name, shifted, inputs)
    exact, _ = expected_of_codes(format_name, source, prepared)
    out = linear(packed, prepared)[:, :outputs]
    assert np.max(np.abs(out - exact)) > 1e-2 * np.max(np.abs(exact))


@pytest.mark.parametrize("format_name", ["NF4_B64", "NF4_B128"])
def test_nf4_in_the_fast_mode_is_off_by_no_more_than_its_rounded_levels(format_name):
    """Half of 1/127 of a block's largest magnitude for each weight; and the exact mode by none."""
    inputs = 300
    source = source_rows(format_name, 40, inputs, np.random.default_rng(16))
    x = np.random.default_rng(17).integers(-127, 128, (5, inputs)).astype(np.float32)
    x[:, ::GROUP] = 127
    wanted = x.astype(np.float64) @ dequantised(format_name, source, inputs).T.astype(np.float64)
    fast = product(Packed.of(TIERS[-1], format_name, source, inputs), x)
    exact = product(Packed.of(TIERS[-1], f"{format_name}_EXACT", source, inputs), x)
    absmax = stored_rows.scale_bytes(format_name, source, inputs)[:, 0].view(np.float16)
    absmax = np.repeat(np.abs(absmax.astype(np.float64)), int(format_name[5:]), axis=1)[:, :inputs]
    bound = np.abs(x) @ (absmax * (0.5001 / 127)).T
    assert np.all(np.abs(fast - wanted) <= bound)
    assert np.max(np.abs(exact - wanted)) < 1e-3 * np.max(np.abs(fast - wanted))
