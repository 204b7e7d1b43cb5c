"""Guessing that does not pay as a whole rests, whatever single guesses promised."""

from __future__ import annotations

import pytest

from farthing.engine.balance import Balance
from farthing.engine.cost import StepShape
from farthing.engine.host_time import Decoded


def step(texts: int, drafts: int, gained: int, seconds: float) -> Decoded:
    tokens = texts + 2 * drafts
    return Decoded(StepShape(tokens, tokens, 0, 0), texts, drafts, gained, seconds, 0.0, 0.0)


def go(balance: Balance, texts: int, steps: int, gained: int, seconds: float) -> int:
    """Every other step guesses, of those that do not rest; a plain one takes 1 s. How many rest."""
    rested = 0
    for number in range(steps):
        if balance.resting(texts):
            rested += 1
            balance.saved(step(texts, 0, texts, 1.0), 0.9, 0.0)
        elif number % 2:
            balance.saved(step(texts, 1, gained, seconds), 0.9, 0.001)
        else:
            balance.saved(step(texts, 0, texts, 1.0), 0.9, 0.001)
    return rested


def test_what_loses_rests_nearly_always() -> None:
    assert go(Balance(), texts=4, steps=4000, gained=4, seconds=1.2) > 3600


def test_what_wins_never_rests() -> None:
    assert go(Balance(), texts=4, steps=4000, gained=6, seconds=1.2) == 0


def test_what_begins_to_win_is_tried_and_goes_on() -> None:
    balance = Balance()
    go(balance, texts=4, steps=4000, gained=4, seconds=1.2)
    assert go(balance, texts=4, steps=1025, gained=8, seconds=1.2) <= 1024
    assert go(balance, texts=4, steps=1000, gained=8, seconds=1.2) == 0


def test_looking_for_guesses_that_are_never_found_rests_too() -> None:
    balance = Balance()
    rested = 0
    for _ in range(1000):
        rests = balance.resting(8)
        rested += rests
        balance.saved(step(8, 0, 8, 1.0), 0.9, 0.0 if rests else 0.03)
    assert rested > 800


def test_a_text_alone_is_never_held_back_by_what_others_lost() -> None:
    assert go(Balance(), texts=1, steps=1000, gained=1, seconds=1.2) == 0
    balance = Balance()
    go(balance, texts=4, steps=1000, gained=4, seconds=1.2)
    assert not balance.resting(1)
    assert not balance.resting(16)


def test_what_is_saved_is_counted_against_what_plain_steps_took() -> None:
    """The estimate says 0.9 s, and plain steps take 1."""
    balance = Balance()
    for _ in range(50):
        balance.saved(step(2, 0, 2, 1.0), 0.9, 0.0)
    assert balance.saved(step(2, 2, 5, 1.5), 0.9, 0.0) == pytest.approx(2.5 - 1.5)
    assert balance.saved(step(2, 0, 2, 1.0), 0.9, 0.02) == -0.02
