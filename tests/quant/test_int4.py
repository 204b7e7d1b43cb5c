"""INT4 against its formula, and against torchao's affine quantisation with the same scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

from farthing.core import StoredTensor
from farthing.quant.formats import decode, encode
from quant.rows import ASYMMETRIC, SYMMETRIC, Rows, encoded, random_weights

if TYPE_CHECKING:
    from collections.abc import Iterator


def groups_of(weights: np.ndarray, rows: Rows) -> Iterator[tuple[int, slice]]:
    """The number of each group and its columns, a short last one included."""
    for number in range(rows.scales.shape[1]):
        first = number * rows.group
        yield number, slice(first, min(first + rows.group, weights.shape[1]))


def assert_equals_torchao(weights: np.ndarray, name: str) -> None:
    """Codes, and what they decode to, for our scales and zeros: exactly torchao's."""
    rows = encoded(weights, name)
    found = decode(StoredTensor("weights", name, weights.shape, encode(weights, name)))
    lowest, highest = (0, 15) if rows.zeros is not None else (-8, 7)
    dtype = torch.uint8 if rows.zeros is not None else torch.int8
    for number, columns in groups_of(weights, rows):
        if not rows.scales[:, number].all():
            continue  # torchao divides by a scale of zero
        part = torch.from_numpy(np.ascontiguousarray(weights[:, columns]))
        block = (1, part.shape[1])
        scale = torch.from_numpy(rows.scales[:, number].copy())
        zero = torch.zeros(len(part), dtype=torch.int32)
        if rows.zeros is not None:
            zero = torch.from_numpy(rows.zeros[:, number].copy())
        codes = quantize_affine(part, block, scale, zero, dtype, lowest, highest)
        stored = rows.codes[:, columns] + lowest
        np.testing.assert_array_equal(stored, codes.numpy())
        back = dequantize_affine(codes, block, scale, zero, dtype, lowest, highest)
        np.testing.assert_array_equal(found[:, columns], back.numpy())


@pytest.mark.parametrize("name", [*SYMMETRIC, *ASYMMETRIC])
@given(
    seed=st.integers(0, 2**32 - 1),
    inputs=st.sampled_from([32, 64, 128, 160, 256, 576]),
    # Of the first, scales are a few steps of float16's least: codes meet their limits.
    scale=st.sampled_from([1e-7, 1e-5, 0.02, 1.0, 1e3]),
    offset=st.sampled_from([0.0, 3.0, -3.0]),
)
def test_codes_and_weights_are_exactly_torchaos(
    name: str, seed: int, inputs: int, scale: float, offset: float
) -> None:
    weights = random_weights(seed, 3, inputs, scale) + np.float32(offset * scale)
    assert_equals_torchao(weights, name)


@pytest.mark.parametrize("name", [*SYMMETRIC, *ASYMMETRIC])
@given(data=st.data())
def test_weights_full_of_ties_get_torchaos_codes(name: str, data: st.DataObject) -> None:
    value = st.sampled_from([0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.5, 7.0, -7.0, 7.5, -8.0, 15.0])
    weights = np.array(data.draw(st.lists(value, min_size=64, max_size=64)), np.float32)[None]
    assert_equals_torchao(weights, name)


@pytest.mark.parametrize("name", SYMMETRIC)
@given(seed=st.integers(0, 2**32 - 1), inputs=st.sampled_from([64, 200, 576]))
def test_a_symmetric_scale_is_a_seventh_of_the_largest_rounded_to_float16(
    name: str, seed: int, inputs: int
) -> None:
    weights = random_weights(seed, 3, inputs)
    rows = encoded(weights, name)
    for number, columns in groups_of(weights, rows):
        part = np.abs(weights if name == "INT4_TENSOR" else weights[:, columns])
        largest = part.max() if name == "INT4_TENSOR" else part.max(axis=1)
        wanted = (largest / np.float32(7)).astype(np.float16)
        np.testing.assert_array_equal(rows.scales[:, number].astype(np.float16), wanted)


@pytest.mark.parametrize("name", ASYMMETRIC)
@given(
    seed=st.integers(0, 2**32 - 1),
    inputs=st.sampled_from([64, 200, 576]),
    offset=st.sampled_from([0.0, 0.01, 0.3, -0.3]),
)
def test_an_asymmetric_scale_is_a_fifteenth_of_the_range_with_zero_in_it(
    name: str, seed: int, inputs: int, offset: float
) -> None:
    weights = random_weights(seed, 3, inputs) + np.float32(offset)
    rows = encoded(weights, name)
    assert rows.zeros is not None
    for number, columns in groups_of(weights, rows):
        low = np.minimum(weights[:, columns].min(axis=1), 0)
        high = np.maximum(weights[:, columns].max(axis=1), 0)
        scale = ((high - low) / np.float32(15)).astype(np.float16)
        np.testing.assert_array_equal(rows.scales[:, number].astype(np.float16), scale)
        zero = np.round(-low / scale.astype(np.float32))
        np.testing.assert_array_equal(rows.zeros[:, number], np.clip(zero, 0, 15))


def test_codes_are_chosen_with_the_scale_that_is_stored() -> None:
    # The scale 1 + 2^-11 is stored as 1: 3.501 steps of what is stored, 3.4993 of what is not.
    weights = np.array([[7 * (1 + 2.0**-11), 3.501]], np.float32)
    rows = encoded(weights, "INT4_ROW")
    assert rows.scales.tolist() == [[1.0]]
    assert (rows.codes - 8).tolist() == [[7, 4]]


@pytest.mark.parametrize("name", ASYMMETRIC)
@pytest.mark.parametrize("offset", [-0.3, 0.0, 0.3])
def test_a_weight_of_zero_stays_exactly_zero(name: str, offset: float) -> None:
    weights = random_weights(1, 3, 130) + np.float32(offset)
    weights[:, ::32] = 0
    tensor = StoredTensor("weights", name, weights.shape, encode(weights, name))
    assert not decode(tensor)[:, ::32].any()


def test_a_quotient_at_a_half_falls_on_torchaos_side() -> None:
    # Divided, the second is 5.5 scales and would become 6; times the rounded inverse it is less.
    weights = np.array([[7 * 0.80322265625, float.fromhex("0x1.1abcp+2")]], np.float32)
    rows = encoded(weights, "INT4_ROW")
    assert rows.scales.tolist() == [[0.80322265625]]
    assert (rows.codes - 8).tolist() == [[7, 5]]
    assert_equals_torchao(weights, "INT4_ROW")
