"""Costs from measured steps, curves over batches, and which steps are measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import ActivationMode, KVDtype
from farthing.engine.cost import StepShape
from farthing.lab.tune_cost import MeasuredCost, Overhead, overhead_of
from farthing.lab.tune_curve import BatchPoint, curve_of, make_curve, prices_at
from farthing.lab.tune_points import Load, Step, batches, choose_steps
from farthing.lab.tune_rounds import Samples
from farthing.plan.memory import plan_memory
from native_steps import model_at

LOAD = Load(16, ((512, 128),))
STEPS = choose_steps(LOAD, 32, 512)


def seconds(shape: StepShape) -> float:
    """A machine that reads its weights in 4 ms, and multiplies as long for each 20 tokens."""
    reading = 4e-3 + 2e-7 * shape.reads
    multiplying = 2e-4 * shape.tokens + 1e-8 * shape.context
    return float((reading**2 + multiplying**2) ** 0.5) + 5e-6 * shape.rows


def cost(overhead: Overhead | None = None) -> MeasuredCost:
    return MeasuredCost({step.shape: seconds(step.shape) for step in STEPS}, overhead)


def test_what_was_measured_comes_out_as_it_was() -> None:
    found = cost()
    for step in STEPS:
        assert found(step.shape) == pytest.approx(seconds(step.shape))


@pytest.mark.parametrize(
    "step",
    [
        Step(3, 560),
        Step(12, 600),
        Step(24, 576),
        Step(0, 0, 128, 256),
        Step(12, 576, 64, 64),
        Step(15, 520, 200, 256),
        Step(5, 600, 300, 100),
    ],
)
def test_a_step_between_the_measured_ones_is_near_to_what_it_takes(step: Step) -> None:
    assert cost()(step.shape) == pytest.approx(seconds(step.shape), rel=0.12)


def test_python_comes_on_top_of_every_step() -> None:
    shape = Step(8, 576).shape
    assert cost(Overhead(1e-3, 1e-4))(shape) == pytest.approx(cost()(shape) + 1e-3 + 8e-4)


def test_overhead_is_a_line_through_the_fewest_and_the_most_rows_and_never_below_0() -> None:
    found = overhead_of({1: 2e-3, 16: 5e-3})
    assert found.seconds(1) == pytest.approx(2e-3)
    assert found.seconds(16) == pytest.approx(5e-3)
    assert overhead_of({1: 2e-3}).seconds(9) == pytest.approx(2e-3)
    falling = overhead_of({1: 5e-3, 16: 2e-3})
    assert falling == Overhead(5e-3, 0.0)
    assert overhead_of({1: 1e-6, 2: 1.0}).step == 0.0


def test_the_largest_correction_says_how_wrong_the_law_alone_would_be() -> None:
    exact = MeasuredCost({s.shape: 1e-3 + 1e-5 * s.shape.tokens for s in STEPS})
    assert exact.largest_correction < 0.1
    one = {s.shape: seconds(s.shape) for s in STEPS}
    one[STEPS[3].shape] *= 3
    assert MeasuredCost(one).largest_correction > 0.3


def test_batches_go_to_the_first_power_of_two_that_doubles_the_users() -> None:
    assert batches(1) == (1, 2)
    assert batches(6) == (1, 2, 4, 6, 8, 16)
    assert batches(512) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@given(
    st.integers(1, 512),
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 2000)), min_size=1, max_size=5),
    st.integers(1, 512),
)
def test_steps_stay_within_the_longest_text_the_batch_and_a_step(
    users: int, lengths: list[tuple[int, int]], most: int
) -> None:
    load = Load(users, tuple(lengths))
    steps = choose_steps(load, most, 512)
    assert len(set(steps)) == len(steps)
    for step in steps:
        assert 1 <= step.shape.tokens <= 512
        assert step.decoding <= most
        for first, end in step.spans:
            assert 0 <= first < end <= load.longest
        shape = step.shape
        assert shape.reads == sum(end for _, end in step.spans)
        attended = sum(position + 1 for span in step.spans for position in range(*span))
        assert shape.context == attended
        assert shape.rows == len(step.spans)
        assert (step.place is None) == bool(step.decoding and step.chunk)
    assert any(step.decoding and not step.chunk for step in steps)
    assert any(step.chunk and not step.decoding for step in steps)


def point(batch: int, step: float, **shares: float) -> BatchPoint:
    memory, arithmetic, overhead = (
        shares.get(name, 0.1) for name in ("memory", "arithmetic", "overhead")
    )
    return BatchPoint(batch, step, step, step, None, memory, arithmetic, overhead, None)


def test_the_knee_is_where_no_doubling_adds_a_quarter_and_the_cause_is_what_most_of_it_is() -> None:
    points = [
        point(1, 1.0),
        point(2, 1.1),
        point(4, 1.5),
        point(8, 2.8, overhead=0.6),
        point(16, 6),
    ]
    curve = curve_of(points, 100)
    assert (curve.knee, curve.cause) == (4, "overhead")
    assert [each.gain for each in curve.points[:3]] == pytest.approx(
        [1 / 0.55 - 1, 2.2 / 1.5 - 1, 3 / 2.8 - 1]
    )
    assert curve.points[-1].gain is None


def test_where_every_doubling_pays_there_is_no_knee_and_the_last_batch_says_why() -> None:
    curve = curve_of([point(1, 1.0), point(2, 1.01), point(4, 1.02, arithmetic=0.5)], 100)
    assert (curve.knee, curve.cause) == (None, "arithmetic")
    assert curve_of([point(1, 1.0, memory=0.9)], 100).cause == "memory"


def unsure(batch: int, low: float, seconds: float, high: float) -> BatchPoint:
    return replace(point(batch, seconds), low=low, high=high)


def test_where_the_intervals_leave_the_knee_open_neither_it_nor_a_cause_is_told() -> None:
    sure = [unsure(1, 0.99, 1.0, 1.01), unsure(2, 1.09, 1.1, 1.11), unsure(4, 2.19, 2.2, 2.21)]
    assert curve_of(sure, 100).knee == 2
    wide = [sure[0], unsure(2, 1.09, 1.1, 1.7), unsure(4, 2.8, 3.0, 3.1)]
    curve = curve_of(wide, 100)
    assert (curve.knee, curve.cause, curve.contradictions) == (None, None, ())
    assert curve.knee_within == (1, 2)
    end = curve_of([sure[0], sure[1], unsure(4, 1.2, 2.0, 2.2)], 100)
    assert (end.knee, end.cause, end.knee_within) == (None, None, (2, None))


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([point(1, 1.0), point(2, 1.1, memory=1.71), point(4, 2.2)], "a batch of 2 171%"),
        ([point(1, 1.0, arithmetic=1.2), point(2, 1.1)], "a batch of 1 120%"),
        ([point(1, 1.0), point(2, 1.1), point(4, 0.9)], "a batch of 4 took 900.00 ms"),
    ],
)
def test_figures_that_cannot_be_are_told_and_no_knee_is_drawn_from_them(
    points: list[BatchPoint], words: str
) -> None:
    curve = curve_of(points, 100)
    assert (curve.knee, curve.cause) == (None, None)
    [told] = curve.contradictions
    assert words in told


def test_times_that_are_the_same_as_far_as_they_are_known_do_not_contradict() -> None:
    assert curve_of([point(1, 1.0), point(2, 0.98), point(4, 1.0)], 100).contradictions == ()


@given(
    st.lists(
        st.tuples(st.floats(0.1, 10), st.floats(0, 0.5), st.floats(0, 0.5)),
        min_size=1,
        max_size=8,
    )
)
def test_a_knee_is_told_only_where_every_curve_through_the_intervals_has_it(
    found: list[tuple[float, float, float]],
) -> None:
    points = [
        unsure(1 << power, seconds * (1 - below), seconds, seconds * (1 + above))
        for power, (seconds, below, above) in enumerate(found)
    ]
    curve = curve_of(points, 100)
    if curve.cause is None:
        assert curve.contradictions or curve.knee_within[0] != curve.knee_within[1]
        return
    for way in product((0, 1), repeat=len(points)):
        other = [
            point(each.batch, each.high if high else each.low)
            for each, high in zip(points, way, strict=True)
        ]
        assert curve.knee in curve_of(other, 100).knee_within


def test_a_curve_is_of_the_steps_at_the_usual_context_with_python_in_them() -> None:
    model = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    plan = plan_memory(model, context_length=1024, kv_dtype=KVDtype.BF16)
    samples = Samples(
        {step: [seconds(step.shape)] * 3 for step in STEPS},
        [1e9],
        {mode: [1e11] for mode in ActivationMode},
    )
    curve = make_curve(samples, Overhead(1e-3), cost(), model.program, plan, LOAD, 3.6)
    assert curve.context == 576
    assert [each.batch for each in curve.points] == [1, 2, 4, 8, 16, 32]
    assert curve.points[3].seconds == pytest.approx(seconds(Step(8, 576).shape) + 1e-3)
    assert all(each.memory_share > 0 for each in curve.points)
    costs = [each.prices for each in curve.points]
    assert all(each is not None for each in costs)
    generated = [each.generated for each in costs if each is not None]
    assert all(after < before for before, after in pairwise(generated))


def test_prices_are_the_time_that_a_token_of_each_kind_takes() -> None:
    def known(shape: StepShape) -> float:
        return 0.01 + 0.001 * shape.tokens + 1e-6 * shape.context

    # At 3.6 an hour a second costs a thousandth.
    found = prices_at(known, Load(4, ((256, 64),)), 4, 3.6)
    step = 0.01 + 0.004 + 1e-6 * 4 * 288
    assert found.generated == pytest.approx(1e6 * 1e-3 * step / 4)
    assert found.prompt == pytest.approx(1e6 * 1e-3 * (0.001 * 128 + 1e-6 * 128 * 129 / 2) / 128)
    # 128 tokens attend to each cached one.
    assert found.cached == pytest.approx(1e6 * 1e-3 * 1e-6 * 128)
