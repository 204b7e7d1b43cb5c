"""How long a model's steps take on a machine, before any has run.

A step reads bytes and multiplies. At the machine's measured ceilings reading takes m seconds and
arithmetic a; a step gets near to neither, and less near to each where both matter:

    seconds = sqrt((m / MEMORY_SHARE)^2 + (a / ARITHMETIC_SHARE)^2)

Where a profile of this model on this machine is stored, its points say by how much that is wrong,
and the ratio at any other point is drawn from theirs, the nearer ones counting the more (Shepard,
"A two-dimensional interpolation function for irregularly-spaced data", 1968; over logarithms).
"""

from __future__ import annotations

from math import dist, exp, hypot, log, log2
from typing import TYPE_CHECKING, Literal

from farthing.plan.cost import Cost

if TYPE_CHECKING:
    from farthing.plan.profile import Ceilings, Profile, ProfilePoint
    from farthing.plan.subject import Subject

    Place = tuple[float, float, float]

MEMORY_SHARE = 0.8
ARITHMETIC_SHARE = 0.55
"""Of the ceilings, at most reached: what steps of two models of other sizes and formats reached on
two AVX-512 cores, rounded. Another machine's differ; its profile says by how much."""

_LOCALITY = 3
"""Points count by distance to this power: a doubling of anything is a distance of 1."""

_MOST_STEPS = 64
_NOTHING = Cost()

Binding = Literal["bandwidth", "arithmetic"]


class Speed:
    """Predicts a subject's seconds; with a profile, `ceilings` are that profile's own."""

    def __init__(
        self, subject: Subject, ceilings: Ceilings, profile: Profile | None = None
    ) -> None:
        self._subject = subject
        self._ceilings = ceilings
        self.profile = profile
        self._ratios: list[tuple[Place, float]] = []
        if profile is not None:
            self._ratios = [
                (_place_of(point), log(point.seconds / self._foretold(point, profile.step_tokens)))
                for point in profile.points
                if point.tokens == 1 or point.sequences == 1
            ]

    @property
    def basis(self) -> str:
        """What the prediction rests on, for people."""
        if self.profile is None:
            return "the machine's ceilings"
        return f"the profile of {self.profile.measured}"

    def decode_seconds(self, context: int, users: int) -> float:
        """A step in which each of `users` texts gains its token number `context`."""
        ratio = self._ratio(_place(users, 1, context))
        return ratio * self.seconds_of(self._decode_cost(context, users))

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
        joined = self._subject.joining(context) * others
        count = self._subject.step_tokens
        if others and most_step_seconds is not None:
            while count > 32 and self._chunk(first, count, joined) > most_step_seconds:
                count //= 2
        seconds = self._prompt(first, tokens, count, joined)
        return self._ratio(_place(1, tokens, first + tokens)) * seconds

    def binding(self, context: int, users: int) -> Binding:
        """What a decode step waits for most."""
        memory, arithmetic = self._shares(self._decode_cost(context, users))
        return "bandwidth" if memory >= arithmetic else "arithmetic"

    def seconds_of(self, cost: Cost) -> float:
        """Of one step, by the ceilings alone."""
        return hypot(*self._shares(cost))

    def _foretold(self, point: ProfilePoint, step_tokens: int) -> float:
        """What the ceilings alone say of a measured point."""
        if point.tokens == 1:
            return self.seconds_of(self._decode_cost(point.first + 1, point.sequences))
        return self._prompt(point.first, point.tokens, step_tokens, _NOTHING)

    def _shares(self, cost: Cost) -> tuple[float, float]:
        return (
            cost.memory_seconds(self._ceilings.bytes_per_second) / MEMORY_SHARE,
            cost.arithmetic_seconds(self._ceilings.products_per_second) / ARITHMETIC_SHARE,
        )

    def _prompt(self, first: int, tokens: int, count: int, joined: Cost) -> float:
        """A prompt by the ceilings alone, in steps of `count` tokens.

        Of very many steps some, evenly spread, stand for the others: what a step takes grows
        evenly with its position.
        """
        starts = range(first, first + tokens, count)
        looked_at = starts[:: -(-len(starts) // _MOST_STEPS)]
        seconds = [
            self._chunk(start, min(count, first + tokens - start), joined) for start in looked_at
        ]
        return sum(seconds) * len(starts) / len(seconds)

    def _chunk(self, first: int, count: int, joined: Cost) -> float:
        return self.seconds_of(self._subject.step(first, count, 1) + joined)

    def _decode_cost(self, context: int, users: int) -> Cost:
        cost = self._subject.step(context - 1, 1, 1)
        return cost + self._subject.joining(context) * (users - 1) if users > 1 else cost

    def _ratio(self, place: Place) -> float:
        """By how much seconds exceed what the ceilings say, at such a step; 1 without a profile."""
        if not self._ratios:
            return 1.0
        total = weighted = 0.0
        for other, ratio in self._ratios:
            distance = dist(place, other)
            if distance < 1e-9:
                return exp(ratio)
            weight = distance**-_LOCALITY
            total += weight
            weighted += weight * ratio
        return exp(weighted / total)


def _place_of(point: ProfilePoint) -> Place:
    return _place(point.sequences, point.tokens, point.first + point.tokens)


def _place(sequences: int, tokens: int, context: int) -> Place:
    return log2(sequences), log2(tokens), log2(context)
