"""Whether guessing pays as a whole, counted in seconds that were taken, all that it takes included.

What a guess costs is estimated before it is made, and estimates that seem good are too good more
often than too bad. So it is measured what came of them: each step in which guesses were made or
looked for, against what steps of as many texts take without any.

An allowance bounds what can be lost, whatever estimates say. Every step that decodes adds `SHARE`
of its seconds to it, and what guessing saved or lost is added, up to `_MOST` plain steps' seconds;
where it is used up, nothing is guessed before it is one plain step again. What was saved in all is
therefore at least -(_MOST plain steps + SHARE * all seconds + the loss of one step), and so

    seconds <= (seconds without guesses + _MOST plain steps + the loss of one step) / (1 - SHARE)

as far as plain steps' seconds are known, and but for pauses of the system. Within that, guessing
begins where the lower bound of what it saves is above a margin, and goes on until it saves nothing;
elsewhere it is tried, and rests for the longer the more a trial lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import TYPE_CHECKING

from farthing.engine.cost import StepShape

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from farthing.engine.cost import StepCost
    from farthing.engine.host_time import Decoded
    from farthing.engine.sequence import Sequence

SHARE = 0.005
"""The part of the time that may be lost by trying guesses."""

_MOST = 4.0
"""Plain steps' seconds that the allowance has at most, and at first."""

_TRIAL_SHARE = 0.0025
"""The part of the time of its rest that a trial may have lost."""

_MARGIN = 0.01
"""What guesses must be sure to save, as a part of the time, before they are made all the time."""

_DEVIATIONS = 1.64
"""Standard errors between a mean and its lower bound: 95 % of a normal distribution."""

_SHORTEST_TRIAL, _LONGEST_TRIAL = 64, 256
"""Steps of a trial: one that has saved nothing by then ends, one that is not sure to save."""

_SURE_FROM = 16
"""Steps that it takes to be sure of anything."""

_WORST = 1.0
"""A trial that has lost so many plain steps' seconds ends at once."""

_SHORTEST_REST, _LONGEST_REST = 64, 512
"""Steps without guesses after a trial that failed: twice as many after each, until one succeeds;
more where that lost much."""

_MEMORY = 128
"""About how many steps are remembered of what guesses saved."""

_PLAIN_MEMORY = 16
"""About how many plain steps are remembered of each number of texts."""

_ENOUGH = 4
"""So many of them it takes to compare with."""

_ALIKE = 5
"""Steps are compared where they attend to about as many positions: within one of so many equal
ratios of a factor of e, a fifth more or less."""

_OLD = 8192
"""Plain steps that were made so many steps ago say nothing of now."""

_ANEW = 4
"""After so many steps with guesses for each of them that is known, another plain step is made."""

_SELDOM = 8
"""One in so many is looked at where there is nothing to learn but whether all became slower."""

_OUTLYING = 3.0
"""A time counts as at most so many times what is usual: the system stops a thread now and then."""


@dataclass
class _Plain:
    """What steps of so many texts, at about as many positions, take without guesses: `seconds` at
    `context` positions, by `seen` steps, of which the last was number `number` of all; `since`
    steps with guesses after that.
    """

    seconds: float = 0.0
    context: float = 0.0
    seen: int = 0
    number: int = 0
    since: int = 0

    def knows(self, number: int) -> bool:
        """Whether step `number` can be compared, and so may have guesses."""
        if number - self.number > _OLD:
            self.seen = 0
        return self.seen >= _ENOUGH and self.since < _ANEW * min(self.seen, _PLAIN_MEMORY)

    def take_in(self, seconds: float, context: int, number: int) -> None:
        """A plain step took so long."""
        self.seen += 1
        if self.seen > 1:
            seconds = min(seconds, _OUTLYING * self.seconds)
        weight = 1 / min(self.seen, _PLAIN_MEMORY)
        self.seconds += weight * (seconds - self.seconds)
        self.context += weight * (context - self.context)
        self.number = number
        self.since = 0

    def at(self, texts: int, context: int, cost: StepCost) -> float:
        """Seconds at so many positions, at most: less where these are fewer, and never more."""
        if context >= self.context:
            return self.seconds
        fewer, known = (
            cost.seconds(StepShape(texts, texts, positions, positions))
            for positions in (context, int(self.context))
        )
        return self.seconds * fewer / known if known > 0 else self.seconds


@dataclass
class _Evidence:
    """What guessing saved a step, in plain steps' seconds; old steps weigh less."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def take_in(self, saved: float) -> None:
        self.fade(1 - 1 / _MEMORY)
        self.count += 1
        self.total += saved
        self.squares += saved * saved

    def fade(self, kept: float) -> None:
        self.count *= kept
        self.total *= kept
        self.squares *= kept

    @property
    def least(self) -> float:
        """The lower bound of the mean."""
        if self.count < _SURE_FROM:
            return -_WORST
        mean = self.total / self.count
        variance = max(0.0, self.squares / self.count - mean * mean)
        return mean - _DEVIATIONS * sqrt(variance / self.count)


@dataclass
class _State:
    """Of steps of about so many texts: in a trial of so many `steps` that `saved` so much so far,
    going on where that was `sure`, or resting.
    """

    evidence: _Evidence = field(default_factory=_Evidence)
    sure: bool = False
    steps: int = 0
    saved: float = 0.0
    rest: int = 0
    rests: int = 0

    def take_in(self, saved: float) -> None:
        """A step in which guesses were made or looked for saved so many plain steps' seconds."""
        self.evidence.take_in(saved)
        self.steps += 1
        self.saved += saved
        if self.sure:
            if self.steps >= _SHORTEST_TRIAL:
                self.sure = self.evidence.total > 0
                self.begin()
        elif self.evidence.least > _MARGIN:
            self.sure, self.rest = True, 0
            self.begin()
        elif (
            self.saved < -_WORST
            or self.steps >= _LONGEST_TRIAL
            or (self.steps >= _SHORTEST_TRIAL and self.saved <= 0)
        ):
            self.rest = min(max(2 * self.rest, _SHORTEST_REST), _LONGEST_REST)
            self.rests = max(self.rest, int(-self.saved / _TRIAL_SHARE))
            self.evidence.fade(0.5)
            self.begin()

    def begin(self) -> None:
        """Counts anew."""
        self.steps, self.saved = 0, 0.0


class Balance:
    """Measures what guessing saves, by how many texts a step has, and says when it is to rest."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, int], _Plain] = {}
        self._number = 0
        self._states: dict[int, _State] = {}
        # In seconds; None before the first plain step says how much it is.
        self._allowance: float | None = None
        self._used_up = False
        # Whether what the step takes that was asked about last is worth knowing, if no guesses are
        # looked for in it; and the seconds of those of which that was not.
        self.curious = True
        self._unseen = 0.0

    def allows(self, decoding: ListOf[Sequence]) -> bool:
        """Whether guesses may be looked for in this step of so many texts; asked once a step."""
        self.curious = self._number % _SELDOM == 0
        if self._used_up:
            return False
        texts = len(decoding)
        state = self._state(texts)
        if state.rests > 0:
            state.rests -= 1
            return False
        context = sum(len(sequence.tokens) for sequence in decoding)
        known = self._known(texts, context).knows(self._number)
        self.curious = self.curious or not known
        return known

    def begins(self, texts: int) -> None:
        """What so many texts showed need not hold: others have come in their place."""
        state = self._state(texts)
        state.rest = state.rests = 0

    def account(self, step: Decoded, looked: float, cost: StepCost) -> float:
        """Takes in a step, and gives the seconds that guesses saved in it.

        `looked` is how long they were looked for besides `step.guessing`, 0 where none were.
        """
        self._number += 1
        texts, shape = step.texts, step.shape
        context = shape.reads - (shape.tokens - texts)
        plain = self._known(texts, context)
        if step.drafts:
            plain.since += 1
            estimate = cost.seconds(StepShape(texts, texts, context, context))
            usual = plain.at(texts, context, cost) or estimate
            most = step.guessing + _OUTLYING * max(usual, cost.seconds(shape))
            saved = usual * step.gained / texts - min(step.total, most)
        else:
            saved = -(looked + step.guessing)
            plain.take_in(step.total + saved, context, self._number)
            usual = plain.seconds
        if usual <= 0:
            return saved
        if saved != 0:
            self._state(texts).take_in(saved / usual)
        self._allow(self._unseen + min(step.total, _OUTLYING * usual), saved, usual)
        self._unseen = 0.0
        return saved

    def pass_by(self, seconds: float) -> None:
        """Takes in a plain step that nobody is curious about."""
        self._number += 1
        self._unseen += seconds

    def _state(self, texts: int) -> _State:
        size = texts.bit_length()
        state = self._states.get(size)
        if state is None:
            state = self._states[size] = _State()
        return state

    def _known(self, texts: int, context: int) -> _Plain:
        key = texts, int(_ALIKE * log(max(context, 1)))
        plain = self._plain.get(key)
        if plain is None:
            plain = self._plain[key] = _Plain()
        return plain

    def _allow(self, seconds: float, saved: float, usual: float) -> None:
        most = _MOST * usual
        allowance = most if self._allowance is None else self._allowance
        self._allowance = allowance = min(allowance + SHARE * seconds + saved, most)
        self._used_up = allowance < usual if self._used_up else allowance <= 0
