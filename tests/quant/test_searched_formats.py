"""Encoding with a search for the scales, against ggml's own quantisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError, StoredTensor
from farthing.files.gguf import GGUFFile
from farthing.quant.formats import FORMATS, decode, encode
from quant import ggml
from quant.rows import random_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
WEIGHED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1"]
"""Those that search only where an importance says what for."""
every_weighed = pytest.mark.parametrize("name", [*WEIGHED, *SEARCHED])
every_searched = pytest.mark.parametrize("name", SEARCHED)

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda generator, shape: 0.02 * generator.standard_normal(shape),
    "heavy tails": lambda generator, shape: 0.02 * generator.standard_t(4, shape),
    "uniform": lambda generator, shape: generator.uniform(-1, 1, shape),
    "above zero": lambda generator, shape: 2 + generator.standard_normal(shape),
    "below zero": lambda generator, shape: -1 - generator.random(shape),
    "rows of many sizes": lambda generator, shape: (
        generator.standard_normal(shape) * np.exp(generator.standard_normal((shape[0], 1)))
    ),
}


def decoded(data: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return decode(StoredTensor("weights", name, shape, data))


def importances(inputs: int, seed: int = 0) -> np.ndarray:
    """As calibration gives them: mean squares of activations, a few of them far larger."""
    return np.exp(2 * np.random.default_rng(seed).standard_normal(inputs)).astype(np.float32)


def weighted_errors(
    data: np.ndarray, name: str, weights: np.ndarray, importance: np.ndarray | None
) -> list[float]:
    """The squared error, and the one in which larger weights count more, as they do in searches."""
    counts = np.ones(weights.shape[1]) if importance is None else importance
    squares = (decoded(data, name, weights.shape) - weights.astype(np.float64)) ** 2
    return [float((counts * squares).sum()), float((counts * np.abs(weights) * squares).sum())]


def assert_as_good_as_ggml(weights: np.ndarray, name: str, importance: np.ndarray | None) -> None:
    peer = ggml.quantised(weights, name, importance)
    ours = encode(weights, name, importance=importance)
    found = weighted_errors(ours, name, weights, importance)
    wanted = weighted_errors(peer, name, weights, importance)
    assert (np.array(found) <= np.multiply(wanted, 1.01)).all()


def test_these_are_all_formats_that_search() -> None:
    assert [name for name, each in FORMATS.items() if each.searches] == SEARCHED
    assert [name for name, each in FORMATS.items() if each.weighed] == [*WEIGHED, *SEARCHED]


@every_searched
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_weighted_error_is_ggmls_to_one_per_cent(
    name: str, distribution: str, calibrated: bool
) -> None:
    shape = (96, 1024)
    weights = DISTRIBUTIONS[distribution](np.random.default_rng(1), shape).astype(np.float32)
    assert_as_good_as_ggml(weights, name, importances(1024) if calibrated else None)


@pytest.mark.parametrize("name", WEIGHED)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_with_an_importance_formats_of_one_scale_are_no_worse_than_ggmls(
    name: str, distribution: str
) -> None:
    weights = DISTRIBUTIONS[distribution](np.random.default_rng(1), (96, 576)).astype(np.float32)
    assert_as_good_as_ggml(weights, name, importances(576))


@pytest.mark.parametrize("name", WEIGHED)
@given(seed=st.integers(0, 1 << 30), spread=st.floats(0, 4), shift=st.floats(-3, 3))
def test_an_importance_never_makes_what_counts_worse(
    name: str, seed: int, spread: float, shift: float
) -> None:
    generator = np.random.default_rng(seed)
    weights = (shift + generator.standard_normal((4, 64))).astype(np.float32)
    importance = np.exp(spread * generator.standard_normal(64)).astype(np.float32)
    blocks = weights.reshape(-1, 32).astype(np.float64) ** 2
    counted = np.tile(importance, 4).reshape(-1, 32) * np.sqrt(
        blocks.mean(axis=1, keepdims=True) + blocks
    )
    errors = [
        (
            counted
            * (decoded(data, name, weights.shape).reshape(-1, 32) - weights.reshape(-1, 32)) ** 2
        )
        for data in (encode(weights, name, importance=importance), encode(weights, name))
    ]
    weighed, plain = (each.sum(axis=1) for each in errors)
    assert (weighed <= plain * (1 + 1e-4) + 1e-12).all()


@every_searched
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_so_it_is_for_the_weights_of_real_models(
    name: str, model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    with GGUFFile(path) as file:
        chosen = [
            decode(tensor, slice(0, 128))
            for key, tensor in file.tensors.items()
            if key.startswith(("blk.0.", "blk.9."))
            and len(tensor.shape) == 2
            and tensor.shape[1] % 256 == 0
        ]
    assert chosen
    for weights in chosen:
        assert_as_good_as_ggml(weights, name, None)
        assert_as_good_as_ggml(weights, name, importances(weights.shape[1]))


@every_searched
@pytest.mark.parametrize("calibrated", [False, True])
def test_almost_every_byte_is_ggmls(name: str, calibrated: bool) -> None:
    """Sums are rounded differently, so now and then another candidate wins, as good as theirs."""
    weights = random_weights(2, 96, 1024)
    importance = importances(1024) if calibrated else None
    ours = encode(weights, name, importance=importance)
    assert (ours == ggml.quantised(weights, name, importance)).mean() > 0.96


@every_weighed
def test_what_calibration_calls_important_is_stored_more_exactly(name: str) -> None:
    weights = random_weights(3, 64, 512)
    importance = np.ones(512, np.float32)
    importance[::16] = 1000
    plain = decoded(encode(weights, name), name, weights.shape)
    weighed = decoded(encode(weights, name, importance=importance), name, weights.shape)
    errors = [((found - weights)[:, ::16] ** 2).sum() for found in (plain, weighed)]
    assert errors[1] < 0.8 * errors[0]


@every_weighed
def test_the_unit_of_importance_does_not_matter(name: str) -> None:
    weights, importance = random_weights(4, 8, 512), importances(512)
    data = encode(weights, name, importance=importance)
    for factor in (2.0**-40, 2.0**40):
        scaled = importance * np.float32(factor)
        np.testing.assert_array_equal(encode(weights, name, importance=scaled), data)


@every_weighed
def test_inputs_that_calibration_never_saw_are_stored_all_the_same(name: str) -> None:
    weights = random_weights(5, 8, 512)
    importance = importances(512)
    importance[:256] = 0
    found = decoded(encode(weights, name, importance=importance), name, weights.shape)
    plain = decoded(encode(weights, name), name, weights.shape)
    errors = [((each - weights)[:, :256] ** 2).sum() for each in (plain, found)]
    assert errors[1] < 1.5 * errors[0]
    np.testing.assert_array_equal(
        encode(weights, name, importance=np.zeros(512, np.float32)),
        encode(weights, name, importance=np.ones(512, np.float32)),
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_an_importance_that_is_no_weight_is_refused(value: float) -> None:
    importance = np.ones(256, np.float32)
    importance[3] = value
    with pytest.raises(FileFormatError, match="importance is negative, infinite or NaN"):
        encode(random_weights(6, 2, 256), "Q4_K", importance=importance)


def test_importances_of_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="256.*512"):
        encode(random_weights(6, 2, 256), "Q4_K", importance=np.ones(512, np.float32))


@every_searched
def test_rows_encoded_in_parts_are_the_rows_of_the_whole(name: str) -> None:
    weights, importance = random_weights(7, 700, 768), importances(768)
    whole = encode(weights, name, importance=importance)
    parts = [encode(weights[a : a + 77], name, importance=importance) for a in range(0, 700, 77)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@every_searched
@pytest.mark.parametrize("calibrated", [False, True])
def test_zeros_stay_zero_beside_others(name: str, calibrated: bool) -> None:
    weights = random_weights(8, 4, 512)
    weights[1] = 0
    weights[2, 256:] = 0
    weights[3, 64:96] = 0
    importance = importances(512) if calibrated else None
    found = decoded(encode(weights, name, importance=importance), name, weights.shape)
    assert not found[weights == 0].any()
    assert found[2, :256].any()


@every_searched
@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-149, 127),
    alone=st.booleans(),
    calibrated=st.booleans(),
)
def test_weights_of_any_size_are_stored_or_refused_and_never_made_infinite(
    name: str, seed: int, exponent: int, alone: bool, calibrated: bool
) -> None:
    weights = random_weights(seed, 1, 256, 1.0)
    if alone:
        weights[0, 1:] = 0
    with np.errstate(over="ignore", under="ignore"):
        weights = np.clip(weights * np.float64(2.0) ** exponent, -3e38, 3e38).astype(np.float32)
    importance = importances(256, seed) if calibrated else None
    largest = np.abs(weights).max()
    try:
        data = encode(weights, name, importance=importance)
    except FileFormatError:
        refused = True
    else:
        refused = False
        found = decoded(data, name, weights.shape)
        # A weight of no importance may be off by its own size; and of the smallest scales, float16
        # has few digits: a unit is lost, times the codes.
        assert np.abs(found - weights).max() <= 1.5 * largest + 2.0**-24 * 128 * 32
    # Float16's largest, times the codes: at least the 15 of Q2_K's minima, at most 2^12.
    assert largest < 65504 * 2**12 if not refused else largest > 65504 * 14.9


@every_searched
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_no_scale_can_hold_is_refused(name: str, value: float) -> None:
    weights = np.ones((1, 256), np.float32)
    weights[0, 7] = value
    with pytest.raises(FileFormatError, match=f"infinity or a NaN, which {name}"):
        encode(weights, name)


@every_searched
def test_encoding_leaves_weights_and_importances_as_they_were(name: str) -> None:
    weights, importance = random_weights(9, 5, 256), importances(256)
    before = weights.copy(), importance.copy()
    encode(weights, name, importance=importance)
    np.testing.assert_array_equal(weights, before[0])
    np.testing.assert_array_equal(importance, before[1])
