"""Promises before the first step has run: right where the cost of steps is foretold."""

from __future__ import annotations

import pytest

from farthing.engine.cost import StepShape
from farthing.serve.errors import ApiError
from serve.test_admission import ask
from serve.virtual import Client, Virtual, usual_cost


def admitted_at_once(machine: Virtual) -> int:
    """Of a hundred who come together, before any step, until one is refused."""
    for count in range(100):
        client = Client(machine.now, 20, 40)
        try:
            ticket = ask(machine, prompt_tokens=20, max_tokens=40)
        except ApiError:
            return count
        machine.accept(client, ticket)
    return 100


def foretold(machine: Virtual) -> None:
    """What `foretell` gives: steps of every size, several times."""
    shapes = [StepShape(n, n, n * at, n * at) for n in (1, 2, 4, 8) for at in (16, 128, 512)]
    shapes += [StepShape(0, 0, 0, 0).joined(0, tokens, 1) for tokens in (16, 64, 256)]
    for shape in shapes * 4:
        machine.scheduler.cost.observe(shape, usual_cost(shape))


def test_who_would_wait_too_long_is_refused_before_any_step_has_run() -> None:
    unknown, known, warm = Virtual(), Virtual(), Virtual()
    assert admitted_at_once(unknown) == 100  # nothing is known of its speed
    foretold(known)
    warm.warm_up()
    count = admitted_at_once(known)
    assert 8 < count < 100
    assert count == pytest.approx(admitted_at_once(warm), rel=0.2)
