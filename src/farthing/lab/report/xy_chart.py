"""Plots of points over an axis of numbers or of names: joined by lines, or each with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.report import svg
from farthing.lab.report.frame import (
    LETTER,
    SMALL,
    WIDTH,
    Field,
    axis_places,
    dash,
    left_margin,
    legend,
    level_axis,
    line_sample,
    style,
    upright_axis,
)
from farthing.lab.report.scales import scale_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.lab.report.scales import Scale
    from farthing.lab.report.series import Point, Series
    from farthing.lab.table import Column, Plot

_LINES_HEIGHT, _POINTS_HEIGHT = 210.0, 330.0
_MARKED_POINTS = 16
_UNDER = 42.0

# Where the name of a point is tried: so far to either side, and so many steps up or down.
_AWAY = (7.0, 26.0, 48.0, 74.0, 104.0)
_RINGS, _RING = 20, 6.5
_PARTS = (0.3, 0.5, 0.7, 0.9)

_Box = tuple[float, float, float, float]


def xy_chart(plot: Plot, x: Column, series: Sequence[Series]) -> tuple[float, str]:
    """The height of the drawing, and what is drawn."""
    points = [point for each in series for point in each.points]
    few = plot.kind == "points" or max(len(each.points) for each in series) <= _MARKED_POINTS
    names = [each.column.heading for each in series]
    words, top = legend(names, [line_sample(n, marked=few) for n in range(len(series))])
    if plot.kind == "points" and len(series) == 1:
        words, top = svg.text(names[0], 0, LETTER, class_="word"), LETTER + 10
    height = _POINTS_HEIGHT if plot.kind == "points" else _LINES_HEIGHT
    bottom = top + 6 + height
    upright = scale_for(
        [value for point in points for value in (point.y, point.low, point.high)],
        plot.y_scale,
        bottom,
        top + 6,
        zero=plot.kind == "lines",
    )
    field = Field(left_margin(upright.ticks()), top + 6, WIDTH - 8, bottom)
    level = scale_for(
        [point.x for point in points],
        "log" if plot.x_scale == "log" else "linear",
        field.left,
        field.right,
        exact=True,
    )
    placed = {
        number: [
            (p, level.place(p.x), upright.place(p.y))
            for p in each.points
            if level.has(p.x) and upright.has(p.y)
        ]
        for number, each in enumerate(series)
    }
    drawn = [words, upright_axis(upright, field)]
    if plot.x_scale == "names":
        places = [(level.place(p.x), svg.shortened(p.name, 22)) for p in series[0].points]
    else:
        places = axis_places(level, [point.x for point in points])
    drawn.append(level_axis(places, field, x.heading))
    drawn += [_mark(level.place(at), word, field) for at, word in plot.marks if level.has(at)]
    for number, each in placed.items():
        if plot.kind == "lines" and len(each) > 1:
            way = [(x_at, y_at) for _, x_at, y_at in each]
            drawn.append(
                svg.path(way, class_=f"stroke {style(number)}", stroke_dasharray=dash(number))
            )
        drawn += [_point(number, *one, upright, marked=few) for one in each]
    lost = [point.name for point in points if not (level.has(point.x) and upright.has(point.y))]
    if lost:
        named = f"no place on this axis: {', '.join(lost)}"
        drawn.append(svg.text(svg.shortened(named, 70), 0, bottom + 50, class_="number"))
        bottom += 16
    if plot.labels:
        everything = [one for each in placed.values() for one in each]
        drawn += _named(everything, field)
    return bottom + _UNDER, "".join(drawn)


def _point(number: int, point: Point, x: float, y: float, scale: Scale, *, marked: bool) -> str:
    """Its interval as a whisker and, where there are few, its marker."""
    parts = []
    if point.high > point.low and scale.has(point.low) and scale.has(point.high):
        low, high = scale.place(point.low), scale.place(point.high)
        if abs(high - low) > 1:
            whisker = f"whisker {style(number)}"
            parts.append(svg.line(x, low, x, high, class_=whisker))
            parts += [svg.line(x - 3, each, x + 3, each, class_=whisker) for each in (low, high)]
    if marked:
        parts.append(svg.marker(number, x, y, class_=f"mark {style(number)}"))
    return svg.titled(point.shown, *parts) if parts else ""


def _mark(x: float, word: str, field: Field) -> str:
    room = svg.width_of(word, SMALL) + 6
    before = x + room > field.right
    return svg.line(x, field.top, x, field.bottom, class_="place") + svg.text(
        word,
        x - 5 if before else x + 5,
        field.bottom - 8,
        class_="place-word",
        text_anchor="end" if before else "start",
    )


def _named(points: Sequence[tuple[Point, float, float]], field: Field) -> list[str]:
    """A name beside each point, where nothing else is; further off with a thread to its point."""
    taken: list[_Box] = [_around(x, y) for _, x, y in points]
    drawn: list[str] = []
    for point, x, y in sorted(points, key=lambda each: each[2]):
        name = svg.shortened(point.name, 24)
        wide = svg.width_of(name, SMALL)
        box = _free(x, y, wide, taken, field)
        taken.append(box)
        left, top, right, bottom = box
        near_x, near_y = min(max(x, left), right), (top + bottom) / 2
        if abs(near_x - x) + abs(near_y - y) > 14:
            drawn.insert(0, svg.line(x, y, near_x, near_y, class_="thread"))
        drawn.append(svg.text(name, left, bottom - 3, class_="name"))
    return drawn


def _free(x: float, y: float, wide: float, taken: Sequence[_Box], field: Field) -> _Box:
    """A near place for a name of that width around (x, y) that meets nothing in `taken`.

    Neither does the thread that leads to it, if that can be had.
    """
    high, own = SMALL + 1, _around(x, y)
    best: tuple[float, _Box] | None = None
    for away in _AWAY:
        for left in (x + away, x - away - wide):
            for ring in range(-_RINGS, _RINGS + 1):
                middle = y + ring * _RING
                box = (left, middle - high / 2, left + wide, middle + high / 2)
                outside = left < field.left or box[2] > WIDTH
                if outside or not field.top <= middle <= field.bottom - 6:
                    continue
                met = sum(_overlap(box, each) for each in taken)
                crossed = sum(
                    _overlap(_speck(x, y, box, part), each)
                    for part in _PARTS
                    for each in taken
                    if each != own
                )
                cost = 20 * met + 3 * crossed + abs(ring) * _RING + away + (4 if left < x else 0)
                if best is None or cost < best[0]:
                    best = (cost, box)
    return best[1] if best else (x + 7, y - high / 2, x + 7 + wide, y + high / 2)


def _around(x: float, y: float) -> _Box:
    """What a marker takes."""
    return x - 5, y - 5, x + 5, y + 5


def _speck(x: float, y: float, box: _Box, part: float) -> _Box:
    """A small piece of the thread from (x, y) to a box, so far along it."""
    near_x, near_y = min(max(x, box[0]), box[2]), (box[1] + box[3]) / 2
    at_x, at_y = x + part * (near_x - x), y + part * (near_y - y)
    return at_x - 1, at_y - 1, at_x + 1, at_y + 1


def _overlap(one: _Box, other: _Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
