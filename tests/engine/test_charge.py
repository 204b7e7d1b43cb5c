from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, engine, rambling
from engine.threads import eventually
from farthing.backends.null import NullBackend
from farthing.core import SamplingParams
from farthing.engine.charge import charge, pace_of
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.sampler import sample


def driver(**policy: object) -> Driver:
    return Driver(NullBackend(rambling, VOCABULARY, total_blocks=64), sharing=False, **policy)


def known_cost(cost: StepCost) -> None:
    """A machine on which a step takes 10 ms, and each token 1 ms more."""
    draw = np.random.default_rng(3)
    for _ in range(400):
        tokens = int(draw.integers(1, 200))
        rows = int(draw.integers(1, tokens + 1))
        context = int(draw.integers(tokens, 400 * tokens))
        cost.observe(StepShape(tokens, rows, context, context // 2), 0.010 + 0.001 * tokens)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=6))
def test_the_shares_of_all_texts_are_the_seconds_of_all_steps(jobs: list[tuple[int, int]]) -> None:
    one = driver()
    sequences = one.submit(
        [request(str(at), range(prompt), more) for at, (prompt, more) in enumerate(jobs)]
    )
    spent = 0.0
    while (plan := one.scheduler.schedule(40)) is not None:
        seconds = 0.01 + 0.001 * len(plan.token_ids)
        one.scheduler.cost.observe(one.scheduler.shape, seconds)
        charge(one.scheduler.planned, one.scheduler.cost, seconds)
        result = one.backend.run(plan)
        if plan.sampling is not None:
            assert result.logits is not None
            result = sample(result.logits, plan.sampling)
        one.scheduler.commit(result)
        spent += seconds
    assert sum(each.machine_seconds for each in sequences) == pytest.approx(spent)
    assert min(each.machine_seconds for each in sequences) > 0


def test_who_feeds_more_pays_more_and_equals_pay_alike() -> None:
    one = driver()
    known_cost(one.scheduler.cost)
    short, other, long = one.submit(
        [request("a", range(10), 1), request("b", range(10), 1), request("c", range(100), 1)]
    )
    assert one.scheduler.schedule() is not None
    charge(one.scheduler.planned, one.scheduler.cost, 1.0)
    assert short.machine_seconds == other.machine_seconds
    # Alone they would take 20, 20 and 110 ms.
    assert long.machine_seconds == pytest.approx(110 / 150, rel=0.1)


def test_the_pace_is_what_steps_took() -> None:
    one = driver(latency_target=0.1)
    known_cost(one.scheduler.cost)
    pace = pace_of(one.scheduler, running=8, context=800)
    assert pace.step_seconds == pytest.approx(0.018, rel=0.15)
    assert pace.prompt_seconds == pytest.approx(0.001, rel=0.15)
    assert pace.prompt_tokens == pytest.approx(82, rel=0.15)


def test_nothing_is_known_of_the_pace_before_the_first_step() -> None:
    pace = pace_of(driver().scheduler, running=4, context=100)
    assert (pace.step_seconds, pace.prompt_seconds) == (0, 0)
    assert pace.prompt_tokens > 1


def test_a_completion_says_how_long_it_queued_and_what_it_cost() -> None:
    with engine() as one:
        streams = one.submit("abc", SamplingParams(max_tokens=9), n=3)
        timings = [stream.result().timing for stream in streams]
        assert eventually(lambda: one.idle)
        assert all(0 <= each.queue_seconds <= each.prefill_seconds for each in timings)
        assert sum(each.machine_seconds for each in timings) == pytest.approx(one.native_seconds)
        assert one.pace(2, 20).step_seconds > 0
        assert one.stats().held_back == 0
