"""What guesses the next tokens of sequences: one interface, whatever is behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    import numpy as np
    from numpy.typing import NDArray

    from farthing.engine.cost import StepCost
    from farthing.engine.probe import Probe
    from farthing.engine.sequence import Sequence


@dataclass(frozen=True)
class Draft:
    """Guesses at a sequence's next tokens, in order; at least one.

    Where its text is constrained, `masks` has the tokens allowed after each of them. `chances` are
    the distributions that they were drawn from, each (vocabulary,) float64, empty where nothing was
    drawn: a guess that is looked up has probability 1. `matched` is the drafter's.
    """

    tokens: list[int]
    masks: list[NDArray[np.uint32]] = field(default_factory=list)
    chances: list[NDArray[np.float64]] = field(default_factory=list)
    matched: int = 0

    def cut(self, length: int) -> Draft:
        """Its first guesses."""
        if length >= len(self.tokens):
            return self
        masks, chances = self.masks[:length], self.chances[:length]
        return Draft(self.tokens[:length], masks, chances, self.matched)


class Drafter(Protocol):
    """What guesses, at no cost worth counting. Used by the engine's thread alone."""

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        """For each sequence up to so many tokens that may follow its known ones.

        None for no idea. `most` are at least 1.
        """

    def matched(self, sequence: Sequence) -> int:
        """How many of the last known tokens the guesses just proposed would have got right, as far
        as that is known: where they stood before, and these were found.
        """

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        """The distributions of the guesses just proposed, as `Draft` has them."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence runs no longer, or begins anew."""

    def close(self) -> None:
        """Gives back what it holds; it is used no more."""


class CostlyDrafter(Drafter, Protocol):
    """A Drafter whose guesses take time: how many are wanted is decided before they are made.

    `spent` are the seconds that it took so far; `cost` learns from its steps, and knows nothing
    before the first.
    """

    spent: float
    cost: StepCost

    def probe(self) -> Probe:
        """The steps that show what guesses take."""

    def pass_seconds(self, count: int, context: int) -> float:
        """What one more guess for `count` sequences takes, which have `context` tokens in all."""

    def missing(self, sequence: Sequence) -> int:
        """How many known tokens of the sequence it is to read before it can guess."""

    def catch_up_seconds(self, missing: int) -> float:
        """What reading so many takes."""
