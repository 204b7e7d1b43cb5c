"""Four times as much as can be served: everybody is served in time, or told when to come back."""

from __future__ import annotations

import random
from heapq import heapreplace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from farthing.engine.simulate import skewed_lengths
from farthing.serve.forecast import steps_until_turn
from farthing.serve.keys import Key
from serve.virtual import Client, Virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPACITY = 13.0
"""Requests a second that `Virtual` serves, of the lengths below, more or less."""

SECONDS = 15.0


def arriving(rate: float, machine: Virtual, seed: int, **fields: Any) -> list[Client]:
    """Clients at random moments, with prompts of 5 to 60 tokens and answers of 40 on average."""
    return list(_arriving(rate, machine, random.Random(seed), fields))


def _arriving(
    rate: float, machine: Virtual, draw: random.Random, fields: dict[str, Any]
) -> Iterator[Client]:
    at = machine.now
    end = at + SECONDS
    while (at := at + draw.expovariate(rate)) < end:
        output = max(1, min(200, int(draw.expovariate(1 / 40))))
        yield Client(at, draw.randint(5, 60), output, **fields)


def errors(machine: Virtual, clients: list[Client]) -> list[float]:
    """By how much of it the time was wrong that each client was told last.

    It would have been right to come so much later, or earlier, that the wait was the limit.
    """
    return [
        (client.queue_seconds - machine.most_wait) / client.told[-1][1]
        for client in clients
        if client.told and client.queue_seconds is not None
    ]


def rate(clients: list[Client], began: float) -> float:
    """Answers that ended in a second, while others came."""
    ends = [client.ended for client in clients if client.ended is not None]
    return sum(end <= began + SECONDS for end in ends) / SECONDS


def rate_without_a_limit(seed: int) -> float:
    """The same, where all are let in and wait without end."""
    machine = Virtual(most_wait=1e9)
    machine.warm_up()
    began = machine.now
    return rate(machine.run(arriving(4 * CAPACITY, machine, seed)), began)


def within(values: list[float], bound: float) -> float:
    """The part of them that is no further from 0."""
    return sum(abs(value) <= bound for value in values) / len(values)


@pytest.mark.parametrize("most_wait", [0.5, 2.0, 5.0])
def test_at_four_times_the_capacity_the_times_told_are_right(most_wait: float) -> None:
    machine = Virtual(most_wait=most_wait)
    machine.warm_up()
    began = machine.now
    clients = machine.run(arriving(4 * CAPACITY, machine, seed=1))
    machine.admission.check()
    # Nobody is lost: who was admitted has ended, and who did as it was told was admitted.
    assert all(client.ended is not None for client in clients)
    # Most need to come back once.
    assert sum(len(client.told) <= 2 for client in clients) >= 0.9 * len(clients)
    assert within(errors(machine, clients), 0.3) >= 0.9
    waits = [client.queue_seconds or 0.0 for client in clients]
    assert max(waits) <= 2 * most_wait
    assert sum(wait <= 1.3 * most_wait for wait in waits) >= 0.85 * len(waits)
    # And the machine did not run dry for it.
    assert rate(clients, began) >= 0.9 * rate_without_a_limit(seed=1)


def test_below_its_capacity_nobody_is_refused() -> None:
    machine = Virtual(most_wait=2.0)
    machine.warm_up()
    clients = machine.run(arriving(0.6 * CAPACITY, machine, seed=2))
    assert not any(client.told for client in clients)


def test_a_crowd_that_comes_at_one_moment_is_spread_out() -> None:
    machine = Virtual(most_wait=2.0)
    machine.warm_up()
    clients = machine.run([Client(machine.now, 20, 40) for _ in range(200)])
    assert all(len(client.told) <= 1 for client in clients)
    assert within(errors(machine, clients), 0.4) >= 0.9
    returns = sorted(at + seconds for client in clients for at, seconds in client.told)
    assert all(later - earlier < 1.5 for earlier, later in pairwise(returns))


def test_what_the_cost_of_steps_does_not_know_is_learned() -> None:
    machine = Virtual(most_wait=2.0, overhead=0.01)
    machine.warm_up()
    clients = machine.run(arriving(3 * CAPACITY, machine, seed=3))
    assert all(client.ended is not None for client in clients)
    assert within(errors(machine, clients[len(clients) // 4 :]), 0.3) >= 0.85


def test_answers_that_end_early_are_not_taken_for_long_ones() -> None:
    machine = Virtual(most_wait=2.0)
    machine.warm_up()
    clients = machine.run(arriving(3 * CAPACITY, machine, seed=4, max_tokens=500, patience=8))
    assert all(client.ended is not None for client in clients)
    # The first that end are the shortest: it takes some more to know.
    assert within(errors(machine, clients[len(clients) // 3 :]), 0.3) >= 0.85


def test_a_key_keeps_its_latency_while_another_floods() -> None:
    keys = [Key("flood"), Key("good")]
    alone = Virtual(keys, most_wait=2.0)
    alone.warm_up()
    quiet = alone.run(arriving(2.0, alone, seed=5, key="good"))
    machine = Virtual(keys, most_wait=2.0)
    machine.warm_up()
    flood = arriving(4 * CAPACITY, machine, seed=6, key="flood")
    good = arriving(2.0, machine, seed=5, key="good")
    machine.run([*flood, *good])
    assert any(client.told for client in flood)
    assert not any(client.told for client in good)
    # It waits for the next slot that becomes free, which is a few steps.
    assert median(client.steps_to_begin for client in quiet) == 0
    assert median(client.steps_to_begin for client in good) <= 10
    assert max(client.steps_to_begin for client in good) <= 40
    longest = max(client.steps_to_begin for client in good)
    assert median(client.steps_to_begin for client in flood if client.began) > longest


def test_beside_a_key_that_floods_the_times_told_count_on_what_it_will_take() -> None:
    machine = Virtual([Key("obeying"), Key("flood")], most_wait=2.0)
    machine.warm_up()
    # Nobody of the flood comes back: what it will take is in no line, and newly comes.
    flood = arriving(3 * CAPACITY, machine, seed=8, key="flood", patience=0)
    obey = arriving(CAPACITY, machine, seed=9, key="obeying")
    machine.run([*flood, *obey])
    assert all(client.ended is not None for client in obey)
    # The first are told parts of a second, of which less can be said.
    back = [client for client in obey[len(obey) // 4 :] if client.told]
    assert len(back) >= 20
    assert sum(len(client.told) == 1 for client in back) >= 0.9 * len(back)
    assert within(errors(machine, back), 0.3) >= 0.9


def test_clients_that_do_not_come_back_do_not_keep_others_out() -> None:
    machine = Virtual(most_wait=2.0)
    machine.warm_up()
    gone = arriving(4 * CAPACITY, machine, seed=7, patience=0)
    began = machine.now
    machine.run(gone)
    assert rate(gone, began) >= 0.9 * rate_without_a_limit(seed=7)


@pytest.mark.parametrize("slots", [8, 64])
@pytest.mark.parametrize("lengths", [(20,), (10, 30), skewed_lengths()], ids=len)
@pytest.mark.parametrize("rounds", [0.5, 2, 6])
def test_a_turn_comes_the_sooner_the_more_the_lengths_before_it_differ(
    slots: int, lengths: tuple[int, ...], rounds: float
) -> None:
    mean = sum(lengths) / len(lengths)
    variation = sum(each**2 for each in lengths) / len(lengths) / mean**2 - 1
    draw, ahead = random.Random(0), int(rounds * slots)
    simulated, foretold = [], []
    for _ in range(40):
        remaining = [draw.choice(lengths) * draw.random() for _ in range(slots)]
        foretold.append(steps_until_turn(remaining, slots, ahead, mean, variation))
        for _ in range(10):
            ends = sorted(remaining)
            for _ in range(ahead):
                heapreplace(ends, ends[0] + draw.choice(lengths))
            simulated.append(ends[0])
    error = sum(foretold) / len(foretold) - sum(simulated) / len(simulated)
    assert abs(error) <= 0.2 * mean  # by equal lengths it would be up to 0.75 too late


@pytest.mark.parametrize(
    ("remaining", "slots", "ahead", "steps"),
    [
        ([], 4, 0, 0),
        ([9, 9, 9], 4, 0, 0),
        ([9, 5, 7, 6], 4, 0, 5),
        ([9, 5, 7, 6], 4, 1, 6),
        ([9, 5, 7, 6], 4, 3, 9),
        ([9, 5, 7, 6], 4, 4, 15),  # the one that began at 5 has 10
        ([9, 5], 4, 2, 5),
        ([], 4, 4, 10),
        ([], 4, 8, 20),
        ([3], 1, 2, 23),
        ([4, 8, 20], 2, 0, 8),  # one was preempted, and goes first
    ],
)
def test_a_turn_comes_when_as_many_have_ended_as_stand_before(
    remaining: list[float], slots: int, ahead: int, steps: float
) -> None:
    assert steps_until_turn(remaining, slots, ahead, 10) == pytest.approx(steps, abs=0.6)
