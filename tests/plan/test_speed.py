"""Predicted times: what they are made of, that a profile corrects them, and by how much."""

from __future__ import annotations

from math import exp, hypot
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farthing.core import ActivationMode, KVDtype
from farthing.plan.cost import Work, decode_costs, prompt_costs, step_work, total
from farthing.plan.law import USUAL, Law, terms_of
from farthing.plan.precision import AS_STORED, precision
from farthing.plan.profile import Ceilings, Profile, ProfileKey, ProfilePoint
from farthing.plan.shapes import EXAMPLES
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject, ShapeSubject
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

RATES = {ActivationMode.FP32: 5e10, ActivationMode.BF16: 1.3e11, ActivationMode.INT8: 2.4e11}
CEILINGS = Ceilings(2e10, RATES)
KEY = ProfileKey("A processor", "avx512", "k1", 2, "0123", "Q4_1 as Q4_1", "bf16", "default")


@pytest.fixture(scope="module")
def subject(smollm2_path: Path) -> ModelSubject:
    return ModelSubject(model_at(smollm2_path), AS_STORED, KVDtype.BF16, threads=2)


def work_of(subject: ModelSubject, context: int, users: int) -> Work:
    spans = [(context - 1, 1)] * users
    return step_work(subject.model.program, subject.plan, spans, users)


def test_a_step_of_many_costs_what_the_program_says(subject: ModelSubject) -> None:
    program, plan = subject.model.program, subject.plan
    for context, users in ((1, 1), (100, 3), (4000, 17)):
        counted = total(decode_costs(program, plan, [context] * users))
        work = subject.step(context - 1, 1, 1) + subject.joining(context) * (users - 1)
        cost = work.total
        assert (dict(cost.products), cost.weight_bytes, cost.cache_bytes) == (
            dict(counted.products),
            counted.weight_bytes,
            counted.cache_bytes,
        )
        assert work.wanted == users
        head = plan.weights[program.ops[-1].weights[0]].bytes
        assert head <= work.rows.weight_bytes < head + 2 * plan.weights["output_norm.weight"].bytes
        assert work.tokens.cache_bytes == work.rows.cache_bytes == work.attention.weight_bytes == 0


def test_seconds_are_the_laws_multiples_of_what_the_ceilings_say(subject: ModelSubject) -> None:
    """The formula, written out again from the stages' own costs."""
    work = work_of(subject, 512, 8)
    seconds = [
        hypot(
            USUAL.reading * part.weight_bytes / 2e10,
            USUAL.multiplying * sum(n / RATES[mode] for mode, n in part.products.items()),
        )
        for part in (work.tokens, work.rows)
    ]
    attention = work.attention.products[ActivationMode.BF16] / RATES[ActivationMode.BF16]
    cache = work.attention.cache_bytes / 2e10
    wanted = sum(seconds) + USUAL.attending * attention + USUAL.recalling * cache
    wanted += 8 * USUAL.row + USUAL.step
    assert Speed(subject, CEILINGS).decode_seconds(512, 8) == pytest.approx(wanted)


def test_attention_over_a_long_context_takes_its_time(subject: ModelSubject) -> None:
    """The bytes of weights are the same: by them alone, position 4,096 would cost what 64 costs."""
    speed = Speed(subject, CEILINGS)
    near, far = (speed.decode_seconds(context, 1) for context in (64, 4096))
    plan = subject.plan
    attended = plan.block_bytes / 32 * (4096 - 64) / 2e10
    assert far - near > attended


def test_a_prompt_is_as_long_as_its_steps(subject: ModelSubject) -> None:
    speed = Speed(subject, CEILINGS)
    steps = [subject.step(0, 512, 0), subject.step(512, 88, 1)]
    program, plan = subject.model.program, subject.plan
    counted = total(prompt_costs(program, plan, 600))
    assert (steps[0] + steps[1]).total.total_products == counted.total_products
    seconds = [USUAL.seconds(terms_of(step, CEILINGS)) for step in steps]
    assert speed.prompt_seconds(600) == pytest.approx(sum(seconds))
    assert speed.prompt_seconds(88, first=512) == pytest.approx(seconds[1])
    assert speed.chunk_seconds(512, 88) == pytest.approx(seconds[1])


def test_more_of_anything_takes_longer(subject: ModelSubject) -> None:
    speed = Speed(subject, CEILINGS)
    steps = [speed.decode_seconds(1000, users) for users in (1, 2, 8, 64, 500)]
    assert steps == sorted(steps)
    assert speed.decode_seconds(4000, 4) > speed.decode_seconds(40, 4)
    prompts = [speed.prompt_seconds(tokens) for tokens in (1, 64, 512, 513, 4096)]
    assert prompts == sorted(prompts)
    alone = speed.prompt_seconds(1000)
    crowded = speed.prompt_seconds(1000, others=20, context=1000)
    kept_short = speed.prompt_seconds(1000, others=20, context=1000, most_step_seconds=0.05)
    assert alone < crowded < kept_short


def test_few_wait_for_memory_and_many_for_arithmetic(subject: ModelSubject) -> None:
    speed = Speed(subject, CEILINGS)
    assert speed.binding(128, 1) == "bandwidth"
    assert speed.binding(128, 64) == "arithmetic"


def test_a_shape_costs_its_parameters_and_its_attention() -> None:
    shape = EXAMPLES[0]
    subject = ShapeSubject(shape, precision("int8"), KVDtype.BF16)
    cost = subject.step(999, 1, 1).total
    assert cost.products[ActivationMode.INT8] == 7_000_000_000
    assert cost.products[ActivationMode.BF16] == 2 * 32 * 32 * 128 * 1000
    assert (cost.weight_bytes, cost.cache_bytes) == (7_000_000_000, 131_072_000)
    assert subject.joining(1000).total.weight_bytes == 0
    speed = Speed(subject, CEILINGS)
    read = (7_000_000_000 * USUAL.reading + 131_072_000 * USUAL.recalling) / 2e10
    assert speed.decode_seconds(1000, 1) == pytest.approx(read, rel=0.02)


class Real:
    """A machine that differs from the ceilings as real ones do: overheads, and its own shares."""

    def __init__(self, subject: ModelSubject) -> None:
        self.subject = subject

    def decode(self, context: int, users: int) -> float:
        cost = total(decode_costs(self.subject.model.program, self.subject.plan, [context] * users))
        memory, arithmetic = cost.memory_seconds(2e10), cost.arithmetic_seconds(RATES)
        return 0.0006 + 0.00001 * users + memory / 0.6 + arithmetic / 0.7

    def prompt(self, tokens: int) -> float:
        cost = total(prompt_costs(self.subject.model.program, self.subject.plan, tokens))
        return 0.001 + cost.memory_seconds(2e10) / 0.6 + cost.arithmetic_seconds(RATES) / 0.45

    def profile(self) -> Profile:
        decode = [(users, 127) for users in (1, 2, 4, 8, 16, 32, 64)]
        decode += [(1, context - 1) for context in (16, 256, 1024, 4096)]
        decode += [(16, 1023), (64, 511)]
        points = [
            *((users, first, 1, self.decode(first + 1, users)) for users, first in decode),
            *((1, 0, tokens, self.prompt(tokens)) for tokens in (16, 64, 256, 1024, 4096)),
        ]
        return profile_of(points)


def profile_of(points: list[tuple[int, int, int, float]]) -> Profile:
    made = tuple(ProfilePoint(s, f, t, x, x, x) for s, f, t, x in points)
    return Profile(KEY, CEILINGS, 512, made, "2030-01-02")


def test_a_profiles_own_points_are_told_as_they_were_measured(subject: ModelSubject) -> None:
    real = Real(subject)
    speed = Speed(subject, CEILINGS, real.profile())
    assert speed.decode_seconds(128, 8) == pytest.approx(real.decode(128, 8))
    assert speed.prompt_seconds(256) == pytest.approx(real.prompt(256))
    assert "2030-01-02" in speed.basis
    assert Speed(subject, CEILINGS).basis == "the machine's ceilings"


def test_between_a_profiles_points_the_error_is_small_and_less_than_without(
    subject: ModelSubject,
) -> None:
    """On a machine whose law is another one."""
    real = Real(subject)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for known, found in errors.items():
        speed = Speed(subject, CEILINGS, real.profile() if known else None)
        for users in (1, 3, 6, 12, 24, 48):
            for context in (50, 200, 700, 3000):
                actual = real.decode(context, users)
                found.append(abs(speed.decode_seconds(context, users) / actual - 1))
        for tokens in (30, 100, 700, 2000):
            found.append(abs(speed.prompt_seconds(tokens) / real.prompt(tokens) - 1))
    assert median(errors[True]) < 0.05 < median(errors[False])
    assert max(errors[True]) < 0.25


PLACES = [(users, 127, 1) for users in (1, 2, 4, 8, 16, 32, 64)]
PLACES += [(users, context - 1, 1) for users in (1, 8) for context in (16, 256, 1024, 4096)]
PLACES += [(1, 0, tokens) for tokens in (16, 64, 256, 1024, 4096)]


def told_by(subject: ModelSubject, law: Law, place: tuple[int, int, int]) -> float:
    users, first, tokens = place
    if tokens == 1:
        return law.seconds(terms_of(work_of(subject, first + 1, users), CEILINGS))
    starts = range(first, first + tokens, 512)
    steps = [subject.step(at, min(512, tokens - at), int(at + 512 >= tokens)) for at in starts]
    return sum(law.seconds(terms_of(step, CEILINGS)) for step in steps)


@given(
    constants=st.tuples(*(st.floats(0.5, 2.0) for _ in USUAL)),
    noise=st.floats(0, 0.05),
    outlier=st.sampled_from([1.0, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_a_law_is_found_again_under_noise_and_with_an_outlier(
    subject: ModelSubject,
    constants: tuple[float, ...],
    noise: float,
    outlier: float,
    seed: int,
) -> None:
    law = Law(*(times * usual for times, usual in zip(constants, USUAL, strict=True)))
    random = Random(seed)
    points = [(*p, told_by(subject, law, p) * exp(random.gauss(0, noise))) for p in PLACES]
    place = random.randrange(len(points))
    points[place] = (*points[place][:3], points[place][3] * outlier)
    speed = Speed(subject, CEILINGS, profile_of(points))
    errors = []
    for users in (1, 3, 12, 48):
        for context in (100, 700, 3000):
            actual = told_by(subject, law, (users, context - 1, 1))
            errors.append(abs(told_by(subject, speed.law, (users, context - 1, 1)) / actual - 1))
    assert median(errors) < 0.03 + noise


def test_a_single_point_moves_all_that_is_told_in_proportion(subject: ModelSubject) -> None:
    """Of the other constants it says nothing."""
    plain = Speed(subject, CEILINGS)
    slow = [(8, 127, 1, 3 * plain.decode_seconds(128, 8))]
    speed = Speed(subject, CEILINGS, profile_of(slow))
    assert speed.decode_seconds(128, 8) == pytest.approx(slow[0][3])
    for ratio in (
        speed.decode_seconds(4000, 1) / plain.decode_seconds(4000, 1),
        speed.prompt_seconds(700) / plain.prompt_seconds(700),
    ):
        assert ratio == pytest.approx(3, rel=0.1)


def test_a_profile_without_a_point_that_can_be_foretold_is_no_correction(
    subject: ModelSubject,
) -> None:
    chunks_of_many = profile_of([(4, 0, 64, 1.0)])
    speed = Speed(subject, CEILINGS, chunks_of_many)
    assert speed.decode_seconds(128, 8) == Speed(subject, CEILINGS).decode_seconds(128, 8)
