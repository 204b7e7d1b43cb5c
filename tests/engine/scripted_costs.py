"""Decoding against a clock that a script moves: what steps take and guesses are worth is known.

A step of the scripted machine takes what a curve says of its tokens, and a little more for what it
attends to. Each text's guesses are right with a probability that may change on the way. What comes
of that can be computed for no guesses at all and for any fixed length, and compared with what the
controller, which knows none of it, makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.driving import Guesser
from farthing.core import Request, SamplingParams
from farthing.engine import speculate
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.host_time import Decoded
from farthing.engine.sequence import Sequence
from farthing.engine.speculate import Speculation
from farthing.engine.verification import DraftCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LONGEST = 8
PROMPT, ENDS = 100, 500


@dataclass(frozen=True)
class Scenario:
    """`curve[n]` are the seconds of a step of n tokens, which a position attended to makes longer
    by `attend`; a step of `texts[k]` texts is one of phase k, in which guesses are right with
    probability `rates[k]` and found with `found[k]`. Each phase has `steps` plain steps' tokens.

    Looking for guesses takes `looking` for each text; times are off by `noise`, relatively, and one
    step in 1 / `pauses` is held up for as long as twenty. A text ends after `ENDS` tokens.
    """

    curve: tuple[float, ...]
    texts: tuple[int, ...]
    rates: tuple[float, ...]
    found: tuple[float, ...]
    steps: int
    attend: float = 0.0
    looking: float = 0.0
    noise: float = 0.0
    pauses: float = 0.0
    seed: int = 0

    def seconds(self, tokens: int, context: int) -> float:
        return self.curve[tokens] + self.attend * context


class _Machine:
    """The clock, the texts and the dice of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.now = 0.0
        self.scenario = scenario
        self.random = np.random.default_rng(scenario.seed)
        self.phase = 0
        self.looked = 0

    def clock(self) -> float:
        return self.now

    def right(self, length: int) -> int:
        """Of so many guesses, the first that are right."""
        dice = self.random.random(length) < self.scenario.rates[self.phase]
        return int(np.argmin(dice)) if not dice.all() else length


class _Finding(Guesser):
    def __init__(self, machine: _Machine) -> None:
        self.machine = machine

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        machine = self.machine
        machine.looked += 1
        machine.now += machine.scenario.looking
        found = machine.random.random() < machine.scenario.found[machine.phase]
        return [7] * most if found else []


@dataclass(frozen=True)
class Outcome:
    """`seconds` of all steps; those in which guesses were made or looked for, of all `steps`."""

    seconds: float
    looked: int
    steps: int
    counts: DraftCounts


def run(
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
    lengths: Callable[[int], int] | None = None,
) -> Outcome:
    """The scenario with the controller; with `lengths` every guess that is found is made, of as
    many tokens as that says for so many texts: 0 for a plain run.
    """
    machine = _Machine(scenario)
    monkeypatch.setattr(speculate, "perf_counter", machine.clock)
    drafter = _Finding(machine)
    speculation = Speculation(drafter, LONGEST)
    cost, counts = StepCost(), DraftCounts()
    steps = looked = 0
    total = 0.0
    for phase, texts in enumerate(scenario.texts):
        machine.phase = phase
        sequences = [_text(steps) for _ in range(texts)]
        wanted = scenario.steps * texts
        while wanted > 0:
            steps += 1
            before, asked = machine.now, machine.looked
            if lengths is None:
                drafts = {
                    sequence: len(draft.tokens)
                    for sequence, draft in speculation.drafts(sequences, 128, cost).items()
                }
            else:
                length = lengths(texts)
                guesses = [(each, drafter.guess(each, length)) for each in sequences if length]
                drafts = {sequence: len(guess) for sequence, guess in guesses if guess}
            looking = machine.now - before
            looked += machine.looked > asked
            tokens = texts + sum(drafts.values())
            context = sum(len(each.tokens) * (1 + drafts.get(each, 0)) for each in sequences)
            factor = 1 + scenario.noise * float(np.clip(machine.random.normal(), -3, 3))
            factor += 20 * (machine.random.random() < scenario.pauses)
            seconds = scenario.seconds(tokens, context) * factor
            reads = sum(len(each.tokens) for each in sequences) + tokens - texts
            shape = StepShape(tokens, tokens, context, reads)
            cost.observe(shape, seconds)
            gained = texts
            for sequence in sequences:
                right = 0
                if sequence in drafts:
                    right = machine.right(drafts[sequence])
                    tested = min(right + 1, drafts[sequence])
                    speculation.learn(sequence, tested, right)
                gained += right
                sequence.tokens.extend([5] * (1 + right))
            wanted -= gained
            machine.now += seconds
            total += machine.now - before
            decoded = Decoded(shape, texts, len(drafts), gained, seconds, 0.0, looking)
            if speculation.watches:
                speculation.account(decoded, cost, counts)
            else:
                speculation.pass_by(decoded.total, counts)
            for at, sequence in enumerate(sequences):
                if len(sequence.tokens) > ENDS:
                    speculation.forget(sequence)
                    sequences[at] = _text(steps)
    return Outcome(total, looked, steps, counts)


def curve_of(random: np.random.Generator, stepped: bool) -> tuple[float, ...]:
    """Seconds of a step by its tokens; that of no more than a few takes 1."""
    tokens = np.arange(64 * (LONGEST + 1) + 1, dtype=float)
    kind = random.integers(3 if stepped else 2)
    if kind == 0:
        free, dear = random.integers(1, 16), random.uniform(0.005, 0.3)
        curve = 1 + dear * np.maximum(0, tokens - free) + random.uniform(0, 0.05) * tokens
    elif kind == 1:
        power = random.uniform(1, 2)
        curve = 1 + random.uniform(0, 0.02) * tokens + (tokens / random.uniform(8, 40)) ** power
    else:
        tile = int(random.integers(2, 17))
        curve = 1 + random.uniform(0.02, 0.9) * np.maximum(0, np.ceil(tokens / tile) - 1)
    return tuple(curve.tolist())


def plain_seconds(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> float:
    return run(scenario, monkeypatch, lambda texts: 0).seconds


def _text(name: int) -> Sequence:
    request = Request(str(name), (1,) * PROMPT, SamplingParams())
    return Sequence(request, 10**6, frozenset())
