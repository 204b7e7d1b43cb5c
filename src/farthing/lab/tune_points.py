"""Which steps are measured before a choice: batches, contexts, chunks of prompts, and mixtures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.engine.cost import StepShape
from farthing.engine.kv import blocks_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = tuple[int, int]
    """Positions [first, end) of a sequence."""

MOST_USERS = 512
"""A step's tokens: each that decodes has one."""

CHUNKS = (32, 64, 128, 256, 512)
"""Tokens of prompts that may join a step; all of them are tried."""

_MEASURED_CHUNKS = (32, 128, 512)


@dataclass(frozen=True, order=True)
class Step:
    """`decoding` texts gain their token number `context`, and a prompt feeds `chunk` tokens from
    position `first` on.
    """

    decoding: int
    context: int
    first: int = 0
    chunk: int = 0

    @property
    def spans(self) -> list[Span]:
        """Of every sequence."""
        prompt = [(self.first, self.first + self.chunk)] if self.chunk else []
        return [(self.context - 1, self.context)] * self.decoding + prompt

    @property
    def shape(self) -> StepShape:
        """What the cost of a step is learned from."""
        positions = self.decoding * self.context
        shape = StepShape(self.decoding, self.decoding, positions, positions)
        return shape.joined(self.first, self.chunk, 1)

    @property
    def blocks(self) -> int:
        """Of cache that it reads."""
        return sum(blocks_for(end) for _, end in self.spans)

    @property
    def place(self) -> tuple[int, int, int] | None:
        """Where a profile has it; None for a mixture, which no profile has."""
        if self.decoding and self.chunk:
            return None
        return (1, self.first, self.chunk) if self.chunk else (self.decoding, self.context - 1, 1)

    @property
    def label(self) -> str:
        """For people."""
        parts = []
        if self.decoding:
            parts.append(f"batch {self.decoding} at {self.context:,}")
        if self.chunk:
            parts.append(f"chunk {self.chunk} at {self.first:,}")
        return " with ".join(parts)


@dataclass(frozen=True)
class Load:
    """`users` who each ask again as soon as they have an answer; `lengths` (prompt, answer) of
    requests, of which each is as likely as the other. Tokens.
    """

    users: int
    lengths: tuple[tuple[int, int], ...]

    @property
    def prompt(self) -> int:
        """The mean prompt."""
        return max(1, round(sum(prompt for prompt, _ in self.lengths) / len(self.lengths)))

    @property
    def answer(self) -> int:
        """The mean answer."""
        return max(1, round(sum(answer for _, answer in self.lengths) / len(self.lengths)))

    @property
    def longest(self) -> int:
        """The most tokens of prompt and answer together."""
        return max(prompt + answer for prompt, answer in self.lengths)

    @property
    def context(self) -> int:
        """Of a text halfway through its answer."""
        return self.prompt + -(-self.answer // 2)


def batches(users: int) -> tuple[int, ...]:
    """Powers of two up to the first that doubles `users`, and `users`: at most `MOST_USERS`."""
    powers = [1]
    while powers[-1] < 2 * users:
        powers.append(powers[-1] * 2)
    return tuple(sorted({min(each, MOST_USERS) for each in (*powers, users)}))


def choose_steps(load: Load, most_batch: int, step_tokens: int) -> tuple[Step, ...]:
    """What is measured for a load, the largest batch being `most_batch`."""
    context, longest, shortest = load.context, load.longest, min(load.context, BLOCK_TOKENS)
    sizes = [each for each in batches(load.users) if each <= most_batch] or [most_batch]
    steps = {Step(size, context) for size in sizes}
    middle, large = sizes[len(sizes) // 2], max(each for each in sizes if each <= load.users)
    steps |= {Step(size, each) for size in (1, middle) for each in (shortest, longest)}
    longest_prompt = max(prompt for prompt, _ in load.lengths)
    for chunk in _MEASURED_CHUNKS:
        chunk = min(chunk, longest_prompt, step_tokens)
        steps |= {Step(0, 0, 0, chunk), Step(0, 0, longest_prompt - chunk, chunk)}
        for size in {middle, large}:
            joined = min(chunk, step_tokens - size)
            if joined > 0:
                steps.add(Step(size, context, (longest_prompt - joined) // 2, joined))
    return tuple(sorted(steps))


def probes(steps: Sequence[Step], context: int) -> tuple[Step, ...]:
    """The few that tell a slow engine: the smallest and the largest batch, the longest chunk."""
    decoding = sorted(step for step in steps if not step.chunk and step.context == context)
    reading = max((step for step in steps if not step.decoding), key=lambda step: step.chunk)
    return tuple(sorted({decoding[0], decoding[-1], reading}))
