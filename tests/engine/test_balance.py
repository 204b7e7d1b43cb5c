"""Guessing that does not pay as a whole rests, whatever single guesses promised."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.test_speculate import linear_cost
from farthing.core import Request, SamplingParams
from farthing.engine.balance import SHARE, Balance
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.host_time import Decoded
from farthing.engine.sequence import Sequence

LENGTH = 100


@cache
def texts_of(count: int, length: int = LENGTH) -> list[Sequence]:
    request = Request("r", (1,) * length, SamplingParams())
    return [Sequence(request, 10**6, frozenset()) for _ in range(count)]


def step(
    texts: int, drafts: int, gained: int, seconds: float, *, guessing: float = 0.0, of: int = LENGTH
) -> Decoded:
    tokens = texts + 2 * drafts
    shape = StepShape(tokens, tokens, of * tokens, of * texts + 2 * drafts)
    return Decoded(shape, texts, drafts, gained, seconds, guessing, 0.0)


@cache
def cost() -> StepCost:
    return linear_cost(1.0, 0.01)


def go(balance: Balance, texts: int, steps: int, gained: int, seconds: float) -> int:
    """Every other step guesses, of those that do not rest; a plain one takes 1 s. How many rest."""
    rested = 0
    for number in range(steps):
        if not balance.allows(texts_of(texts)):
            rested += 1
            balance.account(step(texts, 0, texts, 1.0), 0.0, cost())
        elif number % 2:
            balance.account(step(texts, 1, gained, seconds), 0.001, cost())
        else:
            balance.account(step(texts, 0, texts, 1.001), 0.001, cost())
    return rested


def test_what_loses_rests_nearly_always() -> None:
    assert go(Balance(), texts=4, steps=4000, gained=4, seconds=1.2) > 3800


def test_what_wins_rests_only_to_learn_what_plain_steps_take() -> None:
    assert go(Balance(), texts=4, steps=4000, gained=6, seconds=1.2) <= 8


def test_what_gains_about_as_much_as_it_costs_is_mostly_left_alone() -> None:
    """A gain of less than a hundredth is not sure to be one."""
    assert go(Balance(), texts=4, steps=8000, gained=5, seconds=1.245) > 4000


def test_what_begins_to_win_is_tried_and_goes_on() -> None:
    balance = Balance()
    go(balance, texts=4, steps=4000, gained=4, seconds=1.2)
    assert go(balance, texts=4, steps=1100, gained=8, seconds=1.2) < 1000
    assert go(balance, texts=4, steps=1000, gained=8, seconds=1.2) < 20


def test_looking_for_guesses_that_are_never_found_rests_too() -> None:
    balance = Balance()
    rested = 0
    for _ in range(1000):
        looked = 0.03 if balance.allows(texts_of(8)) else 0.0
        rested += not looked
        balance.account(step(8, 0, 8, 1.0 + looked), looked, cost())
    assert rested > 800


def test_what_a_drafter_took_in_vain_is_a_loss() -> None:
    balance = Balance()
    go(balance, texts=1, steps=10, gained=1, seconds=1.0)
    assert balance.account(step(1, 0, 1, 1.0, guessing=0.2), 0.01, cost()) == pytest.approx(-0.21)


def test_what_others_lost_holds_no_other_number_of_texts_back() -> None:
    balance = Balance()
    go(balance, texts=1, steps=10, gained=1, seconds=1.0)
    go(balance, texts=16, steps=10, gained=16, seconds=1.0)
    go(balance, texts=4, steps=3000, gained=4, seconds=1.2)
    assert balance.allows(texts_of(1))
    assert balance.allows(texts_of(16))


def test_a_text_that_is_new_and_alone_is_looked_at_for_itself() -> None:
    balance = Balance()
    go(balance, texts=1, steps=2000, gained=1, seconds=1.2)
    assert not balance.allows(texts_of(1))
    balance.begins(1)
    go(balance, texts=1, steps=400, gained=1, seconds=1.2)  # the allowance comes back meanwhile
    balance.begins(1)
    assert balance.allows(texts_of(1))


def test_nothing_is_guessed_where_no_plain_step_was_made() -> None:
    """Of as many texts, and at about as many positions."""
    balance = Balance()
    assert not balance.allows(texts_of(2))
    go(balance, texts=2, steps=10, gained=2, seconds=1.0)
    assert balance.allows(texts_of(2))
    assert not balance.allows(texts_of(3))
    assert not balance.allows(texts_of(2, 3 * LENGTH))


def test_a_plain_step_is_made_now_and_then_where_all_others_guess() -> None:
    balance = Balance()
    plain = 0
    for _ in range(1000):
        if balance.allows(texts_of(1)):
            balance.account(step(1, 1, 3, 1.1), 0.001, cost())
        else:
            plain += 1
            balance.account(step(1, 0, 1, 1.0), 0.0, cost())
    assert 10 <= plain <= 40


def test_what_is_saved_is_counted_against_what_plain_steps_took() -> None:
    balance = Balance()
    for _ in range(50):
        balance.account(step(2, 0, 2, 1.0), 0.0, cost())
    assert balance.account(step(2, 2, 5, 1.5), 0.0, cost()) == pytest.approx(2.5 - 1.5)
    assert balance.account(step(2, 0, 2, 1.0), 0.02, cost()) == -0.02


@settings(deadline=None, max_examples=60)
@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 8]),
            st.integers(1, 300),
            st.floats(0, 3),
            st.floats(1, 3),
            st.floats(0, 1),
        ),
        max_size=12,
    )
)
def test_no_more_is_lost_than_the_allowance(
    plan: list[tuple[int, int, float, float, float]],
) -> None:
    """Whatever is gained and taken, and however it changes: in seconds, exactly as is promised."""
    balance = Balance()
    taken = without = 0.0
    for texts, steps, more, seconds, looked in plan:
        for _ in range(steps):
            if balance.allows(texts_of(texts)):
                gained = texts + int(more * texts)
                one = step(texts, 1, gained, seconds) if more else step(texts, 0, texts, 1 + looked)
                balance.account(one, looked, cost())
            else:
                one = step(texts, 0, texts, 1.0)
                balance.account(one, 0.0, cost())
            taken += one.total
            without += one.gained / texts
            assert taken <= (without + 4 + 3) / (1 - SHARE) + 1e-9
