"""Predicted times: what they are made of, that a profile corrects them, and by how much."""

from __future__ import annotations

from math import hypot
from statistics import median
from typing import TYPE_CHECKING

import pytest

from farthing.core import ActivationMode, KVDtype
from farthing.plan.cost import decode_costs, prompt_costs, total
from farthing.plan.precision import AS_STORED, precision
from farthing.plan.profile import Ceilings, Profile, ProfileKey, ProfilePoint
from farthing.plan.shapes import EXAMPLES
from farthing.plan.speed import ARITHMETIC_SHARE, MEMORY_SHARE, Speed
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


def test_a_step_of_many_costs_what_the_program_says(subject: ModelSubject) -> None:
    program, plan = subject.model.program, subject.plan
    for context, users in ((1, 1), (100, 3), (4000, 17)):
        counted = total(decode_costs(program, plan, [context] * users))
        cost = subject.step(context - 1, 1, 1) + subject.joining(context) * (users - 1)
        assert (dict(cost.products), cost.weight_bytes, cost.cache_bytes) == (
            dict(counted.products),
            counted.weight_bytes,
            counted.cache_bytes,
        )


def test_seconds_are_the_ceilings_shares_of_both(subject: ModelSubject) -> None:
    cost = total(decode_costs(subject.model.program, subject.plan, [512] * 8))
    wanted = hypot(
        cost.memory_seconds(2e10) / MEMORY_SHARE,
        cost.arithmetic_seconds(RATES) / ARITHMETIC_SHARE,
    )
    assert Speed(subject, CEILINGS).decode_seconds(512, 8) == pytest.approx(wanted)


def test_a_prompt_is_as_long_as_its_steps(subject: ModelSubject) -> None:
    speed = Speed(subject, CEILINGS)
    parts = [
        total(prompt_costs(subject.model.program, subject.plan, 512)),
        subject.step(512, 88, 1),
    ]
    wanted = sum(map(speed.seconds_of, parts))
    assert speed.prompt_seconds(600) == pytest.approx(wanted, rel=1e-3)
    assert speed.prompt_seconds(88, first=512) == pytest.approx(speed.seconds_of(parts[1]))


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
    cost = subject.step(999, 1, 1)
    assert cost.products[ActivationMode.INT8] == 7_000_000_000
    assert cost.products[ActivationMode.BF16] == 2 * 32 * 32 * 128 * 1000
    assert (cost.weight_bytes, cost.cache_bytes) == (7_000_000_000, 131_072_000)
    assert subject.joining(1000).weight_bytes == 0
    speed = Speed(subject, CEILINGS)
    read = (7_000_000_000 + 131_072_000) / 2e10 / MEMORY_SHARE
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
