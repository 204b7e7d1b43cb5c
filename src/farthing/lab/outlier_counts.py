"""Dimensions that stand out, and the levels that INT8 leaves when one scale must reach them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOP = 4
"""Dimensions that are looked at and left out as the outliers."""

_LARGEST_CODE = 127


@dataclass(frozen=True)
class Standing:
    """Which dimensions of a value stand out. `peaks` is the largest magnitude of each, (width,)."""

    peaks: NDArray[np.float32]

    @staticmethod
    def of(values: NDArray[np.float32]) -> Standing:
        """Of (tokens, width)."""
        return Standing(np.abs(values).max(axis=0))

    @property
    def largest(self) -> float:
        """Of any dimension."""
        return float(self.peaks.max())

    @property
    def median(self) -> float:
        """Of all dimensions' largest magnitudes."""
        return float(np.median(self.peaks))

    @property
    def ratio(self) -> float:
        """The largest by the median."""
        return self.largest / self.median if self.median else 0.0

    @property
    def top(self) -> tuple[int, ...]:
        """The `TOP` dimensions that reach furthest, the furthest first."""
        order = np.argsort(-self.peaks, kind="stable")[:TOP]
        return tuple(int(each) for each in order)


@dataclass(frozen=True)
class Int8:
    """A value (tokens, width) in INT8: codes = round(value / scale), scale = largest / 127.

    `levels` are distinct codes used anywhere; `levels_per_dimension` the median over dimensions.
    `zero_share` is that of the values which become 0 and were not; `error` is relative, in norms.
    `scale` is the median where there are several.
    """

    scale: float
    levels: int
    levels_per_dimension: float
    zero_share: float
    error: float

    @staticmethod
    def of(values: NDArray[np.float32], axis: int | None = None) -> Int8:
        """One scale for all; axis 1: one for each token; axis 0: one for each dimension."""
        largest = np.abs(values).max(axis=axis, keepdims=True)
        scale = np.where(largest > 0, largest, 1).astype(np.float64) / _LARGEST_CODE
        codes = np.rint(values / scale).astype(np.int64)
        ordered = np.sort(codes, axis=0)
        used = 1 + np.count_nonzero(np.diff(ordered, axis=0), axis=0)
        lost = values - codes * scale
        norm = float(np.linalg.norm(values.astype(np.float64)))
        return Int8(
            float(np.median(scale)),
            len(np.unique(codes)),
            float(np.median(used)),
            float(np.mean((codes == 0) & (values != 0))),
            float(np.linalg.norm(lost)) / norm if norm else 0.0,
        )


def without_top(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without the `TOP` dimensions that reach furthest."""
    return np.delete(values, Standing.of(values).top, axis=1)


def histogram(peaks: NDArray[np.float32], bins_per_decade: int = 3) -> list[tuple[float, float]]:
    """Edges (from, to) of equal steps on a log axis that hold all positive peaks.

    The first begins at the largest edge that is not above the smallest peak.
    """
    positive = peaks[peaks > 0].astype(np.float64)
    if not positive.size:
        return []
    first = int(np.floor(np.log10(positive.min()) * bins_per_decade))
    last = int(np.floor(np.log10(positive.max()) * bins_per_decade)) + 1
    edges = [10 ** (each / bins_per_decade) for each in range(first, last + 1)]
    return list(itertools.pairwise(edges))
