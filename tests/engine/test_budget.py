from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farthing.core import Request, SamplingParams
from farthing.engine.budget import share_out
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.sequence import Sequence

ROWS = 64


def lacking(*counts: int) -> list[Sequence]:
    """Sequences that lack so many tokens, by seniority."""
    return [
        Sequence(Request("text", (1,) * count, SamplingParams()), 10_000, frozenset(), arrival)
        for arrival, count in enumerate(counts)
    ]


def linear_cost(seconds_per_token: float) -> StepCost:
    cost = StepCost()
    for tokens in (1, 2, 4, 8, 16, 64, 256, 512) * 20:
        context = tokens * (tokens + 1) // 2
        cost.observe(StepShape(tokens, 1, context, tokens), 0.001 + tokens * seconds_per_token)
    return cost


def test_whoever_lacks_one_token_gets_it_before_any_prompt() -> None:
    assert share_out(lacking(100, 1, 1), 10, ROWS, None, StepCost()) == [8, 1, 1]


def test_half_is_for_the_oldest_prompt_and_the_rest_for_the_shortest() -> None:
    assert share_out(lacking(900, 90, 30, 60), 200, ROWS, None, StepCost()) == [100, 10, 30, 60]


def test_what_the_short_ones_leave_goes_to_the_oldest() -> None:
    assert share_out(lacking(900, 10, 20), 200, ROWS, None, StepCost()) == [170, 10, 20]


def test_a_prompt_alone_gets_the_whole_step() -> None:
    assert share_out(lacking(900), 512, ROWS, 0.001, linear_cost(0.001)) == [512]


def test_beside_others_that_decode_a_prompt_keeps_the_step_within_the_target() -> None:
    [chunk, one] = share_out(lacking(900, 1), 512, ROWS, 0.1, linear_cost(0.001))
    assert one == 1
    assert 60 <= chunk <= 110


def test_but_it_gets_one_block_at_least() -> None:
    assert share_out(lacking(900, 1), 512, ROWS, 0.0001, linear_cost(0.001)) == [32, 1]


def test_without_a_measured_step_there_is_no_bound() -> None:
    assert share_out(lacking(900, 1), 512, ROWS, 0.1, StepCost()) == [511, 1]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 512))
def test_no_more_than_is_lacking_or_allowed_and_nothing_is_left_over(
    counts: list[int], budget: int
) -> None:
    given_out = share_out(lacking(*counts), budget, ROWS, None, StepCost())
    assert all(0 <= given <= count for given, count in zip(given_out, counts, strict=True))
    assert sum(given_out) == min(budget, sum(counts))
