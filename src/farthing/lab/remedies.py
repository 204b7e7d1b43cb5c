"""What each calibration method repairs: beside plain rounding to the same format.

A method is justified where the model, computed as it is served, diverges less from the reference.
Two troubles are looked at: weights of four bits, and int8 activations under one scale for a whole
tensor, which the dimensions that stand out make coarse for all others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.forge.calibrate import calibration_with
from farthing.forge.patterns import Rule, matrices, short_name
from farthing.lab.projections import precision_warning
from farthing.lab.quality_copies import measure_copies, measured_text
from farthing.lab.quality_trial import Recipe
from farthing.lab.remedies_layers import layer_errors, layers_table
from farthing.lab.remedies_repairs import repairs_table
from farthing.lab.remedies_steps import STEPS
from farthing.quality.texts import calibration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.forge.calibrate import Calibration
    from farthing.lab.subject import Subject
    from farthing.lab.table import Skipped, Table
    from farthing.models.program import Program

_WEIGHTS = 11e6
"""About so many are quantised of a model, in layers far apart, as long as it has more."""

_TOKENS = 2048
_CALIBRATED = 2048
"""Tokens to calibrate with."""

_LAYER = re.compile(r"layers\.(\d+)\.")


def measure(subject: Subject) -> Iterator[Table | Skipped]:
    """As-served divergence with and without each method, and the error of products by layer."""
    calibration = _calibration(subject)
    chosen = chosen_layers(subject.model.program)
    others = all_but(subject.model.program, chosen)
    recipes = [Recipe(step.name, step.scheme, step.methods, others=others) for step in STEPS]
    looked_at = (chosen[0], chosen[-1]) if others else chosen
    errors = layer_errors(subject, looked_at, calibration)
    trial = measure_copies(subject, recipes, tokens=_TOKENS, calibration=calibration)
    warning = precision_warning(subject.model)
    notes = (*warning, *_where(subject.model.program, chosen))
    yield repairs_table(trial, errors, calibration, notes, on_a_grid=bool(warning))
    yield layers_table(errors, notes)
    yield from trial.skipped


def chosen_layers(program: Program) -> tuple[int, ...]:
    """The layers that are quantised: all of a small model, of a larger one some, far apart."""
    sizes: dict[int, int] = {}
    for name in matrices(program):
        found = _LAYER.match(name)
        if found is not None:
            number = int(found[1])
            sizes[number] = sizes.get(number, 0) + prod(program.weights[name].shape)
    layers = sorted(sizes)
    count = max(2, int(_WEIGHTS // max(sizes.values())))
    if count >= len(layers):
        return tuple(layers)
    last = len(layers) - 1
    return tuple(layers[round(at * last / (count - 1))] for at in range(count))


def all_but(program: Program, layers: tuple[int, ...]) -> tuple[Rule, ...]:
    """What keeps all other matrices in 16 bits; no rules where these layers are all."""
    found = {int(each[1]) for name in matrices(program) if (each := _LAYER.match(name))}
    rest = sorted(found - set(layers))
    if not rest:
        return ()
    outside = [short_name(name) for name in matrices(program) if not _LAYER.match(name)]
    patterns = dict.fromkeys((*outside, "head", f"layers.{','.join(map(str, rest))}"))
    return tuple(Rule(pattern, "F16") for pattern in patterns)


def _calibration(subject: Subject) -> Calibration:
    text = calibration_text()
    if measured_text(subject).sha256 == text.sha256:
        raise RequestError(
            f"--text is {text.name}, which remedies are calibrated with: give another text, since "
            "a model must not be measured on what it was calibrated with"
        )
    whole = calibration_with(text, subject.checkpoint)
    count = -(-_CALIBRATED // len(whole.windows[0]))
    return replace(whole, windows=whole.windows[:count])


def _where(program: Program, layers: tuple[int, ...]) -> tuple[str, ...]:
    if not all_but(program, layers):
        return ()
    listed = ", ".join(map(str, layers))
    note = (
        f"only layers {listed} are quantised, all other matrices being stored in 16 bits; single "
        "products are those of the first and the last of these"
    )
    return (note,)
