from __future__ import annotations

import pytest

from farthing.core import RequestError
from farthing.lab.bench_points import BATCH_CONTEXT, Measured, choose_points
from farthing.plan.cost import Cost


def test_the_usual_sweeps_go_as_far_as_the_issue_asks() -> None:
    points = choose_points(8192)
    assert (points.prefill[0], points.prefill[-1]) == (16, 4096)
    assert (points.decode[0], points.decode[-1]) == (16, 8192)
    assert points.batch == (1, 2, 4, 8, 16, 32, 64)
    assert points.skipped == ()


def test_what_a_short_context_leaves_out_is_said() -> None:
    points = choose_points(1024)
    assert points.prefill[-1] == points.decode[-1] == 1024
    assert points.skipped == (
        "prefill 2,048, 4,096: this model's context is 1,024",
        "decode 2,048, 4,096, 8,192: this model's context is 1,024",
    )


def test_wanted_points_are_taken_in_rising_order_once_and_may_be_none() -> None:
    points = choose_points(1024, prefill=(512, 16, 512), decode=(), batch=(3,))
    assert points.prefill == (16, 512)
    assert points.decode == ()
    assert points.batch == (3,)
    assert points.skipped == ()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"prefill": (16, 1025)}, "--prefill 1025 is more than 1024, this model's context"),
        ({"decode": (5000, 4000)}, "--decode 4000 is more than 1024, this model's context"),
        ({"batch": (513,)}, "--batch 513 is more than 512, the most it measures"),
        ({"prefill": (), "decode": (), "batch": ()}, "nothing is left to measure"),
    ],
)
def test_a_wanted_point_that_cannot_be_had_is_an_error(
    wanted: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        choose_points(1024, **wanted)


@pytest.mark.parametrize(
    ("context_length", "wanted", "expected"),
    [
        # 64 sequences of 512 tokens are 1,024 blocks, as many as four of 8,192.
        (8192, {}, (8192, 4)),
        (1024, {}, (1024, 32)),
        # 64 sequences of 128 tokens are 256 blocks, as many as one of 8,192.
        (8192, {"decode": (8192,)}, (8192, 1)),
        (100, {"prefill": (100,), "decode": (), "batch": (3,)}, (100, 3)),
        (8192, {"prefill": (16,), "decode": (16,), "batch": (1,)}, (BATCH_CONTEXT, 1)),
        (8192, {"prefill": (300,), "decode": (), "batch": (5,)}, (300, 2)),
    ],
)
def test_the_cache_has_room_for_every_point(
    context_length: int, wanted: dict[str, tuple[int, ...]], expected: tuple[int, int]
) -> None:
    assert choose_points(context_length, **wanted).needs(context_length) == expected


def test_batches_over_long_contexts_belong_to_the_usual_sweeps_alone() -> None:
    assert (16, 2048) in choose_points(8192).cross
    assert max(context for _, context in choose_points(1024).cross) == 1024
    assert choose_points(8192, batch=(1, 2)).cross == ()
    assert choose_points(8192, decode=(16,)).cross == ()
    less = choose_points(8192).without_cross("no room")
    assert less.cross == ()
    assert less.needs(8192) == (8192, 1)
    assert less.skipped == ("batches over long contexts: no room",)


def test_a_point_tells_medians_and_shares_within_rounds() -> None:
    # The second round was twice as slow, and so was the machine.
    measured = Measured(8, 8, Cost(), (1.0, 2.0, 1.25), (0.5, 1.0, 0.5), (0.1, 0.2, 0.25))
    assert measured.step_seconds == 1.25
    assert measured.tokens_per_second == 8 / 1.25
    assert measured.spread == (4.0, 8.0)
    assert measured.memory_share == 0.5
    assert measured.arithmetic_share == 0.1
