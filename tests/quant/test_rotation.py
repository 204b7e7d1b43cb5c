from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FarthingError
from farthing.quant.formats import encode
from farthing.quant.rotation import rotation
from quant.calibrated import stored


@given(width=st.integers(1, 100), seed=st.integers(0, 2**32 - 1))
def test_any_width_is_rotated_by_an_orthogonal_matrix(width: int, seed: int) -> None:
    matrix = rotation(width, seed).astype(np.float64)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-6)


# Hidden and intermediate sizes and head dimensions of the families that are served.
@pytest.mark.parametrize("width", [2, 12, 20, 36, 64, 128, 256, 576, 640, 896, 1152, 1536, 2048])
def test_usual_widths_have_hadamard_matrices(width: int) -> None:
    matrix = rotation(width, 1)
    np.testing.assert_allclose(np.abs(matrix), width**-0.5, rtol=1e-6)
    np.testing.assert_allclose(matrix.astype(np.float64).T @ matrix, np.eye(width), atol=1e-6)


def test_a_width_without_one_is_still_mixed_in_every_dimension() -> None:
    matrix = rotation(52 * 8, 1)
    assert np.abs(matrix).max() < 0.5
    assert (np.abs(matrix) > 0).mean() > 0.99


@pytest.mark.parametrize("width", [52, 576])
def test_a_seed_gives_one_matrix_and_another_seed_another(width: int) -> None:
    np.testing.assert_array_equal(rotation(width, 7), rotation(width, 7))
    assert (rotation(width, 7) != rotation(width, 8)).any()


def test_one_large_dimension_no_longer_takes_all_levels_of_a_shared_scale() -> None:
    x = np.random.default_rng(1).standard_normal((50, 576)).astype(np.float32)
    x[:, 100] *= 200
    matrix = rotation(576, 1)

    def error(values: np.ndarray) -> float:
        rounded = stored(encode(values, "INT8_TENSOR"), "INT8_TENSOR", values.shape)
        return float(np.square(rounded - values).sum())

    assert error(x @ matrix) < error(x) / 20


@pytest.mark.parametrize("width", [0, -4, 10**9])
def test_an_impossible_width_is_refused_before_anything_is_allocated(width: int) -> None:
    with pytest.raises(FarthingError, match="a width of 1 to 16384"):
        rotation(width, 1)
