"""Where the names of points stand: near, and on nothing else, with a thread to those further off.

Each name is placed in turn where it costs least beside what is there: markers, whiskers, other
names and their threads. Then each is placed again, a few times, now that all others are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.lab.report.frame import Field

# How far to either side, and how many steps up or down, a name is tried.
_AWAY = (7.0, 26.0, 48.0, 74.0, 104.0)
_RINGS, _RING = 24, 6.5
_SWEEPS = 4
_THREADED = 14.0
"""From so far on a name has a thread."""

_MARKER = 5.0

# What it costs to lie on another thing, by its area, and to cross it.
_MET, _CROSSED = 20.0, 120.0


class Box(NamedTuple):
    """A rectangle, y growing downwards."""

    left: float
    top: float
    right: float
    bottom: float


class Line(NamedTuple):
    """From one point to another."""

    x: float
    y: float
    end_x: float
    end_y: float


@dataclass(frozen=True)
class Placed:
    """Where a name stands, and the thread to its point, if there is one."""

    box: Box
    thread: Line | None


class Named(NamedTuple):
    """A point at (x, y) and the width of its name; its whisker goes from `top` to `bottom`."""

    x: float
    y: float
    wide: float
    top: float
    bottom: float


def place(points: Sequence[Named], high: float, field: Field, most: float) -> list[Placed]:
    """A place for each name, `high` and within the field; to the right it may go up to `most`."""
    marks = [_marks(point) for point in points]
    order = sorted(range(len(points)), key=lambda at: points[at].y)
    placed: dict[int, Placed] = {}
    for _ in range(_SWEEPS):
        before = dict(placed)
        for at in order:
            others = [each for other, each in placed.items() if other != at]
            boxes = [each.box for each in others]
            own = marks[at]
            foreign = [box for other, each in enumerate(marks) if other != at for box in each]
            threads = [each.thread for each in others if each.thread is not None]
            placed[at] = _best(points[at], own, [*boxes, *foreign], threads, high, field, most)
        if placed == before:
            break
    return [placed[at] for at in range(len(points))]


def _best(
    point: Named,
    own: Sequence[Box],
    boxes: Sequence[Box],
    threads: Sequence[Line],
    high: float,
    field: Field,
    most: float,
) -> Placed:
    best: tuple[float, Placed] | None = None
    for cost, box in _candidates(point, high, field, most):
        if best is not None and cost >= best[0]:
            break
        found = Placed(box, _thread(point, box))
        cost += _MET * sum(_overlap(box, each) for each in (*boxes, *own))
        cost += _CROSSED * sum(_crosses(each, box) for each in threads)
        if found.thread is not None:
            cost += _CROSSED * sum(_crosses(found.thread, each) for each in boxes)
            cost += _CROSSED * sum(_cross(found.thread, each) for each in threads)
        if best is None or cost < best[0]:
            best = cost, found
    if best is not None:
        return best[1]
    beside = point.x + _AWAY[0]
    box = Box(beside, point.y - high / 2, beside + point.wide, point.y + high / 2)
    return Placed(box, None)


def _candidates(
    point: Named, high: float, field: Field, most: float
) -> Iterator[tuple[float, Box]]:
    """Places by what their distance costs, the nearest first."""
    found = []
    for away in _AWAY:
        for left in (point.x + away, point.x - away - point.wide):
            if left < field.left or left + point.wide > most:
                continue
            for ring in range(-_RINGS, _RINGS + 1):
                middle = point.y + ring * _RING
                if field.top <= middle <= field.bottom - 6:
                    cost = abs(ring) * _RING + away + (4 if left < point.x else 0)
                    top = middle - high / 2
                    found.append((cost, Box(left, top, left + point.wide, top + high)))
    return iter(sorted(found))


def _thread(point: Named, box: Box) -> Line | None:
    near_x = min(max(point.x, box.left), box.right)
    near_y = (box.top + box.bottom) / 2
    if abs(near_x - point.x) + abs(near_y - point.y) <= _THREADED:
        return None
    return Line(point.x, point.y, near_x, near_y)


def _marks(point: Named) -> list[Box]:
    """What a point takes itself: its marker and its whisker."""
    marker = Box(point.x - _MARKER, point.y - _MARKER, point.x + _MARKER, point.y + _MARKER)
    return [marker, Box(point.x - 2, point.top, point.x + 2, point.bottom)]


def _overlap(one: Box, other: Box) -> float:
    wide = min(one.right, other.right) - max(one.left, other.left)
    high = min(one.bottom, other.bottom) - max(one.top, other.top)
    return wide * high if wide > 0 and high > 0 else 0.0


def _crosses(line: Line, box: Box) -> bool:
    """Whether some of the line is in the box (Liang and Barsky 1984)."""
    first, last = 0.0, 1.0
    for start, way, low, high in (
        (line.x, line.end_x - line.x, box.left, box.right),
        (line.y, line.end_y - line.y, box.top, box.bottom),
    ):
        if way == 0:
            if not low < start < high:
                return False
            continue
        enters, leaves = sorted(((low - start) / way, (high - start) / way))
        first, last = max(first, enters), min(last, leaves)
    return first < last


def _cross(one: Line, other: Line) -> bool:
    """Whether two lines have a point in common that ends neither."""
    return _side(one, other.x, other.y) * _side(one, other.end_x, other.end_y) < 0 and (
        _side(other, one.x, one.y) * _side(other, one.end_x, one.end_y) < 0
    )


def _side(line: Line, x: float, y: float) -> float:
    return (line.end_x - line.x) * (y - line.y) - (line.end_y - line.y) * (x - line.x)
