"""How long a newcomer would wait, from what is accepted already and how fast the engine goes.

A text begins when it has a slot: then as many answers have ended as stand before it. When these end
follows from the tokens that they lack; those that follow them in their slots end the sooner at
first, the more their lengths differ (Cox, Renewal Theory, 1962, section 4.2), as the short ones
make room. The steps in which they are written take what the engine's
cost says of such steps, and the prompts before the newcomer's have to be read in them as well. What
this misses (Python between the steps, preemptions) is learned from how long others waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Protocol

import numpy as np

from farthing.serve.accepted import Load
from farthing.serve.learned import Average, Correction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.engine.charge import Pace
    from farthing.engine.completion import EngineStats
    from farthing.serve.accepted import Accepted
    from farthing.serve.demand import Demand
    from farthing.serve.promises import Line, Promise

_SPEED_SECONDS = 0.5
"""Over so long a time the speed is measured."""

_ROUNDS, _NEARLY, _LONGEST = 8, 0.02, 600.0
"""What comes during a wait makes it longer: so often that is gone through, until it changes by no
more than this part, and up to so many seconds."""

_TEACHING_TOKENS = 256
"""So many tokens of prompts show how much of them the cache has."""


class Machine(Protocol):
    """What is asked of an engine."""

    @property
    def slots(self) -> int:
        """How many texts run at once, at most."""

    @property
    def most_tokens(self) -> int:
        """The most that prompt and answer may have together."""

    def lately(self) -> EngineStats:
        """What it is doing, or was doing a moment ago: nobody may be kept waiting for it."""

    def pace(self, running: int, context: int) -> Pace:
        """How fast it goes with so many texts that have so many tokens in all."""


def steps_until_turn(
    remaining: Sequence[float], slots: int, ahead: float, length: float, variation: float = 0.0
) -> float:
    """In how many steps the next text gets a slot, behind `ahead` others that have not begun.

    `remaining` are the tokens that those lack which have begun, and of the others each is expected
    to have `length`, which varies by `variation` (as `Load.variation`). Found by halving: the
    number of slots that became free by a step grows with it.
    """
    free = slots - len(remaining)
    needed = ceil(ahead + 1 - free - 1e-9)
    if needed <= 0:
        return 0.0
    length = max(length, 1.0)
    ends = np.array([*remaining, *[length] * free])

    def freed(step: float) -> float:
        since = step - ends
        since = since[since >= 0]
        # In a slot that became free so many steps ago, texts of equal length have ended since.
        turns = np.floor(since / length) + 1
        # Where they vary, it is half the variation more in the long run; two thirds of that come
        # about within the mean rest of a text.
        rest = length * (1 + variation) / 2
        more = (variation - 1) * -np.expm1(-since / rest) - np.expm1(-2 * since / length)
        return float((turns + more / 2).sum())

    low, high = 0.0, float(ends.max()) + length * (needed // len(ends) + 1)
    while high - low > 0.5:
        middle = (low + high) / 2
        if freed(middle) >= needed:
            high = middle
        else:
            low = middle
    return high


def wait_seconds(
    pace: Pace, remaining: Sequence[float], slots: int, ahead: Load, computed_share: float
) -> float:
    """Until a newcomer behind `ahead` begins; `computed_share` of prompts is not in the cache."""
    steps = steps_until_turn(remaining, slots, ahead.answers, ahead.length, ahead.variation)
    prompts = ahead.prompt_tokens * computed_share
    # No more of prompts joins a step than keeps it within its latency target.
    steps = max(steps, prompts / pace.prompt_tokens)
    return steps * pace.step_seconds + prompts * pace.prompt_seconds


@dataclass(frozen=True)
class Forecast:
    """`wait` seconds, without correction, until a newcomer begins; `pace` by then."""

    wait: float
    pace: Pace


class Outlook:
    """Looks at the books, at who was told to come back (`lines`) and who newly comes (`demands`),
    and at the machine.
    """

    def __init__(
        self,
        machine: Machine,
        accepted: Accepted,
        lines: Mapping[tuple[int, str], Line],
        demands: Mapping[tuple[int, str], Demand],
        weights: Mapping[str, float],
        clock: Callable[[], float],
    ) -> None:
        self._machine = machine
        self._accepted = accepted
        self._lines = lines
        self._demands = demands
        self._weights = weights
        self._computed_share = Average(1.0)
        self._counted = (0, 0)
        self._clock = clock
        self._speed = Correction()
        self._seen: tuple[float, EngineStats] | None = None

    def forecast(self, place: tuple[int, str], promise: Promise | None = None) -> Forecast:
        """For a newcomer of that priority and key, or for who comes back to its own place."""
        lines = self._lines
        promised = {other: line.ahead_of(None) for other, line in lines.items() if other != place}
        if place in lines:
            promised[place] = lines[place].ahead_of(promise)
        return self._forecast(place, promised)

    def forecast_accepted(self, place: tuple[int, str]) -> Forecast:
        """As if nobody had been told to come back."""
        return self._forecast(place, {})

    def _forecast(
        self, place: tuple[int, str], promised: Mapping[tuple[int, str], Load]
    ) -> Forecast:
        stats = self._machine.lately()
        self._learn_sharing(stats)
        remaining: list[float] = []
        context = unread = 0.0
        parts = Load()
        for entry in self._accepted.begun:
            remaining += [entry.lacking] * entry.running
            share = entry.running / entry.load.answers
            context += entry.load.prompt_tokens * share + entry.made
            if share < 1:
                parts.add(entry.load, 1 - share)
            if not entry.made:
                unread += entry.load.prompt_tokens * share
        ahead = self._ahead(place, promised)
        known = ahead.tokens
        ahead.add(parts)
        full = stats.held_back > 0 and stats.running > 0
        slots = stats.running if full else self._machine.slots
        busy = max(1, min(slots, round(len(remaining) + ahead.answers)))
        joining = max(0, busy - len(remaining))
        if joining and ahead.answers:
            context += joining * (ahead.prompt_tokens + ahead.output_tokens / 2) / ahead.answers
        pace = self._machine.pace(busy, round(max(context, busy)))
        self._learn_speed(stats, pace, busy if full else 0)

        def wait(before: Load) -> float:
            before.prompt_tokens += unread
            steps = wait_seconds(pace, remaining, slots, before, self._computed_share.value)
            return steps * self._speed.factor

        seconds = wait(ahead)
        if known and seconds:
            coming = self._ahead(place, promised, self._longer(place, promised, known, seconds))
            if coming.tokens > known:
                coming.add(parts)
                seconds = wait(coming)
        return Forecast(seconds, pace)

    def _longer(
        self,
        place: tuple[int, str],
        promised: Mapping[tuple[int, str], Load],
        known: float,
        seconds: float,
    ) -> float:
        """How long the wait becomes with what comes during it, where it was `seconds` without.

        That lasts as long as what is ahead, of which `known` tokens are known: the longer the wait,
        the more comes, up to what fairness gives others.
        """
        longer = seconds
        for _ in range(_ROUNDS):
            before, longer = longer, seconds * self._ahead(place, promised, longer).tokens / known
            longer = min(longer, _LONGEST)
            if longer <= before * (1 + _NEARLY):
                break
        return longer

    def _ahead(
        self,
        place: tuple[int, str],
        promised: Mapping[tuple[int, str], Load],
        seconds: float = 0.0,
    ) -> Load:
        """All that goes first: higher priorities, the key's own, and what fairness gives others.

        While a key's own tokens are served, each other key of its priority gets as many for its
        weight, if it has so many, those included that newly come in so many `seconds`.
        """
        loads: dict[tuple[int, str], Load] = {place: Load()}
        for source in (self._accepted.waiting, promised):
            for other, load in source.items():
                loads.setdefault(other, Load()).add(load)
        priority, key = place
        ahead = loads.pop(place)
        served = ahead.tokens / self._weights.get(key, 1.0)
        if seconds:
            now = self._clock()
            for other, demand in self._demands.items():
                if other != place:
                    loads.setdefault(other, Load()).add(demand.during(seconds, now))
        for (level, other_key), load in loads.items():
            if level > priority:
                ahead.add(load)
            elif level == priority and load.tokens > 0:
                fair = served * self._weights.get(other_key, 1.0) / load.tokens
                ahead.add(load, min(1.0, fair))
        return ahead

    def _learn_speed(self, stats: EngineStats, pace: Pace, busy: int) -> None:
        """How long a second of steps takes, while there was work for `busy` texts all the time."""
        now = self._clock()
        if self._seen is not None and busy:
            since, before = self._seen
            if now - since < _SPEED_SECONDS:
                return
            made = stats.counters.generated_tokens - before.counters.generated_tokens
            read = stats.counters.prompt_tokens - before.counters.prompt_tokens
            read -= stats.counters.reused_tokens - before.counters.reused_tokens
            steps = made * pace.step_seconds / busy + read * pace.prompt_seconds
            self._speed.observe(steps, now - since)
        self._seen = (now, stats) if busy else None

    def _learn_sharing(self, stats: EngineStats) -> None:
        prompts, reused = stats.counters.prompt_tokens, stats.counters.reused_tokens
        if (read := prompts - self._counted[0]) >= _TEACHING_TOKENS:
            share = 1 - (reused - self._counted[1]) / read
            self._computed_share.take(min(max(share, 0.0), 1.0))
            self._counted = prompts, reused
