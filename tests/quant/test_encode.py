"""Encoding without a search, against the `gguf` package: the same weights give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.quant.formats import decode, encode, format_for_rows

ROUNDED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
BLOCKED = ROUNDED[3:]


def peer_encode(weights: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.quantize(weights, GGMLQuantizationType[name]).view(np.uint8).reshape(-1)


@pytest.mark.parametrize("name", ROUNDED)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 4),
    scale=st.sampled_from([1e-30, 1e-9, 1e-3, 1.0, 1e3]),
    offset=st.sampled_from([0.0, 1.0, -3.0]),
)
def test_random_weights_encode_to_exactly_the_peers_bytes(
    name: str, seed: int, rows: int, blocks: int, scale: float, offset: float
) -> None:
    noise = np.random.default_rng(seed).standard_normal((rows, 32 * blocks))
    weights = ((noise + offset) * scale).astype(np.float32)
    np.testing.assert_array_equal(encode(weights, name), peer_encode(weights, name))


@pytest.mark.parametrize("name", ROUNDED)
@given(data=st.data())
def test_blocks_full_of_ties_and_repeats_encode_to_the_peers_bytes(
    name: str, data: st.DataObject
) -> None:
    value = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, 63.5, 127.0, -127.0, -8.0])
    weights = np.array(data.draw(st.lists(value, min_size=32, max_size=32)), np.float32)[None]
    np.testing.assert_array_equal(encode(weights, name), peer_encode(weights, name))


@pytest.mark.parametrize("name", ["F16", "BF16"])
@given(patterns=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_any_float_is_rounded_as_the_peer_rounds_it(name: str, patterns: list[int]) -> None:
    weights = np.array(patterns, np.uint32).view(np.float32)
    if name == "F16":
        weights = np.where(np.isfinite(weights) & (np.abs(weights) >= 65520), 1, weights)
    np.testing.assert_array_equal(encode(weights, name), peer_encode(weights, name))


# The largest magnitude whose scale (or, alone, whose self) float16 still has, and the next.
LIMITS = {"F16": 65520, "Q8_0": 127 * 65520, "Q4_0": 8 * 65520, "Q5_0": 16 * 65520}
LIMITS |= {"Q4_1": 65520, "Q5_1": 65520}


@pytest.mark.parametrize("name", LIMITS)
def test_a_weight_beyond_float16_is_refused_and_not_made_infinite(name: str) -> None:
    limit = np.float32(LIMITS[name])
    weights = np.full((1, 32), -np.nextafter(limit, np.float32(0)))
    assert np.isfinite(decode(StoredTensor("w", name, (1, 32), encode(weights, name)))).all()
    with pytest.raises(FileFormatError, match=f"cannot be stored as {name}.*INT8_ROW"):
        encode(np.full((1, 32), -limit), name)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_a_range_beyond_float32_is_refused(name: str) -> None:
    weights = np.zeros((1, 32), np.float32)
    weights[0, :2] = 3e38, -3e38
    with pytest.raises(FileFormatError, match="cannot be stored"):
        encode(weights, name)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0"])
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-2, 1.0, 1e3]))
def test_what_was_decoded_is_encoded_to_the_same_bytes_again(
    name: str, seed: int, scale: float
) -> None:
    weights = (np.random.default_rng(seed).standard_normal((4, 128)) * scale).astype(np.float32)
    data = encode(weights, name)
    again = decode(StoredTensor("weights", name, weights.shape, data))
    np.testing.assert_array_equal(encode(again, name), data)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_with_a_minimum_what_was_decoded_is_off_by_what_float16_rounds(name: str) -> None:
    weights = np.random.default_rng(3).standard_normal((16, 128)).astype(np.float32)
    grid = decode(StoredTensor("weights", name, weights.shape, encode(weights, name)))
    again = decode(StoredTensor("weights", name, weights.shape, encode(grid, name)))
    # The scale comes from the difference of two weights and is rounded anew.
    np.testing.assert_allclose(again, grid, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ROUNDED)
def test_a_tensor_larger_than_one_piece_encodes_as_a_whole(name: str) -> None:
    weights = np.random.default_rng(4).standard_normal((300, 512)).astype(np.float32)
    np.testing.assert_array_equal(encode(weights, name), peer_encode(weights, name))


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_no_scale_can_hold_is_refused(name: str, value: float) -> None:
    weights = np.ones((1, 32), np.float32)
    weights[0, 7] = value
    with pytest.raises(FileFormatError, match="infinity or a NaN"):
        encode(weights, name)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match="Q9_9.*Q8_0"):
        encode(np.ones((1, 32), np.float32), "Q9_9")


@pytest.mark.parametrize(
    ("name", "inputs", "stored"),
    [
        ("Q4_K", 512, "Q4_K"),
        ("Q2_K", 576, "Q4_0"),
        ("Q3_K", 576, "Q4_0"),
        ("Q4_K", 576, "Q5_0"),
        ("Q5_K", 576, "Q5_1"),
        ("Q6_K", 576, "Q8_0"),
        ("Q6_K", 200, "F16"),
        ("Q4_0", 576, "Q4_0"),
        ("Q8_0", 200, "F16"),
        ("INT4_G128", 576, "INT4_G128"),
        ("NF4_B64", 7, "NF4_B64"),
    ],
)
def test_rows_that_a_format_cannot_divide_get_llama_cpps_substitute(
    name: str, inputs: int, stored: str
) -> None:
    assert format_for_rows(name, inputs) == stored
    assert encode(np.ones((1, inputs), np.float32), stored).size


def test_there_is_no_substitute_for_a_format_that_is_not_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Q9_9.*Q8_0"):
        format_for_rows("Q9_9", 576)
