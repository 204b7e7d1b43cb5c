"""Intervals by block bootstrap: windows are drawn again, never the tokens in them.

Neighbouring tokens of a text are not independent, so an interval over tokens would be too narrow.
The windows of a text are few, and the percentile interval of few is too narrow as well; it is
expanded to the level at which, for normal data, it has the width of Student's interval (Hesterberg,
What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError
from farthing.files.receipt import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LEVEL = 0.95
DRAWS = 10_000
SEED = 1818


def estimate(
    windows: NDArray[np.float64],
    transform: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.asarray,
    *,
    per: NDArray[np.float64] | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Estimate:
    """The mean over `windows` (N,), one number each, and its interval.

    With `per` (N,), it is the sum of `windows` over the sum of `per`. `transform`, which must be
    monotone, takes means to what is reported: an exponential for a perplexity. Raises
    `RequestError` for fewer than two windows.
    """
    count = len(windows)
    if count < 2:
        raise RequestError(f"an interval needs at least 2 windows, not {count}: use a longer text")
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(count, np.full(count, 1 / count), draws)
    per = np.ones(count) if per is None else per
    means = transform(weights @ windows / (weights @ per))
    tail = _expanded_tail((1 - level) / 2, count)
    low, high = np.quantile(means, [tail, 1 - tail])
    value = float(transform(np.array(windows.sum() / per.sum())))
    # Where all windows are equal, sums of them in another order are not, quite.
    return Estimate(value, min(float(low), value), max(float(high), value))


def _expanded_tail(tail: float, count: int) -> float:
    """The quantile to take so that the interval has Student's width for `count` values."""
    widened = math.sqrt(count / (count - 1)) * student_quantile(tail, count - 1)
    return NormalDist().cdf(widened)


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution with a whole number of degrees of freedom."""
    low, high = -1.0, 1.0
    while student_cdf(low, degrees) > probability:
        low *= 2
    while student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_cdf(t: float, degrees: int) -> float:
    """Student's distribution function; Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if odd:
        central = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        central = math.sin(theta) * total
    return 0.5 + central / 2
