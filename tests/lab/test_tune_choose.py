"""Choices over costs that are known: they keep the objective, and more is never worse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farthing.engine.cost import StepShape
from farthing.engine.simulate import Clock, Job, simulate
from farthing.lab import tune_choose
from farthing.lab.tune_choose import (
    Candidate,
    Forecast,
    Setting,
    Usual,
    _jobs,
    choose,
    forecast_of,
    quantile,
    slot_numbers,
    step_seconds,
    undominated,
)
from farthing.lab.tune_points import CHUNKS, Load
from farthing.plan.objective import Objective
from farthing.plan.profile import ServerWork

if TYPE_CHECKING:
    from collections.abc import Iterator

FEW = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def short_simulations() -> Iterator[None]:
    """What is chosen of what was simulated does not depend on how long that was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune_choose, "_LEAST_JOBS", 12)
        patch.setattr(tune_choose, "_MOST_STARTS", 1)
        yield


@pytest.fixture
def whole_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person has them."""
    monkeypatch.setattr(tune_choose, "_LEAST_JOBS", 40)
    monkeypatch.setattr(tune_choose, "_MOST_STARTS", 3)


@dataclass(frozen=True)
class Linear:
    """Seconds of a step: so many for itself, for each token, and for each position read."""

    step: float = 0.01
    token: float = 0.001
    position: float = 1e-6

    def __call__(self, shape: StepShape) -> float:
        return self.step + self.token * shape.tokens + self.position * shape.reads


costs = st.builds(
    Linear,
    st.floats(1e-3, 0.05),
    st.floats(1e-5, 2e-3),
    st.floats(1e-9, 1e-5),
)
loads = st.builds(
    Load,
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 200), st.integers(2, 12)), min_size=1, max_size=3).map(tuple),
)
limits = st.floats(0.02, 3.0)


def measured(cost: Linear, load: Load, setting: Setting) -> tuple[float, float]:
    """The slowest first token and the slowest pace of a run of its own, past its beginning."""
    jobs = [Job(*load.lengths[at % len(load.lengths)]) for at in range(12 * load.users)]
    outcome = simulate(
        jobs, cost, slots=setting.slots, latency_target=setting.step_seconds, users=load.users
    )
    steady = outcome.served[2 * load.users : -load.users]
    return (
        quantile([each.latency(Clock.ARRIVAL_TO_FIRST_TOKEN) for each in steady]),
        quantile([(s.last_token - s.first_token) / (s.job.output - 1) for s in steady]),
    )


@FEW
@given(costs, loads, limits, limits, st.floats(0, 0.5))
def test_a_choice_keeps_the_objective_with_its_margin_and_no_other_that_does_is_faster(
    cost: Linear, load: Load, ttft: float, tpot: float, margin: float
) -> None:
    objective = Objective(ttft, tpot / 10)
    candidate = Candidate("one", cost, 8)
    choice = choose([candidate], load, objective, margin=margin)
    kept = [each for each in choice.tried if each.kept(objective, margin)]
    assert (choice.best is None) == (not kept)
    if choice.best is not None:
        assert choice.best.ttft * (1 + margin) <= ttft
        assert choice.best.tpot * (1 + margin) <= tpot / 10
        assert choice.best.margin(objective) >= margin * (1 - 1e-9)
        assert choice.best.throughput >= 0.98 * max(each.throughput for each in kept)
        again = forecast_of(candidate, load, choice.best.setting.slots, choice.best.setting.chunk)
        assert again == choice.best


@FEW
@given(costs, loads, limits, limits, st.floats(1.0, 4.0))
def test_a_looser_objective_never_leads_to_a_slower_choice(
    cost: Linear, load: Load, ttft: float, tpot: float, factor: float
) -> None:
    candidates = [Candidate("one", cost, 8)]
    strict = choose(candidates, load, Objective(ttft, tpot / 10))
    loose = choose(candidates, load, Objective(ttft * factor, factor * tpot / 10))
    if strict.best is not None:
        assert loose.best is not None
        assert loose.best.throughput >= 0.98 * strict.best.throughput
    assert loose.reachable_users >= strict.reachable_users


@FEW
@given(costs, st.integers(1, 5), limits)
def test_what_is_reachable_is_reached(cost: Linear, users: int, tpot: float) -> None:
    load, objective = Load(users, ((64, 6),)), Objective(None, tpot / 10)
    choice = choose([Candidate("one", cost, 8)], load, objective)
    if choice.reachable is None:
        assert choice.reachable_users == 0
        return
    assert choice.reachable.kept(objective)
    alone = choose(
        [Candidate("one", cost, 8)], Load(choice.reachable_users, load.lengths), objective
    )
    assert alone.best is not None


def test_a_choice_holds_in_a_longer_run_of_its_own(whole_simulations: None) -> None:
    cost, load = Linear(), Load(6, ((100, 10), (20, 20)))
    objective = Objective(0.7, 0.06)
    choice = choose([Candidate("one", cost, 6)], load, objective, margin=0.1)
    assert choice.best is not None
    ttft, tpot = measured(cost, load, choice.best.setting)
    assert objective.met(ttft, tpot)


def test_slots_are_fewer_than_users_where_more_would_write_too_slowly() -> None:
    cost, load = Linear(step=0.001, token=0.01, position=0), Load(8, ((2, 30),))
    objective = Objective(30.0, 0.055)
    choice = choose([Candidate("one", cost, 8)], load, objective)
    assert choice.best is not None
    assert choice.best.setting.slots < 8
    assert choose([Candidate("one", cost, 8)], load, Objective(30.0, 1.0)).best is not None


def test_chunks_are_small_where_a_step_must_be_short_and_large_where_prompts_must_be_read() -> None:
    cost, load = Linear(step=0.005, token=0.0005, position=0), Load(4, ((2000, 40),))
    candidate = Candidate("one", cost, 4)
    short = choose([candidate], load, Objective(None, 0.05))
    early = choose([candidate], load, Objective(2.2, None))
    assert short.best is not None
    assert early.best is not None
    assert short.best.setting.chunk < 512
    assert early.best.ttft < short.best.ttft
    assert short.best.tpot < early.best.tpot


def test_memory_bounds_the_slots_and_no_memory_is_an_error() -> None:
    load = Load(8, ((10, 5),))
    choice = choose([Candidate("one", Linear(), 3)], load, Objective(None, None))
    assert {each.setting.slots for each in choice.tried} <= {1, 2, 3}
    with pytest.raises(ValueError, match="no candidate has memory"):
        choose([Candidate("one", Linear(), 0)], load, Objective(1.0, None))


def test_an_impossible_objective_tells_the_nearest_and_that_nobody_can_have_it() -> None:
    choice = choose([Candidate("one", Linear(), 4)], Load(4, ((10, 5),)), Objective(None, 1e-6))
    assert choice.best is choice.reachable is None
    assert choice.reachable_users == 0
    assert choice.alone is not None
    assert choice.alone.tpot <= choice.nearest.tpot
    assert choice.nearest.tpot == min(each.tpot for each in choice.tried)


def test_of_engines_that_are_alike_the_first_is_chosen_and_a_faster_one_before_it() -> None:
    slow, fast = Candidate("slow", Linear(step=0.05), 4), Candidate("fast", Linear(), 4)
    same = replace(fast, name="same")
    load, objective = Load(4, ((64, 16),)), Objective(5.0, 0.5)
    for candidates, wanted in (([slow, fast], "fast"), ([fast, same], "fast"), ([same], "same")):
        best = choose(candidates, load, objective).best
        assert best is not None
        assert best.setting.candidate == wanted


def test_the_first_engine_is_kept_where_another_is_faster_by_less_than_is_sure() -> None:
    usual, other = Candidate("usual", Linear(), 4), Candidate("other", Linear(step=0.008), 4)
    load, objective = Load(4, ((64, 16),)), Objective(5.0, 0.5)
    for unsure, wanted in ((0.0, "other"), (0.3, "usual")):
        best = choose([usual, other], load, objective, unsure=unsure).best
        assert best is not None
        assert best.setting.candidate == wanted
    # One that cannot keep the objective is not chosen for that.
    strict = Objective(None, 0.0105)
    best = choose([usual, other], load, strict, unsure=0.9).best
    assert best is not None
    assert best.setting.candidate == "other"
    assert best.kept(strict)


USUAL = Usual("one", 64, 0.1, 64, 32768)


@FEW
@given(costs, loads, limits, limits, st.floats(0, 0.3), st.floats(0.01, 0.3))
def test_the_defaults_are_left_only_for_what_is_faster_by_more_than_is_unsure(
    cost: Linear, load: Load, ttft: float, tpot: float, unsure: float, step_seconds: float
) -> None:
    objective = Objective(ttft, tpot / 10)
    candidates = [Candidate("one", cost, 8), Candidate("other", replace(cost, token=1e-4), 8)]
    usual = replace(USUAL, step_seconds=step_seconds)
    choice = choose(candidates, load, objective, unsure=unsure, usual=usual)
    [defaults] = [each for each in choice.tried if each.setting.usual]
    assert (defaults.setting.slots, defaults.setting.step_seconds) == (64, step_seconds)
    if not defaults.kept(objective):
        return
    assert choice.best is not None
    # It beats them or is them.
    if choice.best is not defaults:
        assert choice.best.throughput * (1 - max(0.02, unsure)) > defaults.throughput


def test_defaults_that_do_not_keep_the_objective_or_find_no_memory_are_left() -> None:
    cost, load = Linear(), Load(8, ((400, 20),))
    candidate = Candidate("one", cost, 8)
    patient = choose([candidate], load, Objective(None, None), unsure=0.5, usual=USUAL).best
    assert patient is not None
    assert patient.setting.usual
    slow = replace(USUAL, step_seconds=0.4)
    strict = Objective(None, 0.06)
    best = choose([candidate], load, strict, unsure=0.9, usual=slow).best
    assert best is not None
    assert not best.setting.usual
    assert best.kept(strict)
    for other in (replace(USUAL, texts=0), replace(USUAL, candidate="absent")):
        best = choose([candidate], load, Objective(None, None), unsure=0.5, usual=other).best
        assert best is not None
        assert not best.setting.usual


def test_the_defaults_run_as_many_texts_as_their_cache_holds() -> None:
    load, free = Load(6, ((10, 20),)), Objective(None, None)

    def throughput(usual: Usual) -> float:
        tried = choose([Candidate("one", Linear(), 6)], load, free, usual=usual).tried
        [defaults] = [each for each in tried if each.setting.usual]
        return defaults.throughput

    assert throughput(replace(USUAL, texts=2)) == throughput(replace(USUAL, slots=2))
    assert throughput(replace(USUAL, texts=2)) < throughput(USUAL)


def test_the_servers_work_lengthens_the_steps_unless_it_has_a_core_of_its_own() -> None:
    load = Load(4, ((50, 20),))
    alone = Candidate("one", Linear(), 4)
    sharing = replace(alone, server=ServerWork(0.001, 0.00002, 0.001))
    apart = replace(sharing, core_of_its_own=True)
    found = [forecast_of(each, load, 4, 128) for each in (alone, apart, sharing)]
    assert found[0].throughput > found[1].throughput > found[2].throughput
    assert found[0].ttft < found[2].ttft
    # A step of four writes four tokens more slowly by 4 ms, and takes 14.
    assert found[2].tpot == pytest.approx(found[0].tpot + 0.004, rel=0.1)


def test_steps_that_vary_make_the_slowest_slower_and_the_same_by_the_same_seed() -> None:
    load = Load(4, ((50, 20),))
    steady = Candidate("one", Linear(), 4)
    shaky = replace(steady, spread=(0.5, 1.5, 1.0, 1.0))
    assert forecast_of(shaky, load, 4, 128).tpot > forecast_of(steady, load, 4, 128).tpot
    assert forecast_of(shaky, load, 4, 128) == forecast_of(shaky, load, 4, 128)
    twice = replace(steady, spread=(2.0,))
    assert forecast_of(twice, load, 4, 128).throughput == pytest.approx(
        forecast_of(steady, load, 4, 128).throughput / 2, rel=0.05
    )


def test_a_machine_is_slow_for_as_long_as_it_was_when_it_was_measured() -> None:
    """Slow and fast by turns of a sample, an answer has as much of both; slow for the time of many
    samples, some answers are slow from end to end.
    """
    load = Load(1, ((1, 81),))
    steady = Candidate("one", Linear(step=0.009, token=0.001, position=0.0), 1)
    alternating = replace(steady, spread=(0.5, 1.5) * 40)
    lasting = replace(steady, spread=(0.5,) * 40 + (1.5,) * 40)
    assert forecast_of(steady, load, 1, 32).tpot == pytest.approx(0.01)
    assert forecast_of(alternating, load, 1, 32).tpot == pytest.approx(0.01, rel=0.05)
    assert forecast_of(lasting, load, 1, 32).tpot == pytest.approx(0.015, rel=0.01)
    assert forecast_of(alternating, load, 1, 32).throughput == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("prompt", [1, 400])
def test_users_begin_within_the_time_in_which_each_has_an_answer(prompt: int) -> None:
    """With prompts, which all wait for, that is far longer than the steps of an answer."""
    load, candidate = Load(4, ((prompt, 20),)), Candidate("one", Linear(), 4)
    begun = [job.arrival for seed in range(50) for job in _jobs(load, candidate, 4, seed)[:4]]
    count = 60
    jobs = [Job(prompt, 20, arrival) for arrival in begun[:4]]
    outcome = simulate(
        [*jobs, *[Job(prompt, 20)] * count], Linear(), slots=4, users=4, latency_target=None
    )
    turn = outcome.seconds / (count + 4) * 4
    assert max(begun) == pytest.approx(turn, rel=0.15)


def test_users_whose_requests_meet_wait_for_one_another(whole_simulations: None) -> None:
    """Such a request's first token takes what several prompts take, and one in 99 knows it."""
    load = Load(6, ((200, 20),))
    forecast = forecast_of(Candidate("one", Linear(step=0.001), 6), load, 6, 512)
    assert forecast.ttft > 1.8 * (0.001 + 0.001 * 200)


def test_an_engine_that_is_slower_everywhere_is_not_simulated() -> None:
    shapes = [StepShape(1, 1, 10, 10), StepShape(64, 1, 3000, 64)]
    slow, fast = Candidate("slow", Linear(step=0.05), 4), Candidate("fast", Linear(), 4)
    mixed = Candidate("mixed", Linear(step=0.001, token=0.005), 4)
    roomy = replace(slow, name="roomy", most_slots=9)
    assert undominated([slow, fast], shapes) == [fast]
    assert undominated([slow, fast, mixed, roomy], shapes) == [fast, mixed, roomy]
    alike = replace(fast, name="alike", cost=Linear(step=0.0099))
    assert undominated([fast, alike], shapes) == [fast, alike]
    assert undominated([mixed, slow, fast], shapes, unsure=0.9) == [mixed, slow, fast]
    assert undominated([slow, fast], shapes, kept="slow") == [slow, fast]


def test_a_step_may_take_what_a_chunk_takes_beside_those_that_write() -> None:
    candidate, load = Candidate("one", Linear(position=0), 8), Load(8, ((100, 10),))
    seconds = [step_seconds(candidate, load, 5, chunk) for chunk in CHUNKS]
    assert seconds[:2] == pytest.approx([0.01 + 0.001 * (4 + 32), 0.01 + 0.001 * (4 + 64)])
    assert seconds == sorted(seconds)
    # A step holds 512 tokens in all.
    assert seconds[-1] == pytest.approx(0.01 + 0.001 * 512)


def test_numbers_of_slots_are_powers_of_two_the_halves_between_and_the_most() -> None:
    assert slot_numbers(0) == []
    assert slot_numbers(1) == [1]
    assert slot_numbers(13) == [1, 2, 3, 4, 6, 8, 12, 13]


def test_the_margin_is_that_of_the_nearer_limit() -> None:
    forecast = Forecast(Setting("one", 1, 32, 0.1), 0.5, 0.05, 10.0)
    assert forecast.margin(Objective(1.0, 0.06)) == pytest.approx(0.2)
    assert forecast.margin(Objective(1.0, None)) == pytest.approx(1.0)
    assert forecast.margin(Objective(None, None)) == inf
    assert forecast.kept(Objective(1.0, 0.06), 0.19)
    assert not forecast.kept(Objective(1.0, 0.06), 0.21)
