"""What is found of a model's copies: the recipe of each, its measurement, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.lab.samples import Interval
from farthing.quality.intervals import LEVEL

if TYPE_CHECKING:
    from farthing.files.receipt import Estimate
    from farthing.forge.methods import Method
    from farthing.forge.patterns import Rule
    from farthing.lab.table import Skipped
    from farthing.quality.battery import Answers
    from farthing.quality.measure import Measured, Measurement

AS_STORED = "as stored"

SIGNIFICANT = 1 - LEVEL

PENALTY = 1.1
"""A repetition penalty as generation_config files ship them."""


@dataclass(frozen=True)
class Recipe:
    """A copy: all matrices in the format `scheme`, or as they are stored (None), by `methods`.

    `others` have other formats for the matrices that they match.
    It is computed as `serve` would, or, `weights_only`, with nothing rounded but its weights.
    """

    name: str
    scheme: str | None
    methods: tuple[Method, ...] = ()
    weights_only: bool = False
    others: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Copy:
    """What was found of one. `bytes` are those of all tensors, `bits_per_weight` of the matrices.

    `substitutes` are the formats that some matrices have instead, with how many have them.
    `penalised` are the battery's answers under a repetition penalty.
    """

    recipe: Recipe
    bytes: int
    bits_per_weight: float
    substitutes: str
    measurement: Measurement
    penalised: Answers | None


@dataclass(frozen=True)
class Trial:
    """All copies by name, and what was left out. `penalised` is of the reference."""

    copies: dict[str, Copy]
    skipped: tuple[Skipped, ...]
    reference_bytes: int
    penalised: Answers | None

    @property
    def reference(self) -> Measured:
        """The model itself."""
        return next(iter(self.copies.values())).measurement.reference

    @property
    def served(self) -> dict[str, Copy]:
        """The copies that were computed as `serve` computes them."""
        return {n: copy for n, copy in self.copies.items() if not copy.recipe.weights_only}

    @property
    def asked(self) -> bool:
        """Whether the copies answered a battery."""
        return all(copy.penalised is not None for copy in self.served.values())

    @property
    def measured_on(self) -> str:
        """The text and its windows, and what intervals are, for a note."""
        text = next(iter(self.copies.values())).measurement.text
        return (
            f"{text.scored_tokens:,} tokens of {text.name} scored, in {text.windows} windows of "
            f"{text.window_tokens}; {LEVEL:.0%} intervals by bootstrap over windows"
        )


def weights_only(name: str) -> str:
    """What a copy is called that is computed with nothing rounded but its weights."""
    return f"{name}, weights only"


def as_interval(estimate: Estimate, factor: float = 1.0) -> Interval:
    """For a table."""
    return Interval(factor * estimate.value, factor * estimate.low, factor * estimate.high)
