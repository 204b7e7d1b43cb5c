"""Plots of points over an axis of numbers or of names: joined by lines, or each with its name."""

from __future__ import annotations

from math import hypot
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
from farthing.lab.report.names import Line, Named, place
from farthing.lab.report.scales import scale_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.lab.report.scales import Scale
    from farthing.lab.report.series import Point, Series
    from farthing.lab.table import Column, Plot

_LINES_HEIGHT, _POINTS_HEIGHT = 210.0, 330.0
_MARKED_POINTS = 16
_UNDER = 42.0
_BEFORE_NAME = 3.0


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
        drawn += _named(everything, upright, field)
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


def _named(points: Sequence[tuple[Point, float, float]], upright: Scale, field: Field) -> list[str]:
    """A name beside each point; further off with a thread to it."""
    names = [svg.shortened(point.name, 24) for point, _, _ in points]
    placed = place(
        [
            Named(x, y, svg.width_of(name, SMALL), *_span(point, y, upright))
            for name, (point, x, y) in zip(names, points, strict=True)
        ],
        SMALL + 1,
        field,
        WIDTH,
    )
    threads = [
        svg.line(*_shortened(each.thread), class_="thread") for each in placed if each.thread
    ]
    return threads + [
        svg.text(name, each.box.left, each.box.bottom - 3, class_="name")
        for name, each in zip(names, placed, strict=True)
    ]


def _shortened(thread: Line) -> Line:
    """Ended before it touches the first letter of its name, of which it would seem a part."""
    x, y, end_x, end_y = thread
    left = max(0.0, 1 - _BEFORE_NAME / hypot(end_x - x, end_y - y))
    return Line(x, y, x + left * (end_x - x), y + left * (end_y - y))


def _span(point: Point, y: float, upright: Scale) -> tuple[float, float]:
    """Top and bottom of its whisker; both its middle where it has none."""
    if point.high > point.low and upright.has(point.low) and upright.has(point.high):
        return upright.place(point.high), upright.place(point.low)
    return y, y
