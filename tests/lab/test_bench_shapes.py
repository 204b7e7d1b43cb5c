"""The knee and the slope, on curves whose shape is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farthing.core import ActivationMode
from farthing.lab.bench_points import Measured
from farthing.lab.bench_shapes import (
    GAIN,
    find_knee,
    gains,
    knee_index,
    knee_words,
    middle_gains,
    slowdowns,
)
from farthing.plan.cost import Cost

INT8 = ActivationMode.INT8
PEAK = {INT8: 1000.0}
READ = 100.0


def point(number: int, tokens: int, cost: Cost, seconds: float) -> Measured:
    return Measured(
        number,
        tokens,
        cost,
        (seconds,),
        (cost.memory_seconds(READ),),
        (cost.arithmetic_seconds(PEAK),),
    )


def batch(
    sequences: list[int],
    weights: int = 800,
    products: int = 1000,
    cache: int = 0,
    overlap: bool = True,
) -> list[Measured]:
    """Steps that take exactly as long as the ceilings say: the longer of the two, or their sum."""
    found = []
    for count in sequences:
        cost = Cost({INT8: products * count}, weights, cache * count)
        memory, arithmetic = cost.memory_seconds(READ), cost.arithmetic_seconds(PEAK)
        found.append(
            point(count, count, cost, max(memory, arithmetic) if overlap else memory + arithmetic)
        )
    return found


POWERS = [1, 2, 4, 8, 16, 32, 64]


def test_a_roofs_corner_is_the_knee_and_arithmetic_its_cause() -> None:
    # Reading the weights takes 8 seconds, the products of a sequence 1.
    knee = find_knee(batch(POWERS), READ, PEAK)
    assert knee is not None
    assert knee.sequences == 8
    assert knee.gain == pytest.approx(0.0)
    assert knee.cause == "arithmetic"
    assert knee.predicted == pytest.approx(8.0)


def test_a_round_corner_has_its_knee_where_doubling_stops_paying() -> None:
    found = batch(POWERS, overlap=False)
    rates = [each.tokens_per_second for each in found]
    knee = find_knee(found, READ, PEAK)
    assert knee is not None
    after = POWERS.index(knee.sequences or 0)
    assert rates[after + 1] / rates[after] - 1 == pytest.approx(knee.gain)
    assert knee.gain < GAIN <= rates[after] / rates[after - 1] - 1


def test_caches_that_take_longer_than_products_make_memory_the_cause() -> None:
    # 8 seconds for the weights and 4 for each cache: 4 sequences take 24, 8 take 40.
    knee = find_knee(batch(POWERS, products=1000, cache=400), READ, PEAK)
    assert knee is not None
    assert knee.sequences == 4
    assert knee.gain == pytest.approx(0.2)
    assert knee.cause == "memory"
    assert knee.predicted is None


def test_a_sweep_that_still_pays_has_no_knee() -> None:
    knee = find_knee(batch(POWERS, weights=1_000_000), READ, PEAK)
    assert knee is not None
    assert knee.sequences is None
    assert knee.gain == pytest.approx(1.0)
    assert knee.cause == "memory"
    assert knee.predicted == pytest.approx(10_000)


def in_rounds(step: Measured, noise: list[float]) -> Measured:
    """Slower by these shares, or faster where they are below 0."""
    seconds = tuple(
        step.seconds[0] * (1 + each) if each > 0 else step.seconds[0] / (1 - each) for each in noise
    )
    count = len(noise)
    return replace(
        step,
        seconds=seconds,
        memory_seconds=step.memory_seconds * count,
        arithmetic_seconds=step.arithmetic_seconds * count,
    )


def test_rounds_that_are_slow_as_a_whole_leave_the_knee_as_sure() -> None:
    knee = find_knee([in_rounds(each, [0.5, 0.0, -0.5]) for each in batch(POWERS)], READ, PEAK)
    assert knee is not None
    assert (knee.sequences, knee.within) == (8, (8, 8))


@pytest.mark.parametrize(
    ("noise", "within", "words"),
    [
        (0.01, (8, 8), "a batch of 8, because of arithmetic: the next doubling adds 0%"),
        (
            0.12,
            (8, None),
            "between a batch of 8 and more than 64: the measured intervals leave it open",
        ),
        (
            0.3,
            (1, None),
            "between a batch of 1 and more than 64: the measured intervals leave it open",
        ),
    ],
)
def test_a_knee_is_as_sure_as_the_rounds_are(
    noise: float, within: tuple[int | None, int | None], words: str
) -> None:
    """Of 3 rounds the medians are the same however noisy the others, and so would the knee be."""
    steps = [
        in_rounds(each, [noise, 0.0, -noise] if at % 2 else [-noise, 0.0, noise])
        for at, each in enumerate(batch(POWERS))
    ]
    knee = find_knee(steps, READ, PEAK)
    assert knee is not None
    assert knee.within == within
    assert (knee.sequences, knee.cause) == ((8, "arithmetic") if knee.known else (None, None))
    assert knee_words(knee, 64) == words


def test_one_point_has_no_shape() -> None:
    assert find_knee(batch([4]), READ, PEAK) is None
    assert find_knee([], READ, PEAK) is None


def test_the_missions_curve_has_its_knee_at_16() -> None:
    # 1 -> 16: throughput x6; 16 -> 32: +9 %.
    found = gains([1, 16, 32], [1.0, 6.0, 6.54])
    assert found == pytest.approx([6 ** (1 / 4) - 1, 0.09])
    assert knee_index(found) == 1


@pytest.mark.parametrize(
    ("rates", "index"),
    [
        ([1, 2, 4, 4.1, 4.2], 2),
        # A dip on the way is no knee as long as a later doubling pays.
        ([1, 1.1, 2.2, 2.3], 2),
        ([1, 1.1, 1.2, 1.1], 0),
        ([4, 3, 2, 1], 0),
        ([1, 2, 4, 8], None),
        ([1, 1, 1, 1 + GAIN], None),
    ],
)
def test_the_knee_is_the_first_point_from_which_no_doubling_pays(
    rates: list[float], index: int | None
) -> None:
    assert knee_index(gains([1, 2, 4, 8, 16][: len(rates)], rates)) == index


def test_points_far_apart_are_judged_by_the_doublings_between() -> None:
    assert gains([1, 8, 32], [1.0, 8.0, 8.0]) == pytest.approx([1.0, 0.0])
    assert gains([3, 5], [3.0, 5.0]) == pytest.approx([1.0])


def decode(contexts: list[int], token: int, fixed: float = 0.0) -> list[Measured]:
    found = []
    for context in contexts:
        cost = Cost({}, 1000, token * context)
        found.append(point(context, 1, cost, fixed + cost.memory_seconds(READ)))
    return found


def test_a_machine_bound_by_memory_slows_as_predicted() -> None:
    found = slowdowns(decode([16, 100, 1000], token=2))
    assert [each.context for each in found] == [16, 100, 1000]
    assert [each.predicted for each in found] == pytest.approx([0.032, 0.2, 2.0])
    assert [each.measured for each in found] == pytest.approx([0.032, 0.2, 2.0])


def test_time_that_does_not_depend_on_memory_flattens_the_slope() -> None:
    found = slowdowns(decode([0, 1000], token=2, fixed=10.0))
    assert found[1].predicted == pytest.approx(2.0)
    assert found[1].measured == pytest.approx(1.0)


def test_no_point_has_no_slope() -> None:
    assert slowdowns([]) == []


def test_what_a_doubling_adds_is_that_of_the_middle_round_not_of_the_middle_times() -> None:
    """A round in which the machine is slow is slow for both: their ratio tells more."""

    def timed(count: int, *seconds: float) -> Measured:
        cost = Cost({INT8: count}, 1, 0)
        return Measured(count, count, cost, seconds, (0.1,) * 3, (0.2,) * 3)

    batch = [timed(1, 1.0, 2.0, 4.0), timed(2, 1.1, 4.0, 4.4)]
    assert middle_gains(batch) == pytest.approx([2 / 1.1 - 1])
    knee = find_knee(batch, READ, PEAK)
    assert knee is not None
    assert knee.sequences is None
    assert knee.gain == pytest.approx(2 / 1.1 - 1)
