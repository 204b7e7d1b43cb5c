"""What a step takes by a law of six constants, and these from steps that were measured.

    seconds = hypot(reading * w, multiplying * p)      of what sees every token of the step
            + hypot(reading * w, multiplying * p)      of what sees the wanted rows alone: the head
            + attending * a + recalling * c
            + row * rows + step

w, p, a and c are seconds at the machine's ceilings: of reading weights and multiplying by them, of
attention's products, and of reading keys and values. A step gets near to no ceiling, and less near
to reading and multiplying each where both matter; attention follows upon the other stages.
"""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from farthing.plan.cost import Work
    from farthing.plan.profile import Ceilings

_TIE = 0.05
"""A constant that is e times its usual one weighs as much as a point that is wrong by so much."""

_OUTLYING = 2.0
"""A point further from the law than so many times the median weighs less than one."""

_LEAST_ERROR = 0.01
_ROUNDS, _DAMPING = 40, 1e-2


class Terms(NamedTuple):
    """What the law is made of: seconds at the ceilings, and rows. Sums over several steps, too."""

    weights: float
    products: float
    head_weights: float
    head_products: float
    attention: float
    cache: float
    rows: float


class Law(NamedTuple):
    """The constants: multiples of what the ceilings say, and for rows and steps seconds."""

    reading: float
    multiplying: float
    attending: float
    recalling: float
    row: float
    step: float

    def seconds(self, terms: Terms) -> float:
        """Of one step."""
        return (
            hypot(self.reading * terms.weights, self.multiplying * terms.products)
            + hypot(self.reading * terms.head_weights, self.multiplying * terms.head_products)
            + self.attending * terms.attention
            + self.recalling * terms.cache
            + self.row * terms.rows
            + self.step
        )


USUAL = Law(1.2, 1.65, 1.4, 1.05, 1.1e-6, 22e-6)
"""What steps of two models of other sizes and formats took on two AVX-512 cores, with caches of
several kinds, rounded. Another machine's differ; its profile says by how much."""


def terms_of(work: Work, ceilings: Ceilings) -> Terms:
    """A step's terms on a machine."""
    rates, read = ceilings.products_per_second, ceilings.bytes_per_second
    return Terms(
        work.tokens.memory_seconds(read),
        work.tokens.arithmetic_seconds(rates),
        work.rows.memory_seconds(read),
        work.rows.arithmetic_seconds(rates),
        work.attention.arithmetic_seconds(rates),
        work.attention.memory_seconds(read),
        work.wanted,
    )


def fitted(points: Sequence[tuple[Sequence[tuple[Terms, float]], float]]) -> Law:
    """The law that comes nearest to `points`: of each its steps, with how often each, and seconds.

    Least squares of the logarithms, by Gauss and Newton's method with Levenberg's damping; points
    that are far off weigh less (Huber's weights). What they do not tell stays in proportion to
    `USUAL`.
    """
    steps = np.array([(*terms, times) for parts, _ in points for terms, times in parts])
    starts = np.cumsum([0, *(len(parts) for parts, _ in points)])[:-1]
    measured = np.log([seconds for _, seconds in points])
    usual = np.log(USUAL)
    usual += np.median(measured - _log_seconds(usual, steps, starts))
    constants, damping = usual.copy(), _DAMPING
    errors, slopes = _errors(constants, usual, steps, starts, measured)
    weights = _weights(errors[: len(points)])
    for _ in range(_ROUNDS):
        weighted = slopes * weights[:, None]
        normal = weighted.T @ slopes + damping * np.eye(len(usual))
        moved = constants - np.linalg.solve(normal, weighted.T @ errors)
        new_errors, new_slopes = _errors(moved, usual, steps, starts, measured)
        if weights @ new_errors**2 < weights @ errors**2:
            constants, errors, slopes = moved, new_errors, new_slopes
            weights = _weights(errors[: len(points)])
            damping /= 2
        else:
            damping *= 4
    return Law(*np.exp(constants).tolist())


def _log_seconds(
    constants: NDArray[np.float64], steps: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Of every point; `constants` are logarithms, `steps` (S, terms and how often)."""
    reading, multiplying, attending, recalling, row, step = np.exp(constants)
    weights, products, head_weights, head_products, attention, cache, rows, times = steps.T
    seconds = (
        np.hypot(reading * weights, multiplying * products)
        + np.hypot(reading * head_weights, multiplying * head_products)
        + attending * attention
        + recalling * cache
        + row * rows
        + step
    )
    return np.log(np.add.reduceat(seconds * times, starts))


def _errors(
    constants: NDArray[np.float64],
    usual: NDArray[np.float64],
    steps: NDArray[np.float64],
    starts: NDArray[np.int64],
    measured: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each point, then of each constant that is tied; (P + C,), and their slopes (P + C, C)."""

    def errors(at: NDArray[np.float64]) -> NDArray[np.float64]:
        found = _log_seconds(at, steps, starts) - measured
        return np.concatenate([found, _TIE * (at - usual)])

    here, small = errors(constants), 1e-5
    moves = small * np.eye(len(constants))
    slopes = np.stack([(errors(constants + move) - here) / small for move in moves], axis=1)
    return here, slopes


def _weights(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Huber's, of the points; the ties weigh 1."""
    distances = np.abs(errors)
    usual = _OUTLYING * max(float(np.median(distances)), _LEAST_ERROR)
    ties = np.ones(len(USUAL))
    return np.concatenate([np.minimum(1.0, usual / np.maximum(distances, usual)), ties])
