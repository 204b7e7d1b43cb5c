"""The gain of continuous over static batching, and where the pair that is quoted of it appears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from farthing.engine.simulate import (
    Batching,
    Clock,
    Job,
    Outcome,
    Served,
    simulate,
    skewed_lengths,
)
from farthing.lab.batching_gains import (
    SLOWER,
    Arrivals,
    Gain,
    GainSpread,
    Moves,
    Spread,
    draw_gains,
    full_step_seconds,
)

if TYPE_CHECKING:
    from farthing.engine.cost import StepShape
    from farthing.engine.simulate import CostOfStep

DRAWS = 48


def one(shape: StepShape) -> float:
    return 1.0


def per_token(shape: StepShape) -> float:
    return float(shape.tokens)


def spread(arrivals: Arrivals) -> GainSpread:
    """At the same cost for every step, as the figures were first given; prompts are one token."""
    return GainSpread.of(
        [
            gain
            for seed in range(DRAWS)
            for gain in draw_gains(
                seed,
                cost=one,
                arrivals=arrivals,
                slots=8,
                prompt=1,
                latency_target=None,
                padded=(False,),
            )
        ]
    )


def test_a_gain_is_throughput_over_static_and_latency_under_static() -> None:
    jobs = [Job(1, 3), Job(1, 1), Job(1, 2)]
    gain = Gain.of(
        simulate(jobs, one, slots=2, batching=Batching.STATIC, latency_target=None),
        simulate(jobs, one, slots=2, latency_target=None),
    )
    assert gain.throughput == pytest.approx(5 / 3)
    assert gain.latency[Clock.ARRIVAL_TO_LAST_TOKEN] == pytest.approx((3 + 1 + 5) / (3 + 1 + 3))
    assert gain.latency[Clock.ARRIVAL_TO_RETURN] == pytest.approx((3 + 3 + 5) / (3 + 1 + 3))
    assert gain.latency[Clock.ADMISSION_TO_LAST_TOKEN] == pytest.approx(1.0)


def test_a_spread_has_the_middle_nine_tenths_and_the_extremes() -> None:
    assert Spread.of(range(101)) == Spread(50, 5, 95, 0, 100)


def test_the_pair_is_counted_where_both_figures_appear_in_one_draw() -> None:
    def gain(throughput: float, latency: float) -> Gain:
        return Gain(throughput, dict.fromkeys(Clock, latency))

    found = GainSpread.of([gain(1.6, 11), gain(1.6, 9), gain(2.6, 11), gain(1.55, 10.1)])
    assert found.draws == 4
    assert set(found.pair.values()) == {0.5}


def test_with_all_at_once_throughput_gains_as_quoted_and_latency_far_less_than_tenfold() -> None:
    found = spread(Arrivals(0))
    assert 1.3 < found.throughput.least < found.throughput.most < 3.7
    latency = found.latency[Clock.ARRIVAL_TO_LAST_TOKEN]
    assert 1.5 < latency.least < latency.most < 5.2
    assert found.latency[Clock.ARRIVAL_TO_RETURN].most < 7
    assert set(found.pair.values()) == {0.0}


def test_with_one_arrival_every_six_steps_the_pair_is_near() -> None:
    found = spread(Arrivals(6))
    assert found.throughput.middle == pytest.approx(1.65, abs=0.2)
    assert found.latency[Clock.ARRIVAL_TO_RETURN].middle == pytest.approx(9.1, abs=1.0)
    assert found.latency[Clock.ARRIVAL_TO_FIRST_TOKEN].middle > 50
    assert found.latency[Clock.ADMISSION_TO_LAST_TOKEN].middle == pytest.approx(1.0)


def test_padding_changes_nothing_where_all_steps_cost_the_same_and_much_where_tokens_do() -> None:
    def gains(cost: CostOfStep) -> list[Gain]:
        return draw_gains(
            3, cost=cost, arrivals=Arrivals(0), slots=8, prompt=1, latency_target=None
        )

    plain, padded = gains(one)
    assert plain == padded
    plain, padded = gains(per_token)
    assert plain.throughput < 1.01
    assert padded.throughput > 1.3


def test_the_step_that_arrivals_are_measured_in_has_its_share_of_the_prompts() -> None:
    assert full_step_seconds(per_token, 8, 1, [30]) == 8
    # A prompt of 61 tokens takes the place of the first of 30: two tokens more for each step.
    assert full_step_seconds(per_token, 8, 61, [30]) == 8 + 8 * 60 / 30


def test_arrivals_say_what_they_are_and_when() -> None:
    assert str(Arrivals(0)) == "all at once"
    assert str(Arrivals(6)) == "one every 6 steps"
    assert str(Arrivals(6, poisson=True)) == "Poisson, one every 6 steps"
    assert Arrivals(6).times(3, 0.5, seed=0) == (0, 3, 6)
    assert Arrivals(6, poisson=True).times(3, 0.5, seed=0) != (0, 3, 6)


def outcome(*latencies: float) -> Outcome:
    served = [
        Served(Job(1, 1, 0.0), 0.0, first_token=each, last_token=each, returned=each)
        for each in latencies
    ]
    return Outcome(tuple(served), 1)


def test_a_latency_moves_as_far_as_the_machine_or_further_where_requests_do_not_wait_for_it() -> (
    None
):
    usual = {Batching.STATIC: outcome(4.0), Batching.CONTINUOUS: outcome(2.0)}
    slower = {Batching.STATIC: outcome(4.0 * 1.1), Batching.CONTINUOUS: outcome(2.0 * 1.1**3)}
    moves = Moves.of(usual, slower)
    clock = Clock.ARRIVAL_TO_RETURN
    assert moves.latency[Batching.STATIC][clock] == pytest.approx(1)
    assert moves.latency[Batching.CONTINUOUS][clock] == pytest.approx(3)
    # From 2 times less to 2 / 1.1**2, and what two measurements part by themselves.
    assert moves.gain[clock] == pytest.approx(1 + 2)
    still = Moves.of(usual, usual)
    assert still.latency[Batching.STATIC][clock] == 1.0
    assert still.gain[clock] == 1.0


def test_a_load_that_comes_at_once_moves_with_the_machine_and_a_staggered_one_further() -> None:
    lengths = skewed_lengths(0)
    found = {}
    for steps in (0, 6):
        times = Arrivals(steps).times(len(lengths), 1.0, 0)
        jobs = [Job(8, length, time) for length, time in zip(lengths, times, strict=True)]
        usual, slower = (
            {each: simulate(jobs, lambda _, s=s: s, slots=8, batching=each) for each in Batching}
            for s in (1.0, SLOWER)
        )
        found[steps] = Moves.of(usual, slower)
    clock = Clock.ARRIVAL_TO_FIRST_TOKEN
    assert found[0].latency[Batching.CONTINUOUS][clock] == pytest.approx(1)
    assert found[0].gain[clock] == pytest.approx(1)
    assert found[6].latency[Batching.CONTINUOUS][clock] > 2
    assert found[6].gain[clock] > 2
