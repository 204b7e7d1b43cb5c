"""INT8 against its formula, and against bitsandbytes' row-wise quantisation on the CPU."""

from __future__ import annotations

import bitsandbytes.functional
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quant.rows import encoded, random_weights


@given(
    seed=st.integers(0, 2**32 - 1),
    inputs=st.integers(1, 200),
    scale=st.sampled_from([1e-6, 0.02, 1.0, 1e6]),
)
def test_codes_are_those_of_bitsandbytes_but_for_one_at_ties(
    seed: int, inputs: int, scale: float
) -> None:
    weights = random_weights(seed, 4, inputs, scale)
    codes, largest, _ = bitsandbytes.functional.int8_vectorwise_quant(torch.from_numpy(weights))
    rows = encoded(weights, "INT8_ROW")
    np.testing.assert_array_equal(rows.scales[:, 0], largest.numpy() / np.float32(127))
    off = np.abs(rows.codes - codes.numpy().astype(np.int32))
    # Where they differ by one, the quotient is a half to within float32's precision.
    quotient = weights.astype(np.float64) * 127 / largest.numpy()[:, None]
    from_tie = np.abs(np.abs(quotient - np.floor(quotient)) - 0.5)
    assert off.max() <= 1
    assert (from_tie[off == 1] < 1e-4).all()


@pytest.mark.parametrize("name", ["INT8_ROW", "INT8_TENSOR"])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_code_is_the_rounded_quotient_of_weight_and_scale(name: str, seed: int) -> None:
    weights = random_weights(seed, 6, 70)
    largest = np.abs(weights).max(axis=None if name == "INT8_TENSOR" else 1, keepdims=True)
    scale = largest / np.float32(127)
    wanted = np.clip(np.round(weights / scale), -128, 127)
    rows = encoded(weights, name)
    np.testing.assert_array_equal(rows.codes, wanted)
    np.testing.assert_array_equal(rows.scales, np.broadcast_to(scale, (6, 1)))


def test_halves_are_rounded_to_even() -> None:
    weights = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], np.float32)
    assert encoded(weights, "INT8_ROW").codes.tolist() == [[127, 0, 2, 2, 0, -2, -2]]
