"""What any step costs, from those that were measured, and what Python adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import dist, exp, log, log2
from typing import TYPE_CHECKING

from farthing.engine.cost import StepCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.engine.cost import StepShape, Windows

_PASSES = 32
"""Over all measurements, until what is learned from them no longer moves."""

_LOCALITY = 3
"""Neighbours count by distance to this power: a doubling of anything is a distance of 1."""

_Place = tuple[float, float, float]


@dataclass(frozen=True)
class Overhead:
    """Seconds of Python in a step: of the step itself, and of each row of it."""

    step: float = 0.0
    row: float = 0.0

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows."""
        return self.step + self.row * rows


def overhead_of(measured: Mapping[int, float]) -> Overhead:
    """Through the seconds of a step at the fewest and at the most rows; nothing is below 0."""
    few, many = min(measured), max(measured)
    row = 0.0 if few == many else max(0.0, (measured[many] - measured[few]) / (many - few))
    return Overhead(max(0.0, measured[few] - row * few), row)


class MeasuredCost:
    """Seconds of any step: what the engine's own `StepCost` learns from the measured ones.

    By how much that is wrong at each of them is drawn from the neighbours at any other (Shepard,
    over logarithms, as in `plan/speed.py`): so what was measured comes out as it was.
    """

    def __init__(
        self,
        measured: Mapping[StepShape, float],
        overhead: Overhead | None = None,
        windows: Windows = (),
    ) -> None:
        self._overhead = Overhead() if overhead is None else overhead
        self._learned = StepCost(windows)
        for _ in range(_PASSES):
            for shape, seconds in measured.items():
                self._learned.observe(shape, seconds)
        self._ratios = {
            _place(shape): log(seconds / self._learned.seconds(shape))
            for shape, seconds in measured.items()
        }

    def __call__(self, shape: StepShape) -> float:
        """Of one step, Python included."""
        ratio = exp(self._ratio(_place(shape)))
        return self._learned.seconds(shape) * ratio + self._overhead.seconds(shape.rows)

    @property
    def largest_correction(self) -> float:
        """By what share what was learned is off at most where it was measured."""
        return max(abs(exp(ratio) - 1) for ratio in self._ratios.values())

    def _ratio(self, place: _Place) -> float:
        total = weighted = 0.0
        for other, ratio in self._ratios.items():
            distance = dist(place, other)
            if distance < 1e-9:
                return ratio
            weight = distance**-_LOCALITY
            total += weight
            weighted += weight * ratio
        return weighted / total


def _place(shape: StepShape) -> _Place:
    return log2(shape.tokens), log2(max(1, shape.rows)), log2(shape.reads)
