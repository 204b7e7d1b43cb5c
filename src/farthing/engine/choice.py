"""How many guesses each sequence of a step gets: as many as raise its expected tokens a second.

Guesses are added by falling probability, which each takes with that of those before it in its
draft. What a step with them takes is estimated: the backend's part, the passes of a drafter whose
guesses take time, and what the host does for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.engine.acceptance import LONGEST_REST
from farthing.engine.cost import StepShape

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from farthing.engine.acceptance import Record
    from farthing.engine.cost import StepCost
    from farthing.engine.drafter import CostlyDrafter, Draft
    from farthing.engine.host_time import HostTime
    from farthing.engine.sequence import Sequence

_TRIALS = 0.002
"""The part of the time of steps that is for trying what does not seem to pay."""

_MOST_TRIALS = 1.0
"""Seconds of it that are kept at most."""

_SHOWING = (3, 1, 3, 1)
"""Where it is not known what steps with guesses take, so many steps with so many guesses show it:
several, since one may have been held up by something else."""

_GOOD_RATE = 0.8
"""Where guesses would have to be right more often to pay, nobody looks for any: that costs, too."""

_CHECKED_EVERY = 32
"""Steps after which it is looked again whether good guesses would pay."""


@dataclass
class Candidate:
    """A sequence that may get up to `most` guesses, and gets `length`.

    `draft` is None as long as none was made.
    """

    sequence: Sequence
    record: Record
    most: int
    draft: Draft | None = None
    length: int = 0

    @property
    def known(self) -> int:
        """Its tokens."""
        return len(self.sequence.tokens)

    def gains(self, least: float = 0.0) -> list[float]:
        """The probability, for each guess, that it and those before it are right; of those where
        that is at least `least`.
        """
        matched = 0 if self.draft is None else self.draft.matched
        return self.record.acceptance.gains(self.most, matched, least)


class Chooser:
    """Chooses lengths, and keeps account of the time there is for trying.

    `costly` is the drafter where its guesses take time.
    """

    def __init__(self, costly: CostlyDrafter | None, host: HostTime) -> None:
        self._costly = costly
        self._host = host
        # Seconds for trying, and the steps whose share is not among them yet.
        self._trials = 0.0
        self._steps = 0
        self._shown = 0
        self._hopeless: dict[int, tuple[int, bool]] = {}

    def begin(self) -> None:
        """A step is planned."""
        self._steps += 1

    def hopeless(self, shape: StepShape, cost: StepCost) -> bool:
        """Whether even a good guess would cost more than it gains, as in a large batch."""
        left, answer = self._hopeless.get(shape.rows, (0, False))
        if left == 0:
            longer = cost.seconds(_longer(shape, 1, shape.context // shape.rows))
            answer = longer * shape.rows >= cost.seconds(shape) * (shape.rows + _GOOD_RATE)
            left = _CHECKED_EVERY
        self._hopeless[shape.rows] = left - 1, answer
        return answer

    def choose(
        self, candidates: ListOf[Candidate], shape: StepShape, spare: int, cost: StepCost
    ) -> None:
        """Sets the length of each candidate of a step that is `shape` without guesses.

        It can take `spare` tokens more.
        """
        plain = cost.seconds(shape)
        if plain <= 0:
            return
        self._trials = min(self._trials + _TRIALS * plain * self._steps, _MOST_TRIALS)
        self._steps = 0
        if self._shown < len(_SHOWING):
            if self._shown == 0 and self._knows(shape, cost):
                self._shown = len(_SHOWING)
            else:
                candidates[0].length = min(candidates[0].most, spare, _SHOWING[self._shown])
                self._shown += 1
                return
        saved = self._best(candidates, shape, spare, cost, plain)
        if self._costly is not None:
            for each in candidates:
                # Who is far behind is not caught up with for the few tokens that are left.
                seconds = self._costly.catch_up_seconds(self._costly.missing(each.sequence))
                if each.length and seconds > saved * (each.sequence.most_tokens - each.known):
                    each.length = 0
        left = spare - sum(each.length for each in candidates)
        for each in candidates:
            if each.length:
                each.record.pays()
            else:
                left -= self._try(each, shape, left, cost)

    def _knows(self, shape: StepShape, cost: StepCost) -> bool:
        """Whether it was seen what guesses cost: in the target's step, and in a drafter's."""
        drafter = self._costly is None or self._costly.cost.seen(1)
        return drafter and cost.seen(shape.tokens + 1)

    def _best(
        self,
        candidates: ListOf[Candidate],
        shape: StepShape,
        spare: int,
        cost: StepCost,
        plain: float,
    ) -> float:
        """Sets the lengths that pay; gives the seconds that they save a token."""
        # No guess costs less than the first token that is added.
        first = cost.seconds(_longer(shape, 1, candidates[0].known)) - plain
        least = 0.0 if self._costly is not None else first * shape.rows / plain
        gains = sorted(
            (
                (gain, at, place)
                for at, each in enumerate(candidates)
                for place, gain in enumerate(each.gains(least))
            ),
            key=lambda each: (-each[0], each[2], each[1]),
        )[:spare]
        passes = _Passes(self._costly)
        extra = self._host.extra(shape.rows)
        expected, best, taken = float(shape.rows), plain / shape.rows, 0
        # A costly guess is made in a pass with others', and the first of a pass pays for all.
        for count, (gain, at, place) in enumerate(gains, 1):
            expected += gain
            length = candidates[at].known
            passes.add(place, length)
            seconds = cost.seconds(_longer(shape, count, length)) + passes.seconds + extra
            if seconds < best * expected:
                best, taken = seconds / expected, count
            elif taken and self._costly is None:
                break  # costs rise ever faster with the tokens of a step, and gains fall
        for _, at, place in gains[:taken]:
            candidates[at].length = max(candidates[at].length, place + 1)
        return plain / shape.rows - best

    def _try(self, each: Candidate, shape: StepShape, spare: int, cost: StepCost) -> int:
        """Lets a sequence rest whose guesses do not pay, unless it is time to try one.

        Gives how many tokens are tried.
        """
        record = each.record
        rested = self._costly is None or record.rest == LONGEST_REST
        if rested and not record.trying and spare > 0:
            seconds = self._trial_seconds(each, shape, cost)
            if seconds <= self._trials:
                self._trials -= seconds
                record.trying = True
        if record.trying and spare > 0:
            each.length = 1
        # It may have to be caught up with first, over several steps.
        if self._costly is not None and not each.length:
            record.loses(each.known)
        return each.length

    def _trial_seconds(self, each: Candidate, shape: StepShape, cost: StepCost) -> float:
        """What one guess costs."""
        seconds = cost.seconds(_longer(shape, 1, each.known)) - cost.seconds(shape)
        seconds += self._host.extra(shape.rows)
        if self._costly is not None:
            seconds += self._costly.pass_seconds(1, each.known)
            seconds += self._costly.catch_up_seconds(self._costly.missing(each.sequence))
        return seconds


class _Passes:
    """What the passes of a costly drafter take: each makes one guess for several sequences."""

    def __init__(self, drafter: CostlyDrafter | None) -> None:
        self.seconds = 0.0
        self._drafter = drafter
        self._passes: list[tuple[int, int, float]] = []

    def add(self, place: int, length: int) -> None:
        """A sequence of so many tokens has a guess at this place, too."""
        if self._drafter is None:
            return
        if place == len(self._passes):
            self._passes.append((0, 0, 0.0))
        count, context, before = self._passes[place]
        count, context = count + 1, context + length
        seconds = self._drafter.pass_seconds(count, context)
        self._passes[place] = count, context, seconds
        self.seconds += seconds - before


def _longer(shape: StepShape, count: int, length: int) -> StepShape:
    """With `count` guesses more, each of which attends to about `length` positions."""
    return StepShape(
        shape.tokens + count,
        shape.rows + count,
        shape.context + count * length,
        shape.reads + count,
    )
