"""The simulator against hand-computed loads, and what must hold of every load."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import engine
from farthing.core import SamplingParams
from farthing.engine.limits import Policy
from farthing.engine.simulate import (
    Batching,
    Clock,
    Job,
    Outcome,
    poisson_arrivals,
    regular_arrivals,
    simulate,
    skewed_lengths,
)

if TYPE_CHECKING:
    from farthing.engine.cost import StepShape

CONTINUOUS, STATIC = Batching.CONTINUOUS, Batching.STATIC


def one(shape: StepShape) -> float:
    """Every step takes a second."""
    return 1.0


class Recorder:
    """A cost that remembers what it was asked."""

    def __init__(self, *fields: str) -> None:
        self.shapes: list[StepShape] = []
        self._fields = fields

    def __call__(self, shape: StepShape) -> float:
        self.shapes.append(shape)
        return float(sum(getattr(shape, field) for field in self._fields)) or 1.0


def times(outcome: Outcome, name: str) -> list[float]:
    return [getattr(each, name) for each in outcome.served]


THREE = [Job(1, 3), Job(1, 1), Job(1, 2)]
"""Outputs of 3, 1 and 2 tokens, at once, for two slots."""


def test_a_freed_slot_takes_the_next_request_at_the_very_next_step() -> None:
    outcome = simulate(THREE, one, slots=2, latency_target=None)
    assert times(outcome, "admitted") == [0, 0, 1]
    assert times(outcome, "first_token") == [1, 1, 2]
    assert times(outcome, "last_token") == [3, 1, 3]
    assert times(outcome, "returned") == [3, 1, 3]
    assert outcome.steps == 3
    assert outcome.seconds == 3
    assert outcome.throughput == 6 / 3


def test_a_static_batch_waits_for_its_longest_member() -> None:
    outcome = simulate(THREE, one, slots=2, batching=STATIC, latency_target=None)
    assert times(outcome, "admitted") == [0, 0, 3]
    assert times(outcome, "first_token") == [1, 1, 4]
    assert times(outcome, "last_token") == [3, 1, 5]
    assert times(outcome, "returned") == [3, 3, 5]
    assert outcome.steps == 5
    assert outcome.throughput == 6 / 5


def test_latency_by_every_clock() -> None:
    outcome = simulate(
        [Job(1, 3), Job(1, 1), Job(1, 2, arrival=1.0)],
        one,
        slots=2,
        batching=STATIC,
        latency_target=None,
    )
    assert {clock: outcome.mean_latency(clock) for clock in Clock} == {
        Clock.ARRIVAL_TO_FIRST_TOKEN: (1 + 1 + 3) / 3,
        Clock.ARRIVAL_TO_LAST_TOKEN: (3 + 1 + 4) / 3,
        Clock.ARRIVAL_TO_RETURN: (3 + 3 + 4) / 3,
        Clock.ADMISSION_TO_LAST_TOKEN: (3 + 1 + 2) / 3,
        Clock.ADMISSION_TO_RETURN: (3 + 3 + 2) / 3,
    }


def test_members_that_ended_cost_on_where_the_batch_is_padded() -> None:
    def seconds(batching: Batching, padded: bool) -> float:
        cost = Recorder("tokens")
        return simulate(
            THREE, cost, slots=2, batching=batching, padded=padded, latency_target=None
        ).seconds

    assert seconds(CONTINUOUS, False) == 2 + 2 + 2
    assert seconds(STATIC, False) == (2 + 1 + 1) + (1 + 1)
    assert seconds(STATIC, True) == (2 + 2 + 2) + (1 + 1)


def test_a_padded_member_attends_to_what_it_would_have_written() -> None:
    jobs = [Job(2, 3), Job(2, 1)]
    padded, plain = Recorder(), Recorder()
    simulate(jobs, padded, slots=2, batching=STATIC, padded=True, latency_target=None)
    simulate(jobs, plain, slots=2, batching=STATIC, latency_target=None)
    # Prompts of two tokens attend to 1 and 2 positions; then the third token to 3, the next to 4.
    assert [shape.context for shape in plain.shapes] == [3 + 3, 3, 4]
    assert [shape.context for shape in padded.shapes] == [3 + 3, 3 + 3, 4 + 4]
    assert [shape.reads for shape in padded.shapes] == [2 + 2, 3 + 3, 4 + 4]
    assert [shape.rows for shape in padded.shapes] == [2, 2, 2]


@pytest.mark.parametrize("batching", Batching)
def test_the_clock_moves_on_to_the_next_arrival_when_nothing_is_to_be_done(
    batching: Batching,
) -> None:
    jobs = [Job(1, 2, arrival=100.0), Job(1, 2, arrival=5.0)]
    outcome = simulate(jobs, one, slots=4, batching=batching, latency_target=None)
    assert times(outcome, "admitted") == [100, 5]
    assert times(outcome, "last_token") == [102, 7]
    assert outcome.seconds == 97


def test_whoever_arrives_during_a_step_joins_the_next() -> None:
    jobs = [Job(1, 3), Job(1, 1, arrival=0.5)]
    outcome = simulate(jobs, one, slots=2, latency_target=None)
    assert times(outcome, "admitted") == [0, 1]
    assert times(outcome, "last_token") == [3, 2]


def test_a_static_batch_is_made_of_those_who_wait_when_it_is_formed() -> None:
    jobs = [Job(1, 5), *(Job(1, 1, arrival=1.0 + number) for number in range(4))]
    outcome = simulate(jobs, one, slots=3, batching=STATIC, latency_target=None)
    assert times(outcome, "admitted") == [0, 5, 5, 5, 6]


def test_a_long_prompt_takes_several_steps() -> None:
    cost = Recorder("tokens")
    outcome = simulate([Job(10, 2)], cost, slots=1, step_tokens=4)
    assert [shape.tokens for shape in cost.shapes] == [4, 4, 2, 1]
    assert [shape.rows for shape in cost.shapes] == [0, 0, 1, 1]
    assert times(outcome, "first_token") == [10]


def test_a_prompt_keeps_the_latency_target_once_another_has_told_what_prompts_cost() -> None:
    cost = Recorder("tokens")
    jobs = [Job(1, 2000), *(Job(300, 5, arrival=300.0 * number) for number in range(1, 4))]
    simulate(jobs, cost, slots=8, latency_target=100.0)
    tokens = [shape.tokens for shape in cost.shapes]
    first_long = next(at for at, count in enumerate(tokens) if count > 10)
    assert 60 < max(tokens[first_long + 5 :]) <= 110


@pytest.mark.parametrize(("requests", "slots", "prompt", "output"), [(5, 2, 3, 4), (9, 4, 40, 7)])
def test_an_engine_takes_the_same_steps(
    requests: int, slots: int, prompt: int, output: int
) -> None:
    policy = Policy(sharing=False, slots=slots, latency_target=None)
    sampling = SamplingParams(max_tokens=output, ignore_eos=True)
    with engine(policy=policy, max_step_tokens=64) as served:
        served.generate([[97 + number] * prompt for number in range(requests)], sampling)
        steps = served.steps
    jobs = [Job(prompt, output)] * requests
    told = simulate(jobs, one, slots=slots, latency_target=None, step_tokens=64)
    assert steps == told.steps


whole_jobs = st.lists(
    st.builds(Job, st.just(1), st.integers(1, 30), st.integers(0, 60).map(float)),
    min_size=1,
    max_size=24,
)


@given(whole_jobs, st.integers(1, 8))
def test_no_request_is_served_later_than_by_static_batching_when_all_steps_cost_the_same(
    jobs: list[Job], slots: int
) -> None:
    continuous = simulate(jobs, one, slots=slots, latency_target=None)
    static = simulate(jobs, one, slots=slots, batching=STATIC, latency_target=None)
    for ours, theirs in zip(continuous.served, static.served, strict=True):
        assert ours.first_token <= theirs.first_token
        assert ours.last_token <= theirs.last_token
    assert continuous.seconds <= static.seconds
    assert continuous.throughput >= static.throughput


@given(
    st.lists(
        st.builds(Job, st.integers(1, 200), st.integers(1, 30), st.floats(0, 500)),
        min_size=1,
        max_size=16,
    ),
    st.integers(1, 8),
    st.sampled_from(Batching),
)
def test_every_token_is_computed_once_and_no_step_holds_more_than_its_slots(
    jobs: list[Job], slots: int, batching: Batching
) -> None:
    cost = Recorder("tokens")
    outcome = simulate(
        jobs, cost, slots=slots, batching=batching, latency_target=None, step_tokens=64
    )
    assert sum(shape.tokens for shape in cost.shapes) == sum(
        job.prompt + job.output - 1 for job in jobs
    )
    assert sum(shape.rows for shape in cost.shapes) == sum(job.output for job in jobs)
    assert max(shape.rows for shape in cost.shapes) <= slots
    assert max(shape.tokens for shape in cost.shapes) <= 64
    assert outcome.steps == len(cost.shapes)
    for job, served in zip(jobs, outcome.served, strict=True):
        assert served.job is job
        assert job.arrival <= served.admitted < served.first_token
        assert served.first_token <= served.last_token <= served.returned


@pytest.mark.parametrize("seed", [0, 1, 2, 999])
def test_the_skewed_lengths_have_the_median_the_longest_and_the_sum_that_they_must(
    seed: int,
) -> None:
    lengths = skewed_lengths(seed)
    assert len(lengths) == 64
    assert median(lengths) == 18
    assert max(lengths) == 231
    assert sum(lengths) == 1874
    assert min(lengths) >= 1


def test_a_seed_gives_the_same_lengths_always_and_another_seed_others() -> None:
    assert skewed_lengths() == skewed_lengths(0)
    assert skewed_lengths(0)[:8] == (46, 4, 7, 23, 98, 11, 4, 65)
    assert len({skewed_lengths(seed) for seed in range(20)}) == 20


def test_regular_arrivals_are_evenly_apart_and_may_be_at_once() -> None:
    assert regular_arrivals(3, 2.5) == (0, 2.5, 5)
    assert regular_arrivals(3, 0) == (0, 0, 0)


def test_poisson_arrivals_are_as_far_apart_on_average_and_vary_as_they_must() -> None:
    arrivals = poisson_arrivals(5000, 2.0, seed=1)
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert arrivals[0] == 0
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(2.0, rel=0.05)
    # Of an exponential distribution, standard deviation and mean are equal.
    assert fmean((gap - 2.0) ** 2 for gap in gaps) ** 0.5 == pytest.approx(2.0, rel=0.1)
    assert arrivals == poisson_arrivals(5000, 2.0, seed=1)
