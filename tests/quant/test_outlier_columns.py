"""LLM.int8(): the choice of columns, and the integer part against bitsandbytes."""

from __future__ import annotations

import bitsandbytes.functional
import numpy as np
import pytest
import torch

from farthing.core import FarthingError
from farthing.quant.formats import encode
from farthing.quant.outlier_columns import outlier_columns, split_columns
from quant.calibrated import stored
from quant.rows import random_weights, take_apart

INPUTS = 128
COLUMNS = np.array([3, 64, 127], np.int32)


def inputs_with_outliers() -> np.ndarray:
    """Every number of an outlier column is one: bitsandbytes sets aside numbers, not columns."""
    generator = np.random.default_rng(1)
    x = generator.uniform(-3, 3, (50, INPUTS)).astype(np.float32)
    x[:, COLUMNS] = generator.choice([-1, 1], (50, 3)) * generator.uniform(6.1, 30, (50, 3))
    return x


X = inputs_with_outliers()
WEIGHTS = random_weights(2, 40, INPUTS)


def test_columns_that_reach_the_threshold_are_chosen() -> None:
    largest = np.array([5.99, 6.0, 0, 80, 6.01, 5], np.float32)
    assert outlier_columns(largest).tolist() == [1, 3, 4]
    assert outlier_columns(largest).dtype == np.int32
    assert outlier_columns(largest, 100).tolist() == []
    assert outlier_columns(largest, 5).tolist() == [0, 1, 3, 4, 5]


def test_they_are_the_ones_that_bitsandbytes_finds_in_the_same_activations() -> None:
    _, _, theirs = bitsandbytes.functional.int8_vectorwise_quant(torch.from_numpy(X), threshold=6.0)
    found = outlier_columns(np.abs(X).max(axis=0))
    assert found.tolist() == theirs.tolist() == COLUMNS.tolist()


def test_splitting_keeps_every_weight_in_one_of_two_places() -> None:
    rest, apart = split_columns(WEIGHTS, COLUMNS)
    assert not rest[:, COLUMNS].any()
    np.testing.assert_array_equal(apart, WEIGHTS[:, COLUMNS])
    rest[:, COLUMNS] = apart
    np.testing.assert_array_equal(rest, WEIGHTS)
    none, nothing = split_columns(WEIGHTS, COLUMNS[:0])
    np.testing.assert_array_equal(none, WEIGHTS)
    assert nothing.shape == (40, 0)


def test_the_integer_part_is_exactly_that_of_bitsandbytes_with_the_same_columns() -> None:
    rest, _ = split_columns(WEIGHTS, COLUMNS)
    activations, _ = split_columns(X, COLUMNS)
    x_rows = take_apart(encode(activations, "INT8_ROW"), "INT8_ROW", X.shape)
    w_rows = take_apart(encode(rest, "INT8_ROW"), "INT8_ROW", WEIGHTS.shape)
    quant = bitsandbytes.functional.int8_vectorwise_quant
    x_codes, x_largest, columns = quant(torch.from_numpy(X), threshold=6.0)
    w_codes, w_largest, _ = quant(torch.from_numpy(rest))
    assert columns.tolist() == COLUMNS.tolist()
    np.testing.assert_array_equal(x_rows.codes, x_codes.numpy())
    np.testing.assert_array_equal(w_rows.codes, w_codes.numpy())
    np.testing.assert_array_equal(x_rows.scales[:, 0], x_largest.numpy() / np.float32(127))
    np.testing.assert_array_equal(w_rows.scales[:, 0], w_largest.numpy() / np.float32(127))
    theirs = bitsandbytes.functional.int8_linear_matmul(x_codes, w_codes)
    np.testing.assert_array_equal(x_rows.codes @ w_rows.codes.T, theirs.numpy())


def test_the_whole_product_is_that_of_bitsandbytes() -> None:
    rest, apart = split_columns(WEIGHTS, COLUMNS)
    activations, outliers = split_columns(X, COLUMNS)
    coded = [
        stored(encode(values, "INT8_ROW"), "INT8_ROW", values.shape).astype(np.float64)
        for values in (activations, rest)
    ]
    found = coded[0] @ coded[1].T + outliers.astype(np.float64) @ apart.T
    quant = bitsandbytes.functional.int8_vectorwise_quant
    x_codes, x_largest, _ = quant(torch.from_numpy(X), threshold=6.0)
    w_codes, w_largest, _ = quant(torch.from_numpy(rest))
    integer = bitsandbytes.functional.int8_linear_matmul(x_codes, w_codes)
    theirs = integer.double() * torch.outer(x_largest.double(), w_largest.double()) / 127**2
    theirs += torch.from_numpy(X[:, COLUMNS]).double() @ torch.from_numpy(apart).double().T
    np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-5, atol=1e-5 * np.abs(found).max())


def test_apart_the_outliers_leave_int8_far_more_exact() -> None:
    exact = X.astype(np.float64) @ WEIGHTS.T.astype(np.float64)

    def error(columns: np.ndarray) -> float:
        activations, outliers = split_columns(X, columns)
        rounded = stored(encode(activations, "INT8_ROW"), "INT8_ROW", X.shape)
        rest, apart = split_columns(WEIGHTS, columns)
        return float(np.square(rounded @ rest.T + outliers @ apart.T - exact).sum())

    assert error(COLUMNS) < error(COLUMNS[:0]) / 10


@pytest.mark.parametrize("largest", [[1.0, np.nan], [np.inf, 1], [-1, 2], [[1.0, 2]]])
def test_magnitudes_that_are_none_are_refused(largest: list[float]) -> None:
    with pytest.raises(FarthingError, match="one row of finite numbers from 0"):
        outlier_columns(np.array(largest, np.float32))


@pytest.mark.parametrize("threshold", [0, -6, np.nan, np.inf])
def test_a_threshold_that_is_none_is_refused(threshold: float) -> None:
    with pytest.raises(FarthingError, match="must be above 0"):
        outlier_columns(np.ones(3, np.float32), threshold)


@pytest.mark.parametrize("columns", [[2, 1], [1, 1], [-1], [128], [0, 128]])
def test_columns_that_the_weights_do_not_have_are_refused(columns: list[int]) -> None:
    with pytest.raises(FarthingError, match="must ascend from 0"):
        split_columns(WEIGHTS, np.array(columns, np.int32))
