"""Whose a step's seconds are, and how fast more would go: what admission and prices go by.

The seconds that a step took are shared out among the texts in it in proportion to what the part of
each would have cost alone. Nothing is lost or counted twice: all shares together are the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.engine.cost import StepShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.engine.cost import StepCost
    from farthing.engine.scheduler import Scheduler
    from farthing.engine.sequence import Sequence

_EMPTY = StepShape(0, 0, 0, 0)
_FAR = 1024
"""Positions between the two steps that show what a position costs; the cost is a line in them, but
for layers with windows."""


@dataclass(frozen=True)
class Pace:
    """How fast a full engine goes, by the steps that it ran; 0 where none did.

    A step in which every running text gains a token takes `step_seconds`, and `prompt_seconds` more
    for each token of prompts that joins it, of which there are at most `prompt_tokens`.
    """

    step_seconds: float
    prompt_seconds: float
    prompt_tokens: int


def charge(parts: Iterable[tuple[Sequence, int]], cost: StepCost, seconds: float) -> None:
    """Adds to each sequence's `machine_seconds` its share of a step that took `seconds`.

    `parts` are the sequences of the step, not yet moved forward, and how many tokens each fed.
    """
    parts = list(parts)
    if len(parts) == 1:
        parts[0][0].machine_seconds += seconds
        return
    near = cost.seconds(_EMPTY.joined(0, 1, 1))
    slope = (cost.seconds(_EMPTY.joined(_FAR, 1, 1)) - near) / _FAR
    alone = [
        near + slope * sequence.computed
        if count == 1
        else cost.seconds(_EMPTY.joined(sequence.computed, count, sequence.rows_of(count)))
        for sequence, count in parts
    ]
    total = sum(alone)
    if total > 0:
        for (sequence, _), share in zip(parts, alone, strict=True):
            sequence.machine_seconds += seconds * share / total


def pace_of(scheduler: Scheduler, running: int, context: int) -> Pace:
    """The pace with `running` texts whose prompts and answers have `context` tokens in all.

    Any thread may ask: the cost replaces what it knows in one assignment.
    """
    cost = scheduler.cost
    shape = StepShape(running, running, context, context)
    step = cost.seconds(shape)
    tokens = scheduler.limits.step_tokens - running
    target = scheduler.policy.latency_target
    if running and target is not None:
        tokens = min(tokens, max(cost.affordable(shape, 0, target), BLOCK_TOKENS))
    tokens = max(tokens, 1)
    return Pace(step, (cost.seconds(shape.joined(0, tokens, 1)) - step) / tokens, tokens)
