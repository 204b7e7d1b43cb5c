"""What holds for every format of farthing: INT8, INT4 and NF4, whatever the shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError, StoredTensor
from farthing.files.formats import OWN_FORMATS, stored_bytes
from farthing.quant.formats import WRITABLE_FORMATS, bits_per_weight, decode, encode
from farthing.quant.nf4 import NF4_LEVELS
from quant.rows import (
    ASYMMETRIC,
    DOUBLE,
    INT8,
    NF4,
    OWN,
    SYMMETRIC,
    decoded,
    encoded,
    random_weights,
    take_apart,
)

every_format = pytest.mark.parametrize("name", OWN)


def test_these_are_all_of_farthings_formats_and_all_can_be_written() -> None:
    assert list(OWN_FORMATS) == OWN
    assert set(OWN) < set(WRITABLE_FORMATS)


@every_format
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 5), inputs=st.integers(1, 300))
def test_any_bytes_decode_to_code_and_scale_as_the_contract_says(
    name: str, seed: int, outputs: int, inputs: int
) -> None:
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, stored_bytes(name, (outputs, inputs)), dtype=np.uint8)
    rows = take_apart(data, name, (outputs, inputs))
    group = np.arange(inputs) // rows.group
    codes = rows.codes.astype(np.float32)
    with np.errstate(all="ignore"):
        if name in SYMMETRIC:
            codes = codes - 8
        if rows.zeros is not None:
            codes = codes - rows.zeros[:, group]
        if name in (*NF4, DOUBLE):
            codes = NF4_LEVELS[rows.codes]
        wanted = codes * rows.scales[:, group]
    found = decode(StoredTensor("weights", name, (outputs, inputs), data))
    np.testing.assert_array_equal(found, wanted)


@every_format
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 5), inputs=st.integers(1, 300))
def test_no_weight_is_off_by_more_than_half_the_distance_of_two_levels(
    name: str, seed: int, outputs: int, inputs: int
) -> None:
    weights = random_weights(seed, outputs, inputs)
    error = np.abs(decoded(weights, name) - weights)
    rows = encoded(weights, name)
    step = rows.scales[:, np.arange(inputs) // rows.group]
    # Levels of NF4 are up to 0.3038 of the largest weight apart. A scale that was rounded to
    # float16 moves the outermost level by up to 15 * 2^-11 of a step.
    half = 0.152 if name in (*NF4, DOUBLE) else 0.5
    allowed = half * step * 1.02 + 1e-7
    if name == DOUBLE:  # an absmax in a byte may itself be off
        absmax = encoded(weights, "NF4_B64").scales
        allowed += np.abs(rows.scales - absmax)[:, np.arange(inputs) // 64]
    assert (error <= allowed).all()


@every_format
def test_a_group_of_zeros_stays_zero_beside_others(name: str) -> None:
    weights = random_weights(1, 4, 256)
    weights[1] = 0
    weights[2, :128] = 0
    found = decoded(weights, name)
    assert not found[1].any()
    assert not found[2, :128].any()
    assert found[2, 128:].any()


@every_format
@given(start=st.integers(-9, 9), stop=st.integers(-9, 9), inputs=st.sampled_from([1, 33, 200]))
def test_a_range_of_rows_is_the_same_rows_of_the_whole(
    name: str, start: int, stop: int, inputs: int
) -> None:
    weights = random_weights(2, 7, inputs)
    tensor = StoredTensor("weights", name, weights.shape, encode(weights, name))
    part = decode(tensor, rows=slice(start, stop))
    np.testing.assert_array_equal(part, decode(tensor)[start:stop])


@every_format
def test_rows_encoded_in_parts_are_the_rows_of_the_whole(name: str) -> None:
    weights = random_weights(3, 600, 500)
    largest = float(np.abs(weights).max())
    parts = [encode(weights[a : a + 77], name, largest=largest) for a in range(0, 600, 77)]
    np.testing.assert_array_equal(np.concatenate(parts), encode(weights, name))


@every_format
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_infinity_or_a_nan_is_refused(name: str, value: float) -> None:
    weights = random_weights(4, 3, 100)
    weights[2, 99] = value
    with pytest.raises(FileFormatError, match=f"infinity or a NaN, which {name}"):
        encode(weights, name)


# The magnitude from which a scale leaves float16; int8 has float32 scales.
LIMITS = {
    **dict.fromkeys(SYMMETRIC, 7 * 65520),
    **dict.fromkeys(ASYMMETRIC, 15 * 65520),
    **dict.fromkeys([*NF4, DOUBLE], 65520),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_weight_that_needs_a_scale_beyond_float16_is_refused(name: str) -> None:
    limit = np.float32(LIMITS[name])
    assert np.isfinite(decoded(np.full((1, 3), limit * np.float32(0.9999)), name)).all()
    with pytest.raises(FileFormatError, match=f"cannot be stored as {name}.*INT8_ROW"):
        encode(np.full((1, 3), limit), name)


@pytest.mark.parametrize("name", ASYMMETRIC)
def test_a_range_beyond_float32_is_refused(name: str) -> None:
    with pytest.raises(FileFormatError, match="cannot be stored"):
        encode(np.array([[3e38, -3e38]], np.float32), name)


@pytest.mark.parametrize("name", INT8)
def test_int8_holds_what_float32_holds(name: str) -> None:
    weights = np.array([[3e38, -3e38, 1e38]], np.float32)
    np.testing.assert_allclose(decoded(weights, name), weights, rtol=0.01)


@every_format
@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-38, 1e-30, 2e-8, 3e-8, 1e-7, 1e-6])
def test_weights_below_what_a_scale_can_say_come_out_finite_and_no_larger_than_it(
    name: str, magnitude: float
) -> None:
    weights = random_weights(5, 3, 200, magnitude)
    found = decoded(weights, name)
    # Half the smallest float16, or float32, that a scale can be; eight steps of it.
    tiniest = 2.0**-149 if name in INT8 else 2.0**-25
    assert np.isfinite(found).all()
    assert np.abs(found - weights).max() <= np.abs(weights).max() * 0.51 + 8 * tiniest


@every_format
def test_one_row_may_be_a_vector(name: str) -> None:
    weights = random_weights(6, 1, 90)
    np.testing.assert_array_equal(encode(weights[0], name), encode(weights, name))


@pytest.mark.parametrize("name", ["INT8_TENSOR", "INT4_TENSOR"])
def test_one_scale_serves_the_whole_tensor(name: str) -> None:
    weights = random_weights(7, 9, 130)
    weights[4, 77] = 1.5
    scales = encoded(weights, name).scales
    assert np.unique(scales).size == 1
    assert scales[0, 0] == pytest.approx(1.5 / (127 if name in INT8 else 7), rel=1e-3)


@every_format
def test_encoding_leaves_the_weights_as_they_were(name: str) -> None:
    weights = random_weights(8, 5, 90)
    before = weights.copy()
    encode(weights, name)
    np.testing.assert_array_equal(weights, before)


# (format, shape) -> bits for one weight, as mission.md and quantisation.md state them.
BITS = {
    ("INT4_G128", (896, 4864)): 4.125,
    ("INT4_G64", (896, 4864)): 4.25,
    ("INT4_G32", (896, 4864)): 4.5,
    ("INT4_G128_ASYM", (512, 4096)): 4.15625,
    ("NF4_B64", (896, 4864)): 4.25,
    ("NF4_B128", (896, 4864)): 4.125,
    ("INT8_ROW", (896, 896)): 8 + 32 / 896,
    ("INT4_ROW", (896, 896)): 4 + 16 / 896,
    # 576 = 4 x 128 + 64: five scales, and a short group pays as much as a whole one.
    ("INT4_G128", (10, 576)): 4 + 5 * 16 / 576,
    ("NF4_B128", (10, 576)): 4 + 5 * 16 / 576,
    # 256 blocks share a scale and a mean in a row as long as this, as everywhere in bitsandbytes.
    ("NF4_B64_DOUBLE", (2, 16384)): 4 + 8 / 64 + 32 / (64 * 256),
    ("NF4_B64_DOUBLE", (10, 576)): 4 + (9 * 8 + 32) / 576,
    # Five zeros of 4 bits take three bytes.
    ("INT4_G128_ASYM", (10, 576)): 4 + (5 * 16 + 3 * 8) / 576,
    # An odd row ends in half a byte of nothing.
    ("INT4_ROW", (10, 7)): (4 * 8 + 16) / 7,
}


@pytest.mark.parametrize(("name", "shape"), BITS)
def test_bits_per_weight_count_scales_zeros_and_what_does_not_divide(
    name: str, shape: tuple[int, int]
) -> None:
    assert bits_per_weight(name, shape) == pytest.approx(BITS[name, shape], rel=1e-15)
    assert encode(random_weights(9, *shape), name).nbytes * 8 / np.prod(shape) == pytest.approx(
        BITS[name, shape], rel=1e-15
    )


@every_format
def test_the_bits_told_to_people_are_those_of_rows_in_whole_groups(name: str) -> None:
    told = OWN_FORMATS[name].bits.replace("K", "1024")
    whole, _, over = told.partition(" + ")
    numerator, _, denominator = over.partition("/")
    extra = int(numerator) / int(denominator) if over else 0.0
    assert float(whole) + extra == bits_per_weight(name, (3, 1024))


@every_format
@given(outputs=st.integers(1, 4), inputs=st.integers(1, 300))
def test_bits_per_weight_are_those_of_the_bytes_whatever_the_shape(
    name: str, outputs: int, inputs: int
) -> None:
    data = encode(random_weights(11, outputs, inputs), name)
    stated = bits_per_weight(name, (outputs, inputs))
    assert stated * outputs * inputs == pytest.approx(8 * data.nbytes, rel=1e-14)


EXACT = [*SYMMETRIC, *NF4]


@pytest.mark.parametrize("name", EXACT)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 5), inputs=st.integers(1, 300))
def test_what_was_decoded_is_encoded_to_the_same_bytes_again(
    name: str, seed: int, outputs: int, inputs: int
) -> None:
    data = encode(random_weights(seed, outputs, inputs), name)
    again = decode(StoredTensor("weights", name, (outputs, inputs), data))
    np.testing.assert_array_equal(encode(again, name), data)


@pytest.mark.parametrize("name", INT8)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 5), inputs=st.integers(1, 300))
def test_int8_keeps_its_codes_and_its_scale_to_a_float32s_precision(
    name: str, seed: int, outputs: int, inputs: int
) -> None:
    weights = random_weights(seed, outputs, inputs)
    first, second = encoded(weights, name), encoded(decoded(weights, name), name)
    np.testing.assert_array_equal(second.codes, first.codes)
    np.testing.assert_allclose(second.scales, first.scales, rtol=1.2e-7)


@every_format
@pytest.mark.parametrize("value", [0.75, -0.75, 1e-3])
def test_a_row_of_one_value_comes_back_as_that_value(name: str, value: float) -> None:
    weights = np.full((2, 150), value, np.float32)
    # A scale in float16 is exact to half a unit of its 11 bits.
    np.testing.assert_allclose(decoded(weights, name), weights, rtol=2.0**-11)


def relative_error(weights: np.ndarray, name: str) -> float:
    return float(np.linalg.norm(decoded(weights, name) - weights) / np.linalg.norm(weights))


def test_finer_scales_and_better_levels_cost_less() -> None:
    """The order of mission.md, section 4, on normal weights of which 1 in 6,000 is far out."""
    generator = np.random.default_rng(10)
    weights = generator.standard_normal((896, 1024)) * 0.018
    far = generator.random(weights.shape) < 1.6e-4
    weights = np.where(far, weights * 8, weights).astype(np.float32)
    weights[3, 5] = 24 * 0.018
    order = ["INT8_ROW", "INT8_TENSOR", "NF4_B64", "INT4_G64", "INT4_G128", "INT4_ROW"]
    errors = [relative_error(weights, name) for name in [*order, "INT4_TENSOR"]]
    assert errors == sorted(errors)
    assert relative_error(weights, "NF4_B128") < relative_error(weights, "INT4_G128")
    assert relative_error(weights, "INT4_G128_ASYM") < relative_error(weights, "INT4_G128")
    # One outlier sets the step for all: a weight of ordinary size is one of three levels.
    assert errors[-1] > 0.8
    ordinary = np.abs(weights) < 3 * 0.018
    assert len(np.unique(decoded(weights, "INT4_TENSOR")[ordinary])) == 3
