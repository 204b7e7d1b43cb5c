"""Trials made up by hand: what copies of a model would have been found to lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.files.receipt import Precision, TextFacts
from farthing.lab.quality_trial import Copy, Recipe, Trial
from farthing.quality import figures
from farthing.quality.battery import Answers
from farthing.quality.measure import Measured, Measurement
from farthing.quality.scoring import Scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WINDOWS, SCORED, QUESTIONS = 12, 20, 40
BITS = {"as stored": 16.0, "INT8_ROW": 8.1, "INT4_TENSOR": 4.06, "INT4_ROW": 4.06}

_NATURE = np.random.default_rng(11)
_HARD = _NATURE.normal(3.0, 0.5, (WINDOWS, 1)) + _NATURE.normal(0, 1, (WINDOWS, SCORED))
_LUCK = _NATURE.normal(0, 1, (WINDOWS, SCORED))


def answers(right: int, of: int = QUESTIONS) -> Answers:
    """The first so many right."""
    return Answers(("",) * of, tuple(number < right for number in range(of)))


def measurement(
    kl: float, nats: float = 0.0, noise: float = 0.01, right: int | None = None
) -> Measurement:
    """Of a copy that diverges by `kl` and has `nats` more of negative log-probability a token.

    Windows differ in how hard they are, and `noise` is what differs between tokens of both models.
    """
    nll = _HARD + nats + noise * _LUCK
    scores = Scores(nll, _HARD, kl * (1 + 0.1 * np.abs(_LUCK)), _LUCK > -2)
    estimate = figures.perplexity(nll)
    precision = Precision("bf16", "default", {}, "none", "none")

    def measured(bits: float, correct: int | None) -> Measured:
        given = None if correct is None else answers(correct)
        return Measured(
            name="m",
            bits_per_weight=bits,
            rounded=False,
            tensors="0" * 32,
            settings="0" * 32,
            precision=precision,
            perplexity=estimate,
            bits_per_byte=estimate,
            answers=given,
        )

    return Measurement(
        candidate=measured(4.0, right),
        reference=measured(16.0, None if right is None else 30),
        text=TextFacts("a text", "0" * 64, WINDOWS, 2 * SCORED + 2, WINDOWS * SCORED),
        scores=scores,
        perplexity_ratio=figures.perplexity_ratio(nll, _HARD),
        kl=figures.divergence(scores),
        probability_rms=figures.probability_rms(scores),
        agreement=figures.agreement(scores),
        battery=None,
        warnings=(),
        seconds=0.0,
    )


def trial(
    found: Mapping[str, Measurement],
    *,
    bits: Mapping[str, float] | None = None,
    penalised: Mapping[str, int] | None = None,
    exact: Sequence[str] = (),
) -> Trial:
    """Of copies by name; those in `exact` were computed with nothing rounded but weights."""
    copies = {}
    for name, each in found.items():
        recipe = Recipe(name, name, weights_only=name in exact)
        under = None if penalised is None else answers(penalised[name])
        size = (bits or BITS).get(name, 4.25)
        copies[name] = Copy(recipe, round(size * 1e6), size, "", each, under)
    return Trial(copies, (), 16_000_000, None if penalised is None else answers(29))
