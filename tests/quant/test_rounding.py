from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.files.formats import GGUF_FORMATS
from farthing.quant.formats import FORMATS, encode
from farthing.quant.nf4 import NF4_LEVELS
from farthing.quant.rounding import ROUNDED_FORMATS, Rounder
from quant.calibrated import stored
from quant.rows import ASYMMETRIC, INT8, NF4, SYMMETRIC, random_weights, take_apart

every_format = pytest.mark.parametrize("name", ROUNDED_FORMATS)
INPUTS = 512
LEVELS = {"Q2_K": 4, "Q3_K": 8, "Q5_0": 32, "Q5_1": 32, "Q5_K": 32, "Q6_K": 64, "Q8_0": 256}


def levels(name: str) -> int:
    return LEVELS.get(name, 256 if name in INT8 else 16)


def every_level(rounder: Rounder, name: str, shape: tuple[int, int]) -> np.ndarray:
    """(codes, N, K): what each weight would be with each code, by the format's own decoder."""
    return np.stack(
        [
            stored(rounder.pack(np.full(shape, code, np.uint8)), name, shape)
            for code in range(levels(name))
        ]
    )


def test_codes_can_be_chosen_in_all_formats_that_have_scales() -> None:
    assert set(ROUNDED_FORMATS) == {name for name, each in FORMATS.items() if each.scaled}


@every_format
def test_the_nearest_level_is_nearest_of_all_that_the_decoder_can_give(name: str) -> None:
    weights = random_weights(1, 6, INPUTS)
    rounder = Rounder(weights, name)
    table = every_level(rounder, name, weights.shape)
    # Also weights that error feedback has pushed beyond the scales' range.
    wanted = weights + random_weights(2, 6, INPUTS)
    tolerance = 1e-6 * np.abs(table).max()
    for index in range(INPUTS):
        codes, rounded = rounder.nearest(wanted[:, index], index)
        chosen = table[codes, np.arange(6), index]
        np.testing.assert_allclose(rounded, chosen, rtol=0, atol=tolerance)
        least = np.abs(table[:, :, index] - wanted[:, index]).min(axis=0)
        distance = np.abs(chosen - wanted[:, index])
        assert (distance <= least + tolerance).all()


@every_format
def test_what_is_packed_decodes_to_the_levels_that_were_chosen(name: str) -> None:
    weights = random_weights(3, 5, INPUTS)
    rounder = Rounder(weights, name)
    chosen = [rounder.nearest(weights[:, index], index) for index in range(INPUTS)]
    codes = np.stack([codes for codes, _ in chosen], axis=1)
    rounded = np.stack([values for _, values in chosen], axis=1)
    found = stored(rounder.pack(codes), name, weights.shape)
    np.testing.assert_allclose(found, rounded, rtol=0, atol=1e-6 * np.abs(weights).max())


@every_format
def test_rounding_each_weight_alone_is_no_worse_than_encode(name: str) -> None:
    weights = random_weights(4, 5, INPUTS)
    rounder = Rounder(weights, name)
    codes = np.stack([rounder.nearest(weights[:, k], k)[0] for k in range(INPUTS)], axis=1)
    ours = np.abs(stored(rounder.pack(codes), name, weights.shape) - weights)
    plain = np.abs(stored(encode(weights, name), name, weights.shape) - weights)
    assert (ours <= plain + 1e-6 * np.abs(weights).max()).all()


@pytest.mark.parametrize("name", [*SYMMETRIC, *ASYMMETRIC, *INT8])
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 4), inputs=st.integers(1, 300))
def test_only_codes_differ_from_what_encode_writes(
    name: str, seed: int, outputs: int, inputs: int
) -> None:
    weights = random_weights(seed, outputs, inputs)
    codes = np.random.default_rng(seed).integers(0, levels(name), weights.shape, dtype=np.uint8)
    plain = take_apart(encode(weights, name), name, weights.shape)
    found = take_apart(Rounder(weights, name).pack(codes), name, weights.shape)
    np.testing.assert_array_equal(found.codes, codes.astype(np.int32) - 128 * (name in INT8))
    np.testing.assert_array_equal(found.scales, plain.scales)
    if plain.zeros is not None:
        np.testing.assert_array_equal(found.zeros, plain.zeros)


@pytest.mark.parametrize("name", NF4)
def test_codes_of_nf4_count_its_levels(name: str) -> None:
    weights = random_weights(5, 2, 200)
    codes = np.random.default_rng(6).integers(0, 16, weights.shape, dtype=np.uint8)
    data = Rounder(weights, name).pack(codes)
    scales = take_apart(data, name, weights.shape).scales
    wanted = NF4_LEVELS[codes] * scales[:, np.arange(200) // int(name[5:])]
    np.testing.assert_array_equal(stored(data, name, weights.shape), wanted)


@pytest.mark.parametrize("name", [each for each in ROUNDED_FORMATS if each in GGUF_FORMATS])
def test_the_gguf_package_reads_any_codes_as_we_do(name: str) -> None:
    weights = random_weights(7, 3, INPUTS)
    codes = np.random.default_rng(8).integers(0, levels(name), weights.shape, dtype=np.uint8)
    rounder = Rounder(weights, name)
    data = rounder.pack(codes)
    theirs = gguf.quants.dequantize(data.reshape(3, -1), gguf.GGMLQuantizationType[name])
    table = every_level(rounder, name, weights.shape)
    wanted = np.take_along_axis(table, codes[None].astype(np.intp), axis=0)[0]
    np.testing.assert_array_equal(theirs, wanted)


@every_format
def test_a_matrix_of_zeros_stays_zero(name: str) -> None:
    weights = np.zeros((3, 256), np.float32)
    rounder = Rounder(weights, name)
    codes, rounded = rounder.nearest(np.full(3, 0.5, np.float32), 7)
    assert not rounded.any()
    filled = np.repeat(codes[:, None], 256, axis=1)
    assert not stored(rounder.pack(filled), name, weights.shape).any()


@pytest.mark.parametrize("name", ["INT8_TENSOR", "INT4_TENSOR"])
def test_some_rows_of_a_matrix_take_the_scale_of_the_whole(name: str) -> None:
    weights = random_weights(9, 8, 64)
    largest = float(np.abs(weights).max())
    codes = np.random.default_rng(10).integers(0, levels(name), weights.shape, dtype=np.uint8)
    parts = [Rounder(weights[a : a + 3], name, largest=largest) for a in (0, 3, 6)]
    packed = [part.pack(codes[a : a + 3]) for part, a in zip(parts, (0, 3, 6), strict=True)]
    np.testing.assert_array_equal(np.concatenate(packed), Rounder(weights, name).pack(codes))


def test_importance_moves_the_scales_of_formats_that_search_for_them() -> None:
    weights = random_weights(11, 4, 256)
    importance = np.ones(256, np.float32)
    importance[:32] = 1000
    plain, weighed = (Rounder(weights, "Q4_K", importance=given) for given in (None, importance))
    codes = np.zeros(weights.shape, np.uint8)
    assert (plain.pack(codes) != weighed.pack(codes)).any()


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "no such format"])
def test_a_format_without_codes_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="GPTQ, takes INT8_TENSOR, .*Q4_0"):
        Rounder(random_weights(12, 2, 32), name)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="blocks hold 32"):
        Rounder(random_weights(13, 2, 33), "Q4_0")


def test_weights_that_are_not_finite_are_refused() -> None:
    weights = random_weights(14, 2, 64)
    weights[1, 3] = np.nan
    with pytest.raises(FileFormatError, match="infinity or a NaN"):
        Rounder(weights, "INT4_G32")
