"""One weight matrix: how its weights are distributed, and what the few beyond six sigma do.

A scale must reach the largest weight. So one that stands far out sets the step for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import erf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError
from farthing.lab.projections import native_precision, projections
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject

FAR_SIGMAS = 6
SHOWN = 10
_BINS = (0, 1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Statistics:
    """Of one matrix's weights. `far` counts those beyond six standard deviations."""

    name: str
    shape: tuple[int, ...]
    mean_magnitude: float
    deviation: float
    largest: float
    far: int

    @staticmethod
    def of(name: str, weights: NDArray[np.float32]) -> Statistics:
        """Sums are taken in float64."""
        magnitudes = np.abs(weights)
        deviation = float(weights.std(dtype=np.float64))
        return Statistics(
            name,
            weights.shape,
            float(magnitudes.mean(dtype=np.float64)),
            deviation,
            float(magnitudes.max()),
            int(np.count_nonzero(magnitudes > FAR_SIGMAS * deviation)),
        )

    @property
    def weights(self) -> int:
        """How many there are."""
        return int(np.prod(self.shape))

    @property
    def reach(self) -> float:
        """The largest magnitude in standard deviations."""
        return self.largest / self.deviation if self.deviation else 0.0

    @property
    def far_share(self) -> float:
        """Of all weights, from 0 to 1."""
        return self.far / self.weights


def measure(subject: Subject) -> Iterator[Table]:
    """The most extreme matrices, and the distribution of one of them."""
    names = list(projections(subject.model.program))
    chosen = None if subject.matrix is None else find_name(subject.matrix, names)
    found = []
    for number, name in enumerate(names, 1):
        subject.progress.phase(f"matrix {number} of {len(names)}")
        found.append(Statistics.of(name, decode(subject.model.tensors[name])))
    found.sort(key=lambda each: -each.reach)
    yield extremes(found, native_precision(subject.model))
    name = found[0].name if chosen is None else chosen
    statistics = next(each for each in found if each.name == name)
    yield distribution(statistics, decode(subject.model.tensors[name]))


def find_name(asked: str, names: list[str]) -> str:
    """The weight that is called so, with or without `.weight`; raises `RequestError` for none."""
    for name in (asked, f"{asked}.weight"):
        if name in names:
            return name
    near = get_close_matches(asked, names, n=3, cutoff=0.3) or names[:3]
    raise RequestError(
        f"--matrix {asked!r:.80} is none of this model's {len(names)} projections: take one like "
        f"{', '.join(near)}"
    )


def extremes(found: list[Statistics], stored: str) -> Table:
    """The matrices whose largest weight stands out most; `found` is in falling order."""
    first = found[0]
    rows: tuple[Row, ...] = tuple(
        (
            each.name.removesuffix(".weight"),
            " x ".join(map(str, each.shape)),
            each.mean_magnitude,
            each.deviation,
            each.largest,
            each.reach,
            each.far,
            100 * each.far_share,
        )
        for each in found[:SHOWN]
    )
    return Table(
        "extremes",
        f"The {len(rows)} of {len(found)} matrices whose largest weight stands out most ({stored})",
        (
            Column("matrix"),
            Column("shape"),
            Column("mean magnitude", spec=".5f"),
            Column("standard deviation", spec=".5f"),
            Column("largest", spec=".5f"),
            Column("its distance", "standard deviations", ".1f"),
            Column("beyond six sigma"),
            Column("share beyond", "%", ".4f"),
        ),
        rows,
        f"In {first.name.removesuffix('.weight')} the largest weight is {first.reach:.1f} standard "
        f"deviations out, and {first.far:,} of {first.weights:,} lie beyond {FAR_SIGMAS} sigma "
        f"({first.far_share:.3%}).",
        Expectation(
            "some matrices have weights far beyond what a normal distribution would have",
            first.reach > FAR_SIGMAS,
        ),
    )


def distribution(statistics: Statistics, weights: NDArray[np.float32]) -> Table:
    """How many weights lie between one and the next number of standard deviations."""
    sigmas = np.abs(weights) / (statistics.deviation or 1.0)
    rows: list[Row] = []
    for low in _BINS:
        high = None if low == FAR_SIGMAS else low + 1
        inside = sigmas >= low if low else sigmas >= 0
        if high is not None:
            inside &= sigmas < high
        count = int(np.count_nonzero(inside))
        normal = _normal(low) - (0.0 if high is None else _normal(high))
        label = f"{low} to {high}" if high is not None else f"{low} and more"
        rows.append((label, count, 100 * count / statistics.weights, 100 * normal))
    beyond = statistics.weights * _normal(FAR_SIGMAS)
    return Table(
        "distribution",
        f"{statistics.name.removesuffix('.weight')}: weights by their distance from zero",
        (
            Column("standard deviations"),
            Column("weights"),
            Column("share", "%", ".5f"),
            Column("normal distribution", "%", ".5f"),
        ),
        tuple(rows),
        f"{statistics.far:,} of {statistics.weights:,} weights ({statistics.far_share:.3%}) lie "
        f"beyond {FAR_SIGMAS} sigma, where a normal distribution would have {beyond:.2g}: a scale "
        f"that reaches the largest makes the step of INT4 {statistics.reach / 7:.1f} standard "
        "deviations wide.",
        Expectation("more weights lie far out than normally", statistics.far > beyond),
        plots=(
            Plot("bars", "standard deviations", ("share", "normal distribution"), "names", "log"),
        ),
    )


def _normal(sigmas: float) -> float:
    """The share of a normal distribution that lies beyond so many standard deviations."""
    return 1 - erf(sigmas / sqrt(2))
