"""What steps should cost before any has run, by the stored profile of a model on this machine.

`StepCost` learns from steps. Before the first request there are none, and the first minute's are of
few kinds: so it begins with steps that the profile foretells, and what runs later counts as ever.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from farthing.engine.cost import StepCost, StepShape
from farthing.plan.machine import processor
from farthing.plan.precision import AS_STORED
from farthing.plan.profile import find_profile, profile_key
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

    StepTime = tuple[StepShape, float]

_CONTEXTS = (16, 64, 256, 1024, 4096, 16384)
_CHUNKS = (16, 64, 256, 512)
_PASSES = 16


class Foretold(NamedTuple):
    """Steps with their seconds, in an order to learn from; and when the profile was measured."""

    steps: tuple[StepTime, ...]
    measured: str

    def cost(self) -> StepCost:
        """One that has learned from them, as a simulation wants it."""
        cost = StepCost()
        for shape, seconds in self.steps:
            cost.observe(shape, seconds)
        return cost


def foretell(
    model: Model, plan: MemoryPlan, *, isa: str, kernels: str
) -> tuple[Foretold | None, str]:
    """By the profile of `model` as `plan` runs it, or None; and why there is none, in words."""
    key = profile_key(model, plan, cpu=processor(), isa=isa, kernels=kernels)
    profile, why = find_profile(key)
    if profile is None:
        return None, why
    subject = ModelSubject(
        model, AS_STORED, plan.kv_dtype, activations=plan.activations, threads=plan.threads
    )
    speed = Speed(subject, profile.ceilings, profile)
    steps = [*_decoding(speed, plan), *_reading(speed, plan)]
    # Steps that are alike and follow one another would be learned from once.
    Random(0).shuffle(steps)
    return Foretold(tuple(steps * _PASSES), profile.measured), ""


def _decoding(speed: Speed, plan: MemoryPlan) -> Iterator[StepTime]:
    """Steps of texts that gain a token each, all that they have within the cache."""
    for users, context in product(_doublings(plan.slots), _CONTEXTS):
        positions = users * context
        if context <= plan.context_length and positions <= plan.cache_tokens:
            shape = StepShape(users, users, positions, positions)
            yield shape, speed.decode_seconds(context, users)


def _reading(speed: Speed, plan: MemoryPlan) -> Iterator[StepTime]:
    """Steps of a prompt's chunk, alone and beside others."""
    context = min(_CONTEXTS[2], plan.context_length)
    firsts = (0, *(first for first in _CONTEXTS[3:] if first < plan.context_length))
    beside = (0, *_doublings(plan.slots)[::3])
    for others, first, count in product(beside, firsts, _CHUNKS):
        if count <= min(plan.step_tokens - others, plan.context_length - first):
            positions = others * context
            shape = StepShape(others, others, positions, positions).joined(first, count, 1)
            yield shape, speed.chunk_seconds(first, count, others, context)


def _doublings(most: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(most.bit_length()))
