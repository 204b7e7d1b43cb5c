"""The soak benchmark in short: thousands of steps at twice the rate that the engine can answer."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from engine.scripted import engine
from soak import Soak
from soak_report import MIB, Report, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 3000
LONGEST = 192


def random_text(seed: int) -> Callable[[int], tuple[int, ...]]:
    draw = random.Random(seed)
    return lambda tokens: tuple(draw.randrange(256) for _ in range(tokens))


def test_twice_the_load_for_thousands_of_steps_loses_nothing_and_keeps_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARTHING_CHECK", "1")
    with engine(total_blocks=8, context_length=LONGEST, max_step_rows=8) as served:
        report = asyncio.run(
            Soak(served, random_text(1), LONGEST).run(
                warm_up=100,
                clients=16,
                enough=lambda _: served.stats().steps >= STEPS,
                interval=0.05,
            )
        )
    assert report.complaints() == []
    assert report.steps >= STEPS
    assert report.ended["length"] > 100
    assert report.ended["cancelled"] > 10
    assert report.ended["timeout"] > 10


def good_report() -> Report:
    return Report(
        submitted=3,
        ended={"length": 2, "cancelled": 1},
        preemptions=1,
        left_over={"waiting": 0, "running": 0, "held blocks": 0},
        samples=[Sample(second, 100 * MIB, 0, 0) for second in range(100)],
    )


def test_a_soak_without_faults_is_not_complained_of() -> None:
    assert good_report().complaints() == []


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"lost": 1}, "1 answers never ended"),
        ({"repeated": 2}, "2 answers ended more than once"),
        ({"submitted": 4}, "4 answers were asked for, 3 ended"),
        ({"failures": ["no", "nor this"]}, "requests failed, the first with: no"),
        ({"left_over": {"held blocks": 1}}, "the engine is idle, and yet has {'held blocks': 1}"),
        ({"preemptions": 0}, "nothing was preempted: the cache was not too small"),
    ],
)
def test_each_fault_is_complained_of(fault: dict[str, object], complaint: str) -> None:
    report = good_report()
    for name, value in fault.items():
        setattr(report, name, value)
    assert report.complaints() == [complaint]


def test_memory_that_grows_with_time_is_not_flat_and_a_single_peak_is() -> None:
    leaking, peak = good_report(), good_report()
    leaking.samples = [Sample(t, 100 * MIB + t * MIB // 10, 0, 0) for t in range(100)]
    peak.samples[80] = Sample(80, 900 * MIB, 0, 0)
    assert leaking.complaints() == ["memory grew by 5.0 MiB"]
    assert peak.complaints() == []
