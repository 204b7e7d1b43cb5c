"""How long a model's steps take on a machine, before any has run.

A step reads bytes and multiplies: what that takes at the machine's measured ceilings are the terms
of a law, whose constants are the usual ones (`law.py`). Where a profile of this model on this
machine is stored, they are fitted to its points. What they leave is a ratio at each point; at
another place it is drawn from the points' ratios, the nearer ones counting the more, and the law's
own counting as one (Shepard, "A two-dimensional interpolation function for irregularly-spaced
data", 1968; over logarithms).
"""

from __future__ import annotations

from functools import lru_cache
from math import dist, exp, log, log2
from typing import TYPE_CHECKING, Literal

from farthing.plan.law import USUAL, fitted, terms_of

if TYPE_CHECKING:
    from farthing.plan.cost import Work
    from farthing.plan.law import Law, Terms
    from farthing.plan.profile import Ceilings, Profile, ProfilePoint
    from farthing.plan.subject import Subject

    Place = tuple[float, float, float]

_LOCALITY = 3
"""Points count by distance to this power: a doubling of anything is a distance of 1, at which a
point and the law count the same."""

_MOST_STEPS = 64
_REMEMBERED = 4096

Binding = Literal["bandwidth", "arithmetic"]


class Speed:
    """Predicts a subject's seconds; with a profile, `ceilings` are that profile's own."""

    def __init__(
        self, subject: Subject, ceilings: Ceilings, profile: Profile | None = None
    ) -> None:
        self._subject = subject
        self._ceilings = ceilings
        self.profile = profile
        self._law = USUAL
        self._ratios: list[tuple[Place, float]] = []
        self._step = lru_cache(_REMEMBERED)(self._step_seconds)
        if profile is not None:
            # A subject's steps feed one text, or one token to each of many.
            points = [each for each in profile.points if 1 in (each.tokens, each.sequences)]
            self._fit(points, profile.step_tokens)

    @property
    def basis(self) -> str:
        """What the prediction rests on, for people."""
        if self.profile is None:
            return "the machine's ceilings"
        return f"the profile of {self.profile.measured}"

    @property
    def law(self) -> Law:
        """The constants."""
        return self._law

    def decode_seconds(self, context: int, users: int) -> float:
        """A step in which each of `users` texts gains its token number `context`."""
        ratio = self._ratio(_place(users, 1, context))
        return ratio * self._law.seconds(self._decode(context, users))

    def chunk_seconds(self, first: int, count: int, others: int = 0, context: int = 1) -> float:
        """A step that feeds one text `count` tokens from position `first` on, and wants its row.

        `others` write their token number `context` in it.
        """
        ratio = self._ratio(_place(1, count, first + count))
        return ratio * self._step(first, count, others, context)

    def prompt_seconds(
        self,
        tokens: int,
        *,
        first: int = 0,
        others: int = 0,
        context: int = 1,
        most_step_seconds: float | None = None,
    ) -> float:
        """From the first of `tokens` tokens, behind `first` that the cache has, to its answer.

        `others` write their token number `context` in each step meanwhile; then the prompt's share
        of a step is as large as keeps it within `most_step_seconds`, and one block at least.
        """
        count = self._subject.step_tokens
        if others and most_step_seconds is not None:
            while count > 32 and self._step(first, count, others, context) > most_step_seconds:
                count //= 2
        seconds = sum(
            times * self._step(start, length, others, context, wanted)
            for start, length, wanted, times in _chunks(first, tokens, count)
        )
        return self._ratio(_place(1, tokens, first + tokens)) * seconds

    def binding(self, context: int, users: int) -> Binding:
        """What a decode step waits for most."""
        terms = self._decode(context, users)
        memory = self._law.reading * (terms.weights + terms.head_weights)
        arithmetic = self._law.multiplying * (terms.products + terms.head_products)
        memory += self._law.recalling * terms.cache
        arithmetic += self._law.attending * terms.attention
        return "bandwidth" if memory >= arithmetic else "arithmetic"

    def _fit(self, points: list[ProfilePoint], step_tokens: int) -> None:
        """Finds the constants, and the ratios that they leave."""
        if not points:
            return
        self._law = fitted([(self._steps_of(p, step_tokens), p.seconds) for p in points])
        for point in points:
            steps = self._steps_of(point, step_tokens)
            expected = sum(times * self._law.seconds(terms) for terms, times in steps)
            place = _place(point.sequences, point.tokens, point.first + point.tokens)
            self._ratios.append((place, log(point.seconds / expected)))

    def _steps_of(self, point: ProfilePoint, step_tokens: int) -> list[tuple[Terms, float]]:
        """The steps of a measured point, and how often each."""
        if point.tokens == 1:
            return [(self._decode(point.first + 1, point.sequences), 1.0)]
        return [
            (self._terms(self._subject.step(start, count, wanted)), times)
            for start, count, wanted, times in _chunks(point.first, point.tokens, step_tokens)
        ]

    def _terms(self, work: Work) -> Terms:
        return terms_of(work, self._ceilings)

    def _decode(self, context: int, users: int) -> Terms:
        work = self._subject.step(context - 1, 1, 1)
        if users > 1:
            work += self._subject.joining(context) * (users - 1)
        return self._terms(work)

    def _step_seconds(
        self, first: int, count: int, others: int, context: int, wanted: int = 1
    ) -> float:
        """A step by the law alone; whoever joins it wants a row, so the head is read for them."""
        work = self._subject.step(first, count, 1 if others else wanted)
        if others:
            work += self._subject.joining(context) * others
        return self._law.seconds(self._terms(work))

    def _ratio(self, place: Place) -> float:
        """By how much seconds exceed what the law says, at such a step; 1 without a profile."""
        total, weighted = 1.0, 0.0
        for other, ratio in self._ratios:
            distance = dist(place, other)
            if distance < 1e-9:
                return exp(ratio)
            weight = distance**-_LOCALITY
            total += weight
            weighted += weight * ratio
        return exp(weighted / total)


def _place(sequences: int, tokens: int, context: int) -> Place:
    return log2(sequences), log2(tokens), log2(context)


def _chunks(first: int, tokens: int, count: int) -> list[tuple[int, int, int, float]]:
    """A prompt in steps of `count` tokens: where each starts, its length, the rows that it wants
    (the last alone wants one), and how many steps it stands for.

    Of very many steps some, evenly spread, stand for the others: what a step takes grows evenly
    with its position.
    """
    starts = range(first, first + tokens, count)
    looked_at = starts[:: -(-len(starts) // _MOST_STEPS)]
    times = len(starts) / len(looked_at)
    end = first + tokens
    return [
        (start, min(count, end - start), int(start + count >= end), times) for start in looked_at
    ]
