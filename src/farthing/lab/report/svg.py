"""Scalable vector graphics as text: elements, and the few shapes that plots are made of.

Whatever is written is escaped here. Colours are classes, so that the page decides on them.
"""

from __future__ import annotations

from typing import TypeAlias
from xml.sax.saxutils import escape, quoteattr

Attribute: TypeAlias = str | int | float | None

_CORNERS: dict[int, list[tuple[float, float]]] = {
    1: [(-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)],
    2: [(0, -4.2), (4, 3.2), (-4, 3.2)],
    3: [(0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)],
}

LETTER_WIDTH, CAPITAL_WIDTH = 0.56, 0.64
"""Of an average letter, in font sizes: what a text takes is not known before it is drawn."""


def element(name: str, *children: str, **attributes: Attribute) -> str:
    """One element around `children`, which are elements themselves.

    `class_` is the attribute class, and an underscore within a name is a hyphen. None leaves an
    attribute out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_value(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>" if children else f"<{name}{given}/>"


def text(content: str, x: float, y: float, **attributes: Attribute) -> str:
    """A line of text whose baseline begins at (x, y), unless `text_anchor` says otherwise."""
    return element("text", escape(content), x=x, y=y, **attributes)


def titled(title: str, *children: str, **attributes: Attribute) -> str:
    """A group that says `title` to whoever points at it."""
    return element("g", element("title", escape(title)), *children, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Attribute) -> str:
    """From one point to another."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(points: list[tuple[float, float]], **attributes: Attribute) -> str:
    """Straight lines through `points`."""
    way = "L".join(f"{_value(x)} {_value(y)}" for x, y in points)
    return element("path", d=f"M{way}", fill="none", **attributes)


def marker(shape: int, x: float, y: float, **attributes: Attribute) -> str:
    """One of four shapes around (x, y): a disc, a square, a triangle, a diamond."""
    if shape % 4 == 0:
        return element("circle", cx=x, cy=y, r=3.6, **attributes)
    points = " ".join(f"{_value(x + dx)},{_value(y + dy)}" for dx, dy in _CORNERS[shape % 4])
    return element("polygon", points=points, **attributes)


def picture(
    identity: str, title: str, description: str, width: float, height: float, *children: str
) -> str:
    """The whole, as wide as its place: `title` and `description` are what is read out."""
    return element(
        "svg",
        element("title", escape(title), id=f"{identity}-title"),
        element("desc", escape(description), id=f"{identity}-text"),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-text",
    )


def width_of(content: str, size: float) -> float:
    """What a text takes about, in a letter of that size."""
    capitals = sum(map(str.isupper, content))
    return size * (LETTER_WIDTH * (len(content) - capitals) + CAPITAL_WIDTH * capitals)


def shortened(content: str, most: int) -> str:
    """At most so many letters: the end of a longer text becomes an ellipsis."""
    return (
        content
        if len(content) <= most
        else content[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    )


def _value(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
