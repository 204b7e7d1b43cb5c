"""The online estimate of a step's seconds: sane from the first step on, right in the long run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.engine.cost import NO_LIMIT, StepCost, StepShape, attended, windows_of
from farthing.models.program import CacheLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

RECORDED = Path(__file__).parents[1] / "data" / "steps" / "smollm2-135m.json"
"""Steps of the default model: see record_steps.py there."""

DECODE_8 = StepShape(8, 8, 8 * 100, 8 * 100)

shapes = st.builds(
    StepShape,
    st.integers(1, 512),
    st.integers(0, 64),
    st.integers(1, 1_000_000),
    st.integers(1, 100_000),
)
seconds = st.floats(1e-7, 1e3)
observations = st.lists(st.tuples(shapes, seconds), min_size=1, max_size=40)


def taught(pairs: list[tuple[StepShape, float]]) -> StepCost:
    cost = StepCost()
    for shape, took in pairs:
        cost.observe(shape, took)
    return cost


def random_shapes(seed: int, count: int) -> Iterator[StepShape]:
    """Steps of a server: up to 64 sequences that decode, every third step with a chunk as well."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        contexts = random.integers(1, 800, int(2 ** random.uniform(0, 6)))
        total = int(contexts.sum())
        shape = StepShape(len(contexts), len(contexts), total, total)
        if random.random() < 1 / 3:
            position = int(random.integers(0, 800))
            shape = shape.joined(position, int(2 ** random.uniform(1, 8)), 1)
        yield shape


def linear(shape: StepShape) -> float:
    tokens, rows, context, reads = shape
    return 2e-3 + 2e-4 * tokens + 1e-4 * rows + 3e-7 * context + 6e-7 * reads


def memory_bound_below_16(shape: StepShape) -> float:
    """Takes as long for 16 tokens as for one: the weights must be read all the same."""
    return 4e-3 + 2.5e-4 * max(0, shape.tokens - 16) + 3e-7 * shape.context


def errors(cost: StepCost, law: Callable[[StepShape], float]) -> NDArray[np.float64]:
    return np.array([cost.seconds(shape) / law(shape) - 1 for shape in random_shapes(1, 300)])


def test_a_shape_that_a_chunk_joins_counts_what_its_tokens_attend_to() -> None:
    joined = StepShape(2, 2, 30, 30).joined(position=40, tokens=3, rows=1)
    assert joined == StepShape(5, 3, 30 + 41 + 42 + 43, 30 + 43)
    assert attended(40, 3) == 41 + 42 + 43
    assert StepShape(2, 2, 30, 30).joined(40, 0, 1) == StepShape(2, 2, 30, 30)


def test_a_layer_with_a_window_costs_no_more_for_what_is_behind_it() -> None:
    """Five of six layers see 512 positions: a text of 4,096 is read as one of 1,109."""
    layers = [CacheLayer(1, 256, 0 if number % 6 == 5 else 512) for number in range(18)]
    windows = windows_of(layers)
    assert windows == ((512, pytest.approx(5 / 6)),)
    assert windows_of([CacheLayer(2, 64, 0)]) == ()

    def machine(texts: int, position: int) -> float:
        read = sum(min(position, layer.window or position) for layer in layers) / len(layers)
        return 2e-3 + 2e-4 * texts + 4e-7 * texts * read

    def worst(cost: StepCost) -> float:
        places = [(texts, 1 << power) for texts in (1, 2, 4, 8, 16) for power in range(4, 13)]
        steps = [(StepShape(n, n, n * at, n * at), machine(n, at)) for n, at in places]
        for number in np.random.default_rng(0).permutation(np.arange(20 * len(steps)) % len(steps)):
            cost.observe(*steps[int(number)])
        return max(abs(cost.seconds(shape) / took - 1) for shape, took in steps)

    assert worst(StepCost(windows)) < 0.03
    assert worst(StepCost()) > 0.1


@given(st.integers(1, 10_000), st.integers(1, 512), st.integers(1, 2048))
def test_windows_never_make_an_estimate_fall_with_the_position(
    position: int, tokens: int, window: int
) -> None:
    cost = StepCost(((window, 0.75),))
    cost.observe(DECODE_8, 0.01)
    near = cost.seconds(DECODE_8.joined(position, tokens, 1))
    assert cost.seconds(DECODE_8.joined(2 * position, tokens, 1)) >= near * (1 - 1e-9)
    assert cost.seconds(DECODE_8.joined(position, tokens + 1, 1)) >= near * (1 - 1e-9)


def test_before_the_first_step_nothing_is_known_and_nothing_is_limited() -> None:
    cost = StepCost()
    assert cost.seconds(DECODE_8) == 0
    assert cost.affordable(DECODE_8, 0, 1e-9) == NO_LIMIT


@given(shapes, seconds)
def test_one_step_is_enough_to_know_that_step_and_to_guess_others(
    shape: StepShape, took: float
) -> None:
    cost = taught([(shape, took)])
    assert cost.seconds(shape) == pytest.approx(took)
    twice = StepShape(*(2 * each for each in shape))
    assert took <= cost.seconds(twice) <= 2.5 * took
    assert cost.seconds(StepShape(1, 1, 1, 1)) > 0


@given(observations, shapes, st.integers(1, 1000))
def test_the_estimate_is_finite_and_rises_with_every_argument(
    pairs: list[tuple[StepShape, float]], shape: StepShape, more: int
) -> None:
    cost = taught(pairs)
    estimate = cost.seconds(shape)
    assert 0 <= estimate < float("inf")
    for field in StepShape._fields:
        larger = shape._replace(**{field: getattr(shape, field) + more})
        assert cost.seconds(larger) >= estimate


@given(observations, shapes, st.integers(0, 5000), seconds)
def test_what_is_affordable_is_the_most_that_keeps_to_the_time(
    pairs: list[tuple[StepShape, float]], shape: StepShape, position: int, target: float
) -> None:
    cost = taught(pairs)
    count = cost.affordable(shape, position, target)
    assert 0 <= count <= NO_LIMIT
    if count:
        assert cost.seconds(shape.joined(position, count, 1)) <= target
    if count < NO_LIMIT:
        assert cost.seconds(shape.joined(position, count + 1, 1)) > target
    assert cost.affordable(shape, position, 2 * target) >= count
    assert cost.affordable(shape, position + 100, target) <= count


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_step_takes_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        StepCost().observe(DECODE_8, wrong)


@pytest.mark.parametrize("law", [linear, memory_bound_below_16])
@pytest.mark.parametrize("seed", range(3))
def test_a_law_is_found_again_under_noise_and_outliers(
    law: Callable[[StepShape], float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    cost = StepCost()
    for shape in random_shapes(seed + 10, 1500):
        outlier = random.uniform(2, 50) if random.random() < 0.03 else 1.0
        cost.observe(shape, law(shape) * random.lognormal(0, 0.05) * outlier)
    found = np.abs(errors(cost, law))
    assert np.median(found) < 0.03
    assert np.quantile(found, 0.95) < 0.1


def test_a_law_without_noise_is_found_almost_exactly() -> None:
    cost = taught([(shape, linear(shape)) for shape in random_shapes(5, 1000)])
    assert np.abs(errors(cost, linear)).max() < 0.05


@pytest.mark.parametrize("factor", [1e-3, 20.0, 1000.0])
def test_one_outlier_hardly_moves_what_is_known(factor: float) -> None:
    cost = taught([(shape, linear(shape)) for shape in random_shapes(6, 500)])
    before = cost.seconds(DECODE_8)
    cost.observe(DECODE_8, linear(DECODE_8) * factor)
    assert cost.seconds(DECODE_8) == pytest.approx(before, rel=0.1)


def test_an_outlier_at_the_very_beginning_is_soon_forgotten() -> None:
    cost = taught([(StepShape(40, 1, attended(0, 40), 40), 3.0)])
    for shape in random_shapes(7, 60):
        cost.observe(shape, linear(shape))
    assert np.median(np.abs(errors(cost, linear))) < 0.1


def test_a_machine_that_has_become_slower_is_believed() -> None:
    cost = taught([(shape, linear(shape)) for shape in random_shapes(8, 500)])
    for shape in random_shapes(9, 300):
        cost.observe(shape, 2 * linear(shape))
    assert np.median(errors(cost, linear)) == pytest.approx(1.0, abs=0.1)


def test_an_hour_of_the_same_step_does_not_wear_away_what_other_steps_cost() -> None:
    cost = taught([(shape, linear(shape)) for shape in random_shapes(10, 500)])
    chunk = DECODE_8.joined(200, 256, 1)
    before = cost.seconds(chunk)
    random = np.random.default_rng(0)
    for _ in range(20_000):
        cost.observe(DECODE_8, linear(DECODE_8) * random.lognormal(0, 0.05))
    assert cost.seconds(chunk) == pytest.approx(before, rel=0.1)
    assert cost.seconds(DECODE_8) == pytest.approx(linear(DECODE_8), rel=0.05)


def test_nothing_but_the_same_step_tells_its_time_and_keeps_the_rest_sane() -> None:
    cost = taught([(DECODE_8, 3e-3)] * 1000)
    assert cost.seconds(DECODE_8) == pytest.approx(3e-3, rel=0.01)
    chunk = DECODE_8.joined(0, 256, 1)
    # Somewhere between free and each token at the price of one that is fed alone.
    assert 2 * 3e-3 < cost.seconds(chunk) < 256 * 3e-3


def recorded() -> list[tuple[StepShape, float]]:
    rows = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [(StepShape(*map(int, row[:4])), float(row[4])) for row in rows]


def offline_errors(pairs: list[tuple[StepShape, float]]) -> NDArray[np.float64]:
    """Of the best sum of the same kind that is known afterwards: least absolute relative errors."""
    took = np.array([each for _, each in pairs])
    tokens, rows, context, reads = np.array([shape for shape, _ in pairs], float).T
    bends = [np.maximum(0, tokens - bend) for bend in (4, 16, 64)]
    terms = np.stack([np.ones_like(tokens), tokens, *bends, rows, context, reads], 1)
    weights = np.ones_like(took)
    for _ in range(20):
        scaled = terms * (weights / took)[:, None]
        error = terms @ np.linalg.lstsq(scaled, weights, rcond=None)[0] / took - 1
        weights = 1 / np.sqrt(np.maximum(np.abs(error), 0.01))
    return np.abs(error)


def test_steps_of_the_default_model_are_foretold_nearly_as_well_as_told_afterwards() -> None:
    pairs = recorded()
    cost = StepCost()
    foretold = []
    for shape, took in pairs:
        foretold.append(abs(cost.seconds(shape) / took - 1))
        cost.observe(shape, took)
    late = np.array(foretold[200:])
    afterwards = offline_errors(pairs)[200:]
    assert np.median(late) < 0.04
    assert np.median(late) < 2 * np.median(afterwards)
    assert np.quantile(late, 0.9) < 1.25 * np.quantile(afterwards, 0.9)
    for kind in (
        [shape.tokens == shape.rows for shape, _ in pairs[200:]],
        [shape.rows <= 1 for shape, _ in pairs[200:]],
        [1 < shape.rows < shape.tokens for shape, _ in pairs[200:]],
    ):
        assert np.median(late[np.array(kind)]) < 0.06


def test_the_chunk_of_a_prompt_keeps_a_step_of_the_default_model_within_its_time() -> None:
    cost = taught(recorded())
    # What took at most 50 ms there, was a step of at most so many tokens.
    count = cost.affordable(StepShape(0, 0, 0, 0), 0, 0.05)
    nearby = [took for shape, took in recorded() if 0.8 * count < shape.tokens < 1.2 * count]
    assert np.median(nearby) == pytest.approx(0.05, rel=0.3)
