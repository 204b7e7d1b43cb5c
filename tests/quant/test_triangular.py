"""The triangular factor of an inverse, against torch's and numpy's own."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from farthing.quant.triangular import inverse_factor


def positive_definite(size: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((2 * size, size))
    x *= np.exp(np.random.default_rng(seed + 1).standard_normal(size))
    return x.T @ x / len(x)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 256, 300, 576])
def test_it_is_the_factor_that_torch_finds_of_the_inverse(size: int) -> None:
    matrix = positive_definite(size, size)
    wanted = torch.linalg.cholesky(torch.linalg.inv(torch.from_numpy(matrix)), upper=True).numpy()
    found = inverse_factor(matrix.copy())
    np.testing.assert_array_equal(found, np.triu(found))
    np.testing.assert_allclose(found, wanted, atol=1e-9 * np.abs(wanted).max())
    # U^T U (U^T U)^-1 is the identity.
    np.testing.assert_allclose(found.T @ found @ matrix, np.eye(size), atol=1e-8)


@pytest.mark.parametrize("size", [1, 130, 300])
def test_a_matrix_that_is_not_positive_definite_is_an_error(size: int) -> None:
    matrix = positive_definite(size, 1)
    matrix[size // 2, size // 2] = -1
    with pytest.raises(np.linalg.LinAlgError):
        inverse_factor(matrix)


def test_it_takes_little_more_than_the_matrix() -> None:
    matrix = positive_definite(1024, 1)
    tracemalloc.start()
    try:
        inverse_factor(matrix)
        assert tracemalloc.get_traced_memory()[1] < 0.7 * matrix.nbytes
    finally:
        tracemalloc.stop()
