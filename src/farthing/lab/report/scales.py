"""Where a number stands on an axis, and which numbers are written beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_MOST_TICKS = 7
_ENDLESS = 1e100


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` at places from `start` to `end`; both are shown."""

    kind: Literal["linear", "log"]
    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Raises `ValueError` for what a logarithmic axis does not have."""
        low, high, at = self.low, self.high, value
        if self.kind == "log":
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def has(self, value: float) -> bool:
        """Whether the axis has a place for it."""
        return drawable(value, self.kind)

    def ticks(self, wanted: int = 5) -> list[float]:
        """About so many round numbers on the axis."""
        return _decades(self.low, self.high) if self.kind == "log" else self._even(wanted)

    def _even(self, wanted: int) -> list[float]:
        step = _round_step((self.high - self.low) / wanted)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def drawable(value: float, kind: Literal["linear", "log"]) -> bool:
    """Whether an axis of that kind has a place for it; it has none for what is next to
    infinite or next to nothing.
    """
    near_nothing = 0 < abs(value) < 1 / _ENDLESS
    return abs(value) < _ENDLESS and not near_nothing and (kind == "linear" or value > 0)


def scale_for(
    values: Iterable[float],
    kind: Literal["linear", "log"],
    start: float,
    end: float,
    *,
    zero: bool = False,
    exact: bool = False,
) -> Scale:
    """A scale that holds all `values` it can; `zero`: a linear one begins there at the latest.

    It begins and ends at round numbers, or, where `exact`, a little outside the values.
    """
    shown = [value for value in values if drawable(value, kind)]
    low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
    if kind == "log":
        if exact:
            margin = max((high / low) ** 0.04, 1.02)
            return Scale(kind, low / margin, high * margin, start, end)
        low, high = low / 1.02, high * 1.02
        if high / low < 1000:
            return Scale(kind, _below(low), _above(high), start, end)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return Scale(kind, 10.0**first, 10.0**last, start, end)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1 / _ENDLESS):
        room = 0.05 * size or 0.5
        low, high = low - room, high + room
    if exact:
        margin = 0.05 * (high - low)
        return Scale(kind, low - margin, high + margin, start, end)
    step = _round_step((high - low) / 5)
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Scale(kind, low, high, start, end)


def named(value: float) -> str:
    """A number beside an axis."""
    if value and not 1e-3 <= abs(value) < 1e6:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        digits = round(value / 10.0**power, 2)
        raised = f"10{str(power).translate(_RAISED)}"
        return raised if digits == 1 else f"{digits:g}·{raised}"
    return f"{value:,.10g}"


def thinned(values: Sequence[float], most: int = _MOST_TICKS) -> list[float]:
    """At most about so many of them, evenly."""
    step = -(-len(values) // most)
    return list(values[::step])


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    least, most = low / (1 + 1e-9), high * (1 + 1e-9)
    inside = [each for each in powers if least <= each <= most]
    if len(inside) >= 3:
        return thinned(inside)
    parts = [factor * each for each in powers for factor in (1, 2, 5)]
    return [each for each in parts if least <= each <= most]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)


def _below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value)


def _above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)
