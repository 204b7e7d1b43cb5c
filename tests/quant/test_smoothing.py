from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchao.prototype.smoothquant.core import SmoothQuantObserver

from farthing.core import FarthingError
from farthing.quant.formats import encode
from farthing.quant.smoothing import smooth_scales
from quant.calibrated import error_of, random_inputs, stored
from quant.rows import random_weights

X = random_inputs(1, 400, 96)
WEIGHTS = random_weights(2, 40, 96)
ACTIVATIONS, COLUMNS = np.abs(X).max(axis=0), np.abs(WEIGHTS).max(axis=0)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.85, 1.0])
def test_scales_are_torchaos(alpha: float) -> None:
    observer = SmoothQuantObserver(torch.from_numpy(WEIGHTS), alpha)
    observer(torch.from_numpy(X))
    wanted, _, _ = observer.calculate_qparams()
    found = smooth_scales(ACTIVATIONS, COLUMNS, alpha)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4)


def per_tensor(values: np.ndarray) -> np.ndarray:
    """Rounded to int8 under one scale."""
    return stored(encode(values, "INT8_TENSOR"), "INT8_TENSOR", values.shape)


def test_one_scale_for_all_activations_loses_less_once_they_are_smoothed() -> None:
    generator = np.random.default_rng(3)
    outlying = generator.standard_normal((400, 96)).astype(np.float32)
    outlying[:, 5] *= 100
    plain = generator.standard_normal((40, 96)).astype(np.float32)
    scales = smooth_scales(np.abs(outlying).max(axis=0), np.abs(plain).max(axis=0))
    exact = outlying.astype(np.float64) @ plain.T.astype(np.float64)

    def error(x: np.ndarray, weights: np.ndarray) -> float:
        return float(np.square(per_tensor(x) @ per_tensor(weights).T - exact).mean())

    assert error(outlying / scales, plain * scales) < error(outlying, plain) / 5


def test_smoothed_activations_times_smoothed_weights_are_the_same_product() -> None:
    scales = smooth_scales(ACTIVATIONS, COLUMNS)
    assert error_of(WEIGHTS * scales / scales, WEIGHTS, X) < 1e-10


def test_an_even_share_leaves_both_sides_the_same_range() -> None:
    scales = smooth_scales(ACTIVATIONS, COLUMNS, 0.5)
    np.testing.assert_allclose(ACTIVATIONS / scales, COLUMNS * scales, rtol=1e-5)


@given(
    st.lists(
        st.tuples(st.floats(0, 2.0**100, width=32), st.floats(0, 2.0**100, width=32)), min_size=1
    ),
    st.floats(0, 1),
)
def test_scales_are_always_positive_and_within_bounds(
    pairs: list[tuple[float, float]], alpha: float
) -> None:
    activations, weights = np.array(pairs, np.float32).T
    scales = smooth_scales(activations, weights, alpha)
    assert ((scales >= 0.99e-5) & (scales <= 1.01e5)).all()
    assert (scales[(activations == 0) | (weights == 0)] == 1).all()


@pytest.mark.parametrize("alpha", [-0.1, 1.1, np.nan])
def test_an_alpha_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(FarthingError, match="alpha must be from 0 to 1"):
        smooth_scales(ACTIVATIONS, COLUMNS, alpha)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_ranges_that_are_none_are_refused_by_name(value: float) -> None:
    spoiled = ACTIVATIONS.copy()
    spoiled[3] = value
    with pytest.raises(FarthingError, match="magnitudes of the activations must be finite"):
        smooth_scales(spoiled, COLUMNS)
    with pytest.raises(FarthingError, match="magnitudes of the weights must be finite"):
        smooth_scales(ACTIVATIONS, spoiled)


def test_ranges_of_other_inputs_are_refused() -> None:
    with pytest.raises(FarthingError, match="must be of the same inputs"):
        smooth_scales(ACTIVATIONS, COLUMNS[:-1])
