"""What quantising costs: the same model in every format, measured beside itself.

Each copy is written as `farthing quantize` writes it and computed as `farthing serve` computes it.
All matrices have the format, the embedding too.
"""

from __future__ import annotations

from math import prod
from statistics import median
from typing import TYPE_CHECKING

from farthing.lab.matrix import Statistics
from farthing.lab.projections import precision_warning, projections
from farthing.lab.quality_activations import activations_table
from farthing.lab.quality_battery import battery_table, penalty_table
from farthing.lab.quality_copies import measure_copies
from farthing.lab.quality_pairs import pairs_table
from farthing.lab.quality_schemes import schemes_table
from farthing.lab.quality_trial import AS_STORED, Recipe, weights_only
from farthing.quality.battery import questions
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.lab.subject import Subject
    from farthing.lab.table import Skipped, Table

SCHEMES = (
    "INT8_ROW",
    "INT8_TENSOR",
    "Q8_0",
    "Q6_K",
    "Q5_K",
    "Q4_K",
    "Q4_0",
    "NF4_B64",
    "NF4_B128",
    "INT4_G32",
    "INT4_G64",
    "INT4_G128",
    "INT4_ROW",
    "INT4_TENSOR",
)

_ALSO_EXACT = ("INT8_ROW", "INT4_G128")
"""Told apart from their activations on every model; on a small one, all are."""

_SMALL_PARAMETERS = 20e6
_TOKENS = 2048
_MORE_TOKENS = 4096
"""Scored of a small model, for which they cost little."""


def measure(subject: Subject) -> Iterator[Table | Skipped]:
    """Every format beside the model itself, the battery, pairs of formats, and activations."""
    weights = subject.model.program.weights.values()
    small = sum(prod(weight.shape) for weight in weights) < _SMALL_PARAMETERS
    recipes = [Recipe(AS_STORED, None)]
    for scheme in SCHEMES:
        recipes.append(Recipe(scheme, scheme))
        if small or scheme in _ALSO_EXACT:
            recipes.append(Recipe(weights_only(scheme), scheme, weights_only=True))
    trial = measure_copies(
        subject, recipes, tokens=_MORE_TOKENS if small else _TOKENS, asked=questions()
    )
    notes = precision_warning(subject.model)
    yield schemes_table(trial, lambda: reach(subject), notes)
    yield pairs_table(trial, notes)
    yield activations_table(trial, notes)
    if trial.asked:
        yield battery_table(trial, notes)
        yield penalty_table(trial, notes)
    yield from trial.skipped


def reach(subject: Subject) -> float:
    """How many standard deviations out a matrix's largest weight lies, at the median matrix."""
    tensors = subject.model.tensors
    return median(
        Statistics.of(name, decode(tensors[name])).reach
        for name in projections(subject.model.program)
    )
