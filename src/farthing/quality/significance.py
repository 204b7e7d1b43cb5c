"""Whether a difference is one: paired tests, and Holm's correction for several at once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

EXACT_WINDOWS = 16
"""Up to so many windows all changes of sign are counted; beyond, a sample of them."""

_FLIPS = 1 << EXACT_WINDOWS
_SEED = 1818


def sign_flip_test(differences: NDArray[np.float64]) -> float:
    """The two-sided p-value that the differences (N,), one a window, have a mean of zero.

    If the two things compared did not differ, each difference would be as likely with the other
    sign: the share of all changes of sign that give a mean as large. Exact up to `EXACT_WINDOWS`;
    for more, of 65,536 changes drawn with a fixed seed, the one observed counted among them.
    """
    count = len(differences)
    if count <= EXACT_WINDOWS:
        bits = np.arange(1 << count)[:, None] >> np.arange(count) & 1
        drawn = 0
    else:
        bits = np.random.default_rng(_SEED).integers(0, 2, (_FLIPS, count), np.int8)
        drawn = 1
    totals = np.abs((1.0 - 2.0 * bits) @ differences)
    # Sums in another order differ in their last bits: equal ones must count as equal.
    observed = abs(float(differences.sum())) * (1 - 1e-12)
    return float((np.count_nonzero(totals >= observed) + drawn) / (len(totals) + drawn))


def mcnemar_test(lost: int, gained: int) -> float:
    """The two-sided p-value of McNemar's exact test, for answers that changed in two directions."""
    changed = lost + gained
    tail = sum(math.comb(changed, k) for k in range(min(lost, gained) + 1))
    # Whole numbers to the end: a float cannot hold 2 to the power of many changes.
    return min(1.0, float(Fraction(2 * tail, 2**changed)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for being several, in the order given: Holm (1979).

    What stays below a level is significant at that level, with the chance of one false claim among
    all of them bounded by it.
    """
    count = len(p_values)
    adjusted = [0.0] * count
    largest = 0.0
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
