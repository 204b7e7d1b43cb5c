"""Bars that lie: one after the other for each name, or the parts of a whole end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.report import svg
from farthing.lab.report.frame import (
    SMALL,
    WIDTH,
    Field,
    axis_places,
    bar_sample,
    legend,
    level_axis,
    style,
)
from farthing.lab.report.scales import drawable, scale_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.lab.report.scales import Scale
    from farthing.lab.report.series import Point, Series
    from farthing.lab.table import Plot

_BAR, _BETWEEN, _STACK = 13.0, 9.0, 22.0
_BESIDE, _NAME_LETTERS, _NAME_LINE = 24, 66, 15.0
"""Names of so many letters stand beside their bars; longer ones, up to so many, above them."""
_UNDER = 42.0


def bar_chart(plot: Plot, series: Sequence[Series]) -> tuple[float, str]:
    """The height of the drawing, and what is drawn: a bar of each series for each name."""
    names = [each.column.name for each in series]
    words, top = ("", 0.0)
    if len(series) > 1:
        words, top = legend(names, [bar_sample(number) for number in range(len(series))])
    rows = _Rows(series, len(series) * _BAR)
    field = rows.field(top + 4, WIDTH - 62)
    values = [
        v for each in series for point in each.points for v in (point.y, point.low, point.high)
    ]
    scale = scale_for(values, plot.y_scale, field.left, field.right, zero=True)
    title = names[0] if len(series) == 1 else ""
    title = " ".join(filter(None, (title, _unit(series))))
    drawn = [
        words,
        level_axis(axis_places(scale, scale.ticks()), field, title, ruled=True),
    ]
    for row, y, name in rows.placed(field):
        drawn.append(name)
        for number, each in enumerate(series):
            drawn += [
                _bar(number, point, scale, field.left, y + number * _BAR)
                for point in each.points
                if point.x == row
            ]
    return field.bottom + _UNDER, "".join(drawn)


def _bar(number: int, point: Point, scale: Scale, left: float, y: float) -> str:
    """From zero, or from the left edge of a logarithmic axis, with the interval at its end."""
    begin = left if scale.kind == "log" else scale.place(0.0)
    end = scale.place(point.y) if scale.has(point.y) else left
    parts = [
        svg.element(
            "rect",
            x=min(begin, end),
            y=y + 1,
            width=abs(end - begin),
            height=_BAR - 2,
            class_=f"bar {style(number)}",
        )
    ]
    furthest = max(begin, end)
    if point.high > point.low and scale.has(point.low) and scale.has(point.high):
        low, high = scale.place(point.low), scale.place(point.high)
        middle = y + _BAR / 2
        parts.append(svg.line(low, middle, high, middle, class_="span"))
        parts += [svg.line(x, middle - 3, x, middle + 3, class_="span") for x in (low, high)]
        furthest = max(furthest, high)
    parts.append(svg.text(point.figure, furthest + 4, y + 10, class_="number"))
    return svg.titled(point.shown, *parts)


def stacked_chart(series: Sequence[Series]) -> tuple[float, str]:
    """The height of the drawing, and what is drawn: shares of what the series add up to."""
    names = [each.column.name for each in series]
    words, top = legend(names, [bar_sample(number) for number in range(len(series))])
    rows = _Rows(series, _STACK)
    field = rows.field(top + 4, WIDTH - 14)
    scale = scale_for([0.0, 100.0], "linear", field.left, field.right, zero=True)
    drawn = [words, level_axis(axis_places(scale, []), field, "share of the whole, %", ruled=True)]
    for row, y, name in rows.placed(field):
        drawn.append(name)
        found = {
            number: point
            for number, each in enumerate(series)
            for point in each.points
            if point.x == row and drawable(point.y, "log")
        }
        whole = sum(point.y for point in found.values())
        done = 0.0
        for number, point in found.items():
            share = 100 * point.y / whole
            left, right = scale.place(done), scale.place(done + share)
            done += share
            parts = [
                svg.element(
                    "rect",
                    x=left,
                    y=y,
                    width=right - left,
                    height=_STACK,
                    class_=f"bar {style(number)}",
                )
            ]
            if right - left > 30:
                parts.append(_plate(f"{share:.0f} %", (left + right) / 2, y + _STACK / 2))
            drawn.append(svg.titled(f"{point.shown}, {share:.0f} %", *parts))
    return field.bottom + _UNDER, "".join(drawn)


def _plate(word: str, x: float, y: float) -> str:
    """A word that can be read whatever it lies on."""
    wide = svg.width_of(word, SMALL) + 6
    return svg.element(
        "rect", x=x - wide / 2, y=y - 8, width=wide, height=16, rx=3, class_="plate"
    ) + svg.text(word, x, y + 4, class_="number", text_anchor="middle")


class _Rows:
    """The rows of a table that have a figure, with their names; bars of one are `high` together."""

    def __init__(self, series: Sequence[Series], high: float) -> None:
        points = sorted((point.x, point.name) for each in series for point in each.points)
        self._names = {x: svg.shortened(name, _NAME_LETTERS) for x, name in points}
        self._longest = max(map(len, self._names.values()), default=0)
        self._above = _NAME_LINE if self._longest > _BESIDE else 0.0
        self._high = high

    @property
    def _step(self) -> float:
        return self._above + self._high + _BETWEEN

    def field(self, top: float, right: float) -> Field:
        """Where the bars are, from `top` on and up to `right`."""
        left = 6.0 if self._above else svg.width_of("x" * self._longest, SMALL) + 10
        return Field(left, top, right, top + self._step * len(self._names))

    def placed(self, field: Field) -> Iterator[tuple[float, float, str]]:
        """Each row's number in the table, where its bars begin, and its name as it is drawn."""
        for at, (row, name) in enumerate(self._names.items()):
            y = field.top + at * self._step + _BETWEEN / 2 + self._above
            if self._above:
                yield row, y, svg.text(name, field.left, y - 4, class_="name")
            else:
                middle = y + self._high / 2 + 4
                yield (
                    row,
                    y,
                    svg.text(name, field.left - 6, middle, class_="number", text_anchor="end"),
                )


def _unit(series: Sequence[Series]) -> str:
    units = {each.column.unit for each in series}
    return min(units) if len(units) == 1 else ""
