"""What steps should cost before any has run, by the stored profile of a model on this machine.

`StepCost` learns from steps. Before the first request there are none, and the first minute's are of
few kinds: so it begins with steps that the profile foretells, and what runs later counts as ever.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from farthing.backends.ceilings import tier_and_kernels
from farthing.engine.cost import StepCost, StepShape, windows_of
from farthing.engine.load import load
from farthing.plan.machine import processor
from farthing.plan.memory import plan_memory
from farthing.plan.precision import AS_STORED
from farthing.plan.profile import find_profile, profile_key
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from farthing.engine.cost import Windows
    from farthing.engine.engine import Engine
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

    StepTime = tuple[StepShape, float]

_CONTEXTS = (16, 64, 256, 1024, 4096, 16384)
_CHUNKS = (16, 64, 256, 512)
_PASSES = 16


class Foretold(NamedTuple):
    """Steps with their seconds, in an order to learn from; when the profile was measured, and the
    model's windows.
    """

    steps: tuple[StepTime, ...]
    measured: str
    windows: Windows = ()

    def cost(self) -> StepCost:
        """One that has learned from them, as a simulation wants it."""
        cost = StepCost(self.windows)
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
    windows = windows_of(model.program.cache)
    return Foretold(tuple(steps * _PASSES), profile.measured, windows), ""


def load_foretold(
    model: str | Path, *, planner: Callable[..., MemoryPlan] = plan_memory, **options: Any
) -> tuple[Engine, Foretold | None, str]:
    """An engine that has learned from its model's profile, as servers and commands load theirs.

    With the profile's steps, or None and why there is none, in words. `planner` and `options` are
    as those of `load`, whose errors it raises. What a draft model's steps take is learned, too.
    """
    chosen: list[tuple[Model, Model | None, MemoryPlan]] = []

    def noting(target: Model, **asked: Any) -> MemoryPlan:
        plan = planner(target, **asked)
        chosen.append((target, asked["draft"], plan))
        return plan

    engine = load(model, planner=noting, **options)
    ((target, draft, plan),) = chosen
    isa, kernels = tier_and_kernels()
    foretold, why = foretell(target, plan, isa=isa, kernels=kernels)
    guesses = None
    if draft is not None and plan.draft is not None:
        guesses, _ = foretell(draft, plan.draft, isa=isa, kernels=kernels)
    if foretold is not None or guesses is not None:
        engine.expect(
            () if foretold is None else foretold.steps, () if guesses is None else guesses.steps
        )
    return engine, foretold, why


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
