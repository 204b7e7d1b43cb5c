"""A step taken apart: every second has one place, and what is slowed shows where it is."""

from __future__ import annotations

import pytest

from farthing.core import ActivationMode
from farthing.lab.step_split import Point, Split, split_table, taken_apart, usual_points
from farthing.plan.cost import Cost

READ, MULTIPLY = 1000.0, dict.fromkeys(ActivationMode, 1000.0)


def cost(read: int, products: int) -> Cost:
    return Cost({ActivationMode.INT8: products}, read, 0)


def test_a_stage_is_bound_by_what_takes_it_longer_at_the_ceilings() -> None:
    costs = [cost(2000, 500), cost(100, 3000)]
    # Two stages and sampling, of a step that takes a second more than they do.
    parts = taken_apart(10.0, [2.5, 5.0, 1.5], costs, READ, MULTIPLY)
    assert parts == (2.0, 3.0, 0.5 + 2.0 + 1.5, 1.0)


def test_what_caches_hold_takes_no_longer_than_it_took() -> None:
    assert taken_apart(1.0, [1.0, 0.0], [cost(5000, 1)], READ, MULTIPLY) == (1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("slower", [0.0, 4.0])
def test_a_slowed_kernel_is_beyond_both_ceilings(slower: float) -> None:
    parts = taken_apart(3.0 + slower, [2.0 + slower, 1.0], [cost(2000, 1)], READ, MULTIPLY)
    assert parts == (2.0, 0.0, 1.0 + slower, 0.0)


def test_points_are_a_prompt_contexts_and_as_many_sequences_as_there_is_room_for() -> None:
    found = usual_points([16, 64, 256, 1024], [16, 64, 256, 1024, 4096], 4096)
    assert [each.name for each in found] == [
        "prompt of 256",
        "1 token at 16",
        "1 token at 256",
        "1 token at 4,096",
        "8 sequences at 128",
        "32 sequences at 128",
    ]
    assert [each.name for each in usual_points([8], [8], 8)] == ["prompt of 8", "1 token at 8"]


def split(point: Point, *parts: float) -> Split:
    return Split(point, [parts, parts])


def test_the_table_says_what_a_prompt_and_a_token_are_bound_by() -> None:
    prompt, token = Point("prompt of 9", 9), Point("1 token at 5", contexts=(5,))
    sound = split_table([split(prompt, 1, 3, 1, 0), split(token, 6, 1, 2, 1)])
    assert sound.expectation is not None
    assert sound.expectation.met
    assert (
        "Of a prompt of 9, 60% is multiplying at this machine's ceiling, 20% reading"
        in sound.finding
    )
    assert "1 token at 5, 60% is reading, 10% multiplying and 20% beyond both" in sound.finding
    assert "Outside the stages passes at most 10%" in sound.finding
    odd = split_table([split(prompt, 3, 1, 1, 0), split(token, 6, 1, 2, 1)])
    assert odd.expectation is not None
    assert odd.expectation.met is False


def test_the_shares_that_are_told_add_up_though_rounds_differ() -> None:
    uneven = Split(Point("p"), [(1.0, 2.0, 3.0, 4.0), (9.0, 1.0, 1.0, 1.0), (2.0, 8.0, 2.0, 0.0)])
    assert sum(uneven.shares) == pytest.approx(1.0)
    assert uneven.shares == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7])
