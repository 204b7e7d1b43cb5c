"""What the plots share: sizes, the legend, the axes with their words, and how series differ.

Series differ by colour, by marker and by dash: none needs its colour to be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.lab.report import svg
from farthing.lab.report.scales import named, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.lab.report.scales import Scale

WIDTH = 460.0
LETTER = 12.0
SMALL = 11.0

_DASHES = (None, "7 4", "2 3", "10 3 2 3")
_LEGEND_LINE = 18.0
_SAMPLE = 26.0


@dataclass(frozen=True)
class Field:
    """Where points are drawn: from the upper left corner to the lower right one."""

    left: float
    top: float
    right: float
    bottom: float


def dash(number: int) -> str | None:
    """The dashes of series `number`."""
    return _DASHES[number % len(_DASHES)]


def style(number: int) -> str:
    """The class that colours series `number`."""
    return f"series-{number % len(_DASHES)}"


def legend(names: Sequence[str], samples: Sequence[str]) -> tuple[str, float]:
    """The series' names behind a sample of each, and the height that they take.

    A sample is drawn around (0, 0), `_SAMPLE` wide at most.
    """
    x, y = 0.0, LETTER
    drawn = []
    for name, sample in zip(names, samples, strict=True):
        name = svg.shortened(name, 60)
        taken = _SAMPLE + 6 + svg.width_of(name, LETTER) + 16
        if x and x + taken > WIDTH:
            x, y = 0.0, y + _LEGEND_LINE
        drawn.append(
            svg.element(
                "g", sample, transform=f"translate({x + _SAMPLE / 2:.1f} {y - LETTER / 3:.1f})"
            )
            + svg.text(name, x + _SAMPLE + 6, y, class_="word")
        )
        x += taken
    return "".join(drawn), y + 10


def line_sample(number: int, *, marked: bool) -> str:
    """A stroke of series `number`, and its marker."""
    half = _SAMPLE / 2
    stroke = svg.line(
        -half, 0, half, 0, class_=f"stroke {style(number)}", stroke_dasharray=dash(number)
    )
    return stroke + (svg.marker(number, 0, 0, class_=f"mark {style(number)}") if marked else "")


def bar_sample(number: int) -> str:
    """A patch as the bars of series `number` are filled."""
    return svg.element("rect", x=-8, y=-6, width=16, height=12, class_=f"bar {style(number)}")


def patterns() -> str:
    """Definitions for a page: how bars of each series are hatched over their colour."""
    lines = (None, "M0 0L0 6", "M0 3L6 3", "M0 0L6 6M0 6L6 0")
    made = []
    for number, way in enumerate(lines):
        ground = svg.element("rect", width=6, height=6, class_=f"ground {style(number)}")
        hatch = "" if way is None else svg.element("path", d=way, class_="hatch")
        made.append(
            svg.element(
                "pattern",
                ground,
                *([hatch] if hatch else []),
                id=f"fill-{number}",
                width=6,
                height=6,
                patternUnits="userSpaceOnUse",
            )
        )
    return svg.element(
        "svg", svg.element("defs", *made), width=0, height=0, aria_hidden="true", class_="patterns"
    )


def left_margin(ticks: Sequence[float]) -> float:
    """What the words of an upright axis take."""
    return max((svg.width_of(named(tick), SMALL) for tick in ticks), default=0.0) + 10


def upright_axis(scale: Scale, field: Field) -> str:
    """Rules across the field at round numbers, each with its number to the left."""
    drawn = []
    for tick in scale.ticks():
        y = scale.place(tick)
        drawn.append(svg.line(field.left, y, field.right, y, class_="rule"))
        drawn.append(
            svg.text(named(tick), field.left - 6, y + 4, class_="number", text_anchor="end")
        )
    return "".join(drawn)


def level_axis(
    places: Sequence[tuple[float, str]], field: Field, title: str, *, ruled: bool = False
) -> str:
    """Words under the field at their places, as many as fit, and the axis' title under them."""
    drawn = [svg.line(field.left, field.bottom, field.right, field.bottom, class_="axis")]
    end = -1e9
    for x, word in sorted(places):
        half = svg.width_of(word, SMALL) / 2
        if x - half < end + 6:
            continue
        end = x + half
        drawn.append(svg.line(x, field.bottom, x, field.bottom + 4, class_="axis"))
        if ruled:
            drawn.append(svg.line(x, field.top, x, field.bottom, class_="rule"))
        anchored = min(max(x, half), WIDTH - half)
        drawn.append(
            svg.text(word, anchored, field.bottom + 16, class_="number", text_anchor="middle")
        )
    middle = (field.left + field.right) / 2
    drawn.append(svg.text(title, middle, field.bottom + 34, class_="word", text_anchor="middle"))
    return "".join(drawn)


def axis_places(scale: Scale, values: Sequence[float]) -> list[tuple[float, str]]:
    """Where a level axis has words: at the values themselves where they are few, else evenly."""
    distinct = sorted({value for value in values if scale.has(value)})
    own = distinct if scale.kind == "log" and len(distinct) <= 10 else thinned(scale.ticks(6), 8)
    return [(scale.place(value), named(value)) for value in own]
