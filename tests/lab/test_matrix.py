"""Statistics of a matrix: counted by hand, and against a normal distribution."""

from __future__ import annotations

import numpy as np
import pytest

import tiny
from farthing.core import RequestError
from farthing.lab.matrix import Statistics, distribution, extremes, find_name, measure
from lab_subject import subject_at


def test_692_of_4_358_144_weights_are_0_016_percent_and_a_reach_of_24_1_sigma() -> None:
    published = Statistics("m", (896, 4864), 0.01386, 0.01822, 0.43945, 692)
    assert published.weights == 4_358_144
    assert f"{published.far_share:.3%}" == "0.016%"
    assert f"{published.reach:.1f}" == "24.1"


def test_statistics_are_those_of_numpy_in_float64() -> None:
    weights = np.random.default_rng(1).standard_normal((100, 200), np.float32)
    weights[3, 4], weights[5, 6] = 9.0, -7.0
    found = Statistics.of("m", weights)
    exact = weights.astype(np.float64)
    assert found.deviation == pytest.approx(exact.std())
    assert found.mean_magnitude == pytest.approx(np.abs(exact).mean())
    assert (found.largest, found.far, found.shape) == (9.0, 2, (100, 200))


def test_a_matrix_of_zeros_has_nothing_far_out() -> None:
    found = Statistics.of("m", np.zeros((4, 4), np.float32))
    assert (found.reach, found.far) == (0.0, 0)
    assert distribution(found, np.zeros((4, 4), np.float32)).rows[0][1] == 16


def test_normal_weights_are_distributed_as_the_table_says_they_would_be() -> None:
    weights = np.random.default_rng(2).standard_normal((1000, 1000), np.float32)
    table = distribution(Statistics.of("m", weights), weights)
    assert sum(int(row[1]) for row in table.rows) == weights.size  # type: ignore[arg-type]
    for row in table.rows[:4]:
        assert row[2] == pytest.approx(row[3], rel=0.05)
    assert table.expectation is not None
    assert table.expectation.met is False


def test_one_weight_far_out_is_more_than_a_normal_distribution_has() -> None:
    weights = np.random.default_rng(2).standard_normal((100, 100), np.float32)
    weights[0, 0] = 24
    table = distribution(Statistics.of("m", weights), weights)
    assert table.rows[-1][:2] == ("6 and more", 1)
    assert table.expectation is not None
    assert table.expectation.met


def test_the_most_extreme_matrix_is_looked_at_unless_another_is_named() -> None:
    path = tiny.shared("llama", "gguf", "F32")
    first, of_first = measure(subject_at(path))
    reaches = [row[5] for row in first.rows]
    assert reaches == sorted(reaches, reverse=True)  # type: ignore[type-var]
    assert of_first.title.startswith(f"{first.rows[0][0]}:")
    _, named = measure(subject_at(path, matrix="layers.1.up"))
    assert named.title.startswith("layers.1.up:")


def test_a_name_that_no_matrix_has_is_refused_with_near_ones() -> None:
    names = ["layers.0.query.weight", "layers.0.down.weight"]
    assert find_name("layers.0.down", names) == "layers.0.down.weight"
    assert find_name("layers.0.down.weight", names) == "layers.0.down.weight"
    with pytest.raises(RequestError, match=r"'layers\.0\.dwn' is none of .* layers\.0\.down"):
        find_name("layers.0.dwn", names)


def test_extremes_tell_the_first_in_words() -> None:
    published = Statistics("layers.3.down.weight", (896, 4864), 0.01386, 0.01822, 0.43945, 692)
    table = extremes([published], "F32, 32 bits a weight")
    assert "In layers.3.down the largest weight is 24.1 standard deviations out" in table.finding
    assert "692 of 4,358,144 lie beyond 6 sigma (0.016%)" in table.finding
