"""The grid: whoever fits, fits; the most is the most; and what is told of the rest is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import ActivationMode, KVDtype
from farthing.plan.grid import Question, grid, largest, memory_of, most_users, timing_of
from farthing.plan.memory import require_room
from farthing.plan.nearest import nearest
from farthing.plan.objective import Objective
from farthing.plan.precision import AS_STORED, Precision, precision
from farthing.plan.price import prices
from farthing.plan.profile import Ceilings
from farthing.plan.shapes import DEFAULT_RESERVE, EXAMPLES
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject, ShapeSubject, Subject
from farthing.plan.traffic import fixed_traffic, traffic_of
from native_steps import model_at

if TYPE_CHECKING:
    from collections.abc import Callable

CEILINGS = Ceilings(
    2e10,
    {ActivationMode.FP32: 5e10, ActivationMode.BF16: 1.3e11, ActivationMode.INT8: 2.4e11},
)
GIB = 1 << 30


def tiny_subject(kv_dtype: KVDtype = KVDtype.BF16, wanted: Precision = AS_STORED) -> ModelSubject:
    return ModelSubject(model_at(tiny.shared("llama")), wanted, kv_dtype, threads=1)


def shape_subject(number: int, weights: str, kv_dtype: KVDtype = KVDtype.BF16) -> ShapeSubject:
    return ShapeSubject(EXAMPLES[number], precision(weights), kv_dtype, reserve=DEFAULT_RESERVE)


def asked(room: int, *contexts: int, users: tuple[int, ...] | None = None) -> Question:
    return Question(room, tuple(map(fixed_traffic, contexts)), users)


def test_a_shapes_cells_are_the_formulas() -> None:
    subject = shape_subject(1, "int4")
    (cell,) = grid([(subject, None)], asked(8 * GIB, 320, users=(1,)))
    assert (cell.tokens, cell.allocated_tokens, cell.tokens_left) == (337, 320, 0)
    assert cell.fits
    assert cell.binding == "memory"
    (cell,) = grid([(subject, None)], asked(8 * GIB, 337, users=(1,)))
    assert not cell.fits  # in whole blocks it would be 352
    assert cell.most_users == 0
    assert cell.short_bytes == 0 < cell.missing_bytes
    (cell,) = grid([(shape_subject(0, "int8"), None)], asked(8 * GIB, 32, users=(1,)))
    assert round(cell.short_bytes / 2**20, 1) == 19.7


def test_unasked_users_are_one_and_the_most_that_fit() -> None:
    subject = tiny_subject()
    traffic = fixed_traffic(512)
    room = memory_of(subject, traffic, 37).total
    cells = grid([(subject, None)], asked(room, 512))
    assert [cell.users for cell in cells] == [1, 37]
    assert all(cell.fits and cell.most_users == 37 for cell in cells)
    (only,) = grid([(subject, None)], asked(memory_of(subject, traffic, 1).total, 512))
    assert only.users == only.most_users == 1
    (none,) = grid([(subject, None)], asked(1 << 20, 512))
    assert (none.users, none.most_users, none.fits) == (1, 0, False)


@pytest.mark.parametrize("users", [1, 5, 60])
@pytest.mark.parametrize("short", [0, 1])
def test_a_cell_says_what_the_allocator_says(users: int, short: int) -> None:
    subject = tiny_subject(KVDtype.INT8)
    traffic = fixed_traffic(300)
    plan = subject.planned(300, users, traffic.tokens(users))
    (cell,) = grid([(subject, None)], asked(plan.needed_bytes - short, 300, users=(users,)))
    assert cell.needed_bytes == plan.needed_bytes
    assert cell.needed_tokens == plan.cache_tokens == users * 320
    assert cell.missing_bytes == short
    assert cell.fits == (short == 0)
    if cell.fits:
        require_room(plan, cell.memory_bytes)
        assert cell.allocated_tokens == plan.cache_tokens


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_the_largest_possible_number_is_found(true_up_to: int, most: int) -> None:
    assert largest(lambda number: number <= true_up_to, most) == min(true_up_to, most)


def test_an_objective_lowers_how_many_there_can_be() -> None:
    subject = tiny_subject()
    speed = Speed(subject, CEILINGS)
    room = GIB
    plain = asked(room, 512)
    step = timing_of(speed, plain.traffics[0], 20, plain).step
    wanted = Question(room, plain.traffics, None, Objective(tpot=step))
    most = most_users(subject, speed, wanted.traffics[0], wanted)
    assert 20 <= most < most_users(subject, speed, plain.traffics[0], plain)
    cells = grid(
        [(subject, speed)], Question(room, plain.traffics, (most, most + 1), wanted.objective)
    )
    assert [cell.meets_objective for cell in cells] == [True, False]
    assert [cell.answers for cell in cells] == [True, False]
    assert all(cell.fits for cell in cells)


def test_rates_and_prices_follow_from_the_times() -> None:
    subject = shape_subject(0, "int4")
    speed = Speed(subject, CEILINGS)
    question = Question(16 * GIB, (fixed_traffic(2048),), (8,), price_per_hour=3.6)
    (cell,) = grid([(subject, speed)], question)
    timing = cell.timing
    assert timing is not None
    assert timing.prices is not None
    assert timing.in_all == pytest.approx(8 * timing.per_user)
    # 0.001 a second, 8 tokens a step.
    assert timing.prices.generated == pytest.approx(1e6 * 0.001 * timing.step / 8)
    prompt = speed.prompt_seconds(2048 - 256)
    assert timing.prices.prompt == pytest.approx(1e6 * 0.001 * prompt / (2048 - 256))
    assert 0 < timing.prices.cached < timing.prices.prompt
    assert prices(3600.0, 1e-6, 0.0, 2e-6).generated == 2.0


def test_a_shared_prefix_saves_memory_and_time() -> None:
    subject = tiny_subject()
    speed = Speed(subject, CEILINGS)
    plain, shared = fixed_traffic(1024), fixed_traffic(1024, shared=640)
    question = asked(GIB, 1024)
    assert memory_of(subject, shared, 20).total < memory_of(subject, plain, 20).total
    assert (
        timing_of(speed, shared, 4, question).first_token
        < timing_of(speed, plain, 4, question).first_token
    )


def test_real_lengths_let_in_more_than_their_longest_would() -> None:
    subject = tiny_subject()
    lengths = [(20, 30)] * 90 + [(500, 400)] * 10
    room = memory_of(subject, fixed_traffic(900), 20).total
    real = traffic_of(lengths, "x")
    question = Question(room, (real,), None)
    assert most_users(subject, None, real, question) > 20
    assert grid([(subject, None)], question)[-1].fits


def _flag(flags: str, name: str) -> int:
    return int(flags.partition(f"{name} ")[2].split()[0])


def test_whatever_is_told_as_nearest_fits_and_is_the_nearest() -> None:
    made: dict[tuple[Precision, KVDtype], Subject] = {}

    def make(wanted: Precision, kv_dtype: KVDtype) -> Subject:
        key = wanted, kv_dtype
        return made.setdefault(key, shape_subject(0, wanted.name, kv_dtype))

    subject = make(precision("fp16"), KVDtype.BF16)
    traffic, users = fixed_traffic(8192), 4
    question = asked(16 * GIB, 8192, users=(users,))
    found = nearest(subject, traffic, users, question, make)
    flags = [each.flags for each in found]

    def fits(subject: Subject, context: int, users: int) -> bool:
        return memory_of(subject, fixed_traffic(context), users).total <= question.room

    fewer, context = _flag(flags[0], "--users"), _flag(flags[1], "--context")
    assert fits(subject, 8192, fewer)
    assert not fits(subject, 8192, fewer + 1)
    assert fits(subject, context, users)
    assert not fits(subject, context + 32, users)
    assert "--weights int8" in flags
    assert fits(make(precision("int8"), KVDtype.BF16), 8192, users)
    assert not any("--kv-dtype" in each for each in flags)  # halving the cache is not enough


def test_a_smaller_cache_is_told_where_it_is_enough() -> None:
    make: Callable[[Precision, KVDtype], Subject] = lambda wanted, kv_dtype: shape_subject(  # noqa: E731
        0, wanted.name, kv_dtype
    )
    subject = make(precision("int8"), KVDtype.FP32)
    traffic = fixed_traffic(32_768)
    found = nearest(subject, traffic, 2, asked(16 * GIB, 32_768, users=(2,)), make)
    assert "--kv-dtype int8" in [each.flags for each in found]


def test_nothing_is_told_where_nothing_would_help() -> None:
    subject = shape_subject(2, "int4")
    found = nearest(
        subject,
        fixed_traffic(1024),
        1,
        asked(2 * GIB, 1024, users=(1,)),
        lambda wanted, kv_dtype: shape_subject(2, wanted.name, kv_dtype),
    )
    assert found == []
