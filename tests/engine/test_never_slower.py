"""Guessing never loses more than it may, whatever steps cost and however good guesses are.

Against a scripted clock (`scripted_costs.py`), where the time without guesses is known exactly.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.driving import Guesser
from engine.scripted_costs import LONGEST, Scenario, curve_of, plain_seconds, run
from farthing.core import Request, SamplingParams
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.host_time import Decoded
from farthing.engine.sequence import Sequence
from farthing.engine.speculate import Speculation
from farthing.engine.verification import DraftCounts

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LOST = 1 / 0.985
"""Times the seconds without guesses."""

AT_FIRST = 6.0
"""Steps' seconds that may be lost besides, once: what it takes to learn from nothing."""


def drawn(seed: int, *, stepped: bool = True) -> Scenario:
    """A machine, texts and guesses as they may be: 1 to 64 texts, guesses from all wrong to all
    right that change on the way up to twice, costs that rise ever faster or in steps.
    """
    random = np.random.default_rng(seed)
    phases = int(random.integers(1, 4))
    counts = [int(2 ** random.uniform(0, 6.01)) for _ in range(phases)]
    if random.random() < 0.5:
        counts = counts[:1] * phases
    return Scenario(
        curve=curve_of(random, stepped),
        texts=tuple(counts),
        rates=tuple(float(random.choice([0, 1, *random.random(2)])) for _ in range(phases)),
        found=tuple(float(random.choice([1, random.random()])) for _ in range(phases)),
        steps=1500 // phases,
        attend=float(random.choice([0, random.uniform(0, 2e-4)])),
        looking=float(random.uniform(0, 0.004)),
        noise=float(random.choice([0, 0.03])),
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(20))
def test_with_guesses_it_takes_hardly_longer_than_without(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = drawn(seed)
    plain = plain_seconds(scenario, monkeypatch)
    longest = max(scenario.seconds(texts, 500 * texts) for texts in scenario.texts)
    outcome = run(scenario, monkeypatch)
    assert outcome.seconds <= plain * MOST_LOST + AT_FIRST * longest
    # What it says that it saved is what it saved.
    saved = outcome.counts.saved_seconds / plain
    assert saved == pytest.approx(1 - outcome.seconds / plain, abs=0.03)


@pytest.mark.parametrize("texts", [1, 3, 8, 32, 64])
def test_wrong_guesses_that_seem_cheap_cost_less_than_a_hundredth(
    texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long runs: what was lost at first does not count any more."""
    curve = tuple(1.0 + 0.01 * tokens for tokens in range(700))
    scenario = Scenario(curve, (texts,), (0.0,), (1.0,), 3000, looking=0.002)
    outcome = run(scenario, monkeypatch)
    assert outcome.seconds <= 1.006 * plain_seconds(scenario, monkeypatch)
    # A text that is alone is looked at for itself.
    assert outcome.looked <= (0.5 if texts == 1 else 0.2) * outcome.steps


@pytest.mark.parametrize("texts", [2, 16])
def test_guesses_that_turn_bad_and_good_and_bad_again_lose_nothing(
    texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = tuple(max(1.0, 0.7 + tokens * 0.3 / texts) for tokens in range(200))
    rates = (0.95, 0.0) * 3
    scenario = Scenario(curve, (texts,) * 6, rates, (1.0,) * 6, 300, looking=0.001)
    assert run(scenario, monkeypatch).seconds <= plain_seconds(scenario, monkeypatch)


@pytest.mark.parametrize(
    ("texts", "rate"), [(1, 0.6), (1, 0.9), (2, 0.6), (2, 1.0), (8, 0.6), (8, 0.9), (24, 0.95)]
)
def test_good_guesses_gain_most_of_what_the_best_length_would(
    texts: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = tuple(1.0 + 0.004 * tokens + 0.03 * max(0, tokens - 8) for tokens in range(300))
    scenario = Scenario(curve, (texts,), (rate,), (0.8,), 1500, looking=0.001, noise=0.02)
    plain = plain_seconds(scenario, monkeypatch)
    best = min(
        run(scenario, monkeypatch, lambda texts, length=length: length).seconds
        for length in (1, 2, 4, LONGEST)
    )
    assert plain / best > 1.05
    gained = plain / run(scenario, monkeypatch).seconds
    assert gained - 1 >= 0.6 * (plain / best - 1)


def test_a_machine_that_pauses_now_and_then_loses_no_good_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    curve = tuple(1.0 + 0.01 * tokens for tokens in range(40))
    steady = Scenario(curve, (1,), (0.8,), (0.8,), 2000)
    pausing = Scenario(curve, (1,), (0.8,), (0.8,), 2000, pauses=0.01)
    without = run(steady, monkeypatch)
    assert run(pausing, monkeypatch).looked > 0.8 * without.looked


class Wrong(Guesser):
    asked = 0

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        self.asked += 1
        return [7] * most


def asks_nothing_while_it_rests(texts: int) -> int:
    """How many functions are called to plan a step, then."""
    drafter, cost, counts = Wrong(), StepCost(), DraftCounts()
    speculation = Speculation(drafter)
    request = Request("r", (1,) * 100, SamplingParams())
    sequences = [Sequence(request, 10**6, frozenset()) for _ in range(texts)]

    def step() -> int:
        """One of hardly more than a second, in which no guess is right."""
        drafts = speculation.drafts(sequences, 600, cost)
        more = sum(len(draft.tokens) for draft in drafts.values())
        shape = StepShape(texts + more, texts + more, 100 * (texts + more), 100 * texts + more)
        seconds = 1 + 0.002 * (texts + more)
        cost.observe(shape, seconds)
        for sequence, draft in drafts.items():
            speculation.learn(sequence, len(draft.tokens), 0, draft.matched)
        decoded = Decoded(shape, texts, len(drafts), texts, seconds, 0.0, 0.0)
        if speculation.watches:
            speculation.account(decoded, cost, counts)
        else:
            speculation.pass_by(decoded.total, counts)
        return more

    states = speculation._balance._states
    while texts.bit_length() not in states or states[texts.bit_length()].rests < 50:
        step()
    asked = drafter.asked
    assert asked > 0
    blocks = sys.getallocatedblocks()
    assert sum(step() for _ in range(40)) == 0
    assert sys.getallocatedblocks() - blocks < 40
    calls = _calls(partial(speculation.drafts, sequences, 600, cost))
    assert drafter.asked == asked
    return calls


def test_while_it_rests_no_step_does_more_than_to_ask_whether_it_does() -> None:
    """No drafter is asked, no text is looked at, nothing is kept; with 2 texts as with 16."""
    assert asks_nothing_while_it_rests(2) == asks_nothing_while_it_rests(16) <= 5


class Silent(Guesser):
    """Finds something in the steps that are `lucky`."""

    asked = 0
    lucky = False

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        self.asked += 1
        return [7] * most if self.lucky else []


def test_while_nothing_is_found_it_is_looked_for_less_often_until_something_is() -> None:
    drafter, cost = Silent(), StepCost()
    cost.observe(StepShape(1, 1, 100, 100), 1.0)
    cost.observe(StepShape(3, 3, 300, 102), 1.01)
    speculation = Speculation(drafter)
    sequence = Sequence(Request("r", (1,) * 100, SamplingParams()), 10**6, frozenset())
    for _ in range(8):  # what plain steps take is known, and nothing rests
        speculation._balance.account(
            Decoded(StepShape(1, 1, 100, 100), 1, 0, 1, 1.0, 0.0, 0.0), 0.0, cost
        )

    def asked(steps: int) -> int:
        before = drafter.asked
        for _ in range(steps):
            speculation.drafts([sequence], 600, cost)
        return drafter.asked - before

    assert asked(8) == 8
    assert asked(48) == 24  # until 32 were in vain
    assert asked(40) == 10
    drafter.lucky = True
    found = 0
    while not found:
        found = len(speculation.drafts([sequence], 600, cost))
    drafter.lucky = False
    assert asked(8) == 8


def test_a_step_in_which_nobody_wants_guesses_is_neither_looked_at_nor_accounted_for() -> None:
    drafter, cost, counts = Silent(), StepCost(), DraftCounts()
    speculation = Speculation(drafter)
    no, yes = (
        Sequence(
            Request("r", (1,) * 100, SamplingParams(max_draft_tokens=most)), 10**6, frozenset()
        )
        for most in (0, None)
    )
    assert speculation.drafts([no, no], 600, cost) == {}
    assert (speculation.watches, drafter.asked) == (False, 0)
    speculation.pass_by(2.0, counts)
    assert (counts.seconds_without, counts.seconds_with) == (2.0, 0.0)
    speculation.drafts([no, yes], 600, cost)
    assert speculation.watches


def _calls(function: Callable[[], object]) -> int:
    """Python functions that it calls, itself included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
