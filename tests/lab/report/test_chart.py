"""Pictures of plots: every row has its mark, at its place, with its interval and its name."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.lab.report.chart import draw
from farthing.lab.samples import Interval, Samples
from farthing.lab.table import Cell, Column, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

SPACE = "{http://www.w3.org/2000/svg}"


def table(*rows: Sequence[Cell]) -> Table:
    columns = (Column("name"), Column("x", "tokens"), Column("a", "ms"), Column("b", "ms"))
    return Table("t", "Title", columns, tuple(map(tuple, rows)), "Found.")


def drawn(plot: Plot, *rows: Sequence[Cell]) -> ET.Element:
    return ET.fromstring(draw(table(*rows), plot, "i"))


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter() if name in str(each.get("class")).split()]


def texts(root: ET.Element) -> list[str]:
    return [str(each.text) for each in root.iter(f"{SPACE}text")]


def number(element: ET.Element, name: str) -> float:
    return float(str(element.get(name)))


def test_rows_of_one_name_are_bars_of_their_own() -> None:
    root = drawn(Plot("bars", "name", ("a",), "names"), ("same", 1, 2.0, 0), ("same", 2, 4.0, 0))
    first, second = of_class(root, "bar")
    assert number(second, "width") == pytest.approx(2 * number(first, "width"), abs=0.05)
    assert texts(root).count("same") == 2
    assert {"2.0", "4.0"} <= set(texts(root))


def test_a_name_too_long_to_stand_beside_its_bar_stands_above_it_whole() -> None:
    name = "a format + a method + another method"
    root = drawn(Plot("bars", "name", ("a",), "names"), (name, 1, 2.0, 0), ("b", 1, 1.0, 0))
    assert name in texts(root)
    word = next(each for each in root.iter(f"{SPACE}text") if each.text == name)
    assert number(word, "y") < number(of_class(root, "bar")[0], "y")


def test_an_interval_is_a_span_on_its_bar_and_a_whisker_on_its_point() -> None:
    cell = Interval(4.0, 2.0, 8.0)
    span = of_class(drawn(Plot("bars", "name", ("a",), "names"), ("n", 1, cell, 0)), "span")[0]
    root = drawn(Plot("points", "x", ("a",), labels="name"), ("n", 1, cell, 0), ("m", 2, 1.0, 0))
    whisker = of_class(root, "whisker")[0]
    assert number(span, "x2") - number(span, "x1") > 20
    assert abs(number(whisker, "y2") - number(whisker, "y1")) > 20
    once = Samples((4.0,))
    assert not of_class(drawn(Plot("bars", "name", ("a",), "names"), ("n", 1, once, 0)), "span")


def test_parts_of_a_whole_fill_their_row_and_say_their_share() -> None:
    root = drawn(
        Plot("stacked", "name", ("a", "b"), "names"), ("one", 1, 3.0, 1.0), ("two", 1, 5.0, 0.0)
    )
    bars = [each for each in of_class(root, "bar") if number(each, "height") > 15]
    widths = [number(each, "width") for each in bars]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.05)
    assert widths[2] == pytest.approx(widths[0] + widths[1], abs=0.05)
    assert [text for text in texts(root) if text.endswith("%") and text[0].isdigit()] == [
        "75 %",
        "25 %",
        "100 %",
    ]


def test_a_place_on_the_axis_is_marked_with_its_word() -> None:
    rows = [("n", 2**power, float(power), 0) for power in range(1, 6)]
    plot = Plot("lines", "x", ("a",), "log", marks=((8.0, "knee"),))
    root = drawn(plot, *rows)
    assert "knee" in texts(root)
    mark = of_class(root, "place")[0]
    third = of_class(root, "mark")[-3]
    assert number(mark, "x1") == pytest.approx(number(third, "cx"), abs=0.05)


def test_names_of_points_do_not_lie_on_each_other_or_on_points() -> None:
    rows = [(f"FORMAT_{n}", 4 + n % 5 / 4, 0.08 + n / 500, 0) for n in range(14)]
    root = drawn(Plot("points", "x", ("a",), y_scale="log", labels="name"), *rows)
    boxes = []
    for each in of_class(root, "name"):
        x, y = number(each, "x"), number(each, "y")
        boxes.append((x, y - 8, x + 0.5 * 11 * len(str(each.text)), y))
    assert len(boxes) == 14
    met = [
        (one, other)
        for at, one in enumerate(boxes)
        for other in boxes[at + 1 :]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]
    assert met == []


_NUMBER = st.floats() | st.none() | st.integers(-(10**30), 10**30)
_CELL = (
    _NUMBER
    | st.builds(Interval, *([st.floats()] * 3))
    | st.lists(st.floats(), min_size=1, max_size=3).map(lambda each: Samples(tuple(each)))
)
_PLOTS: list[Any] = [
    Plot("lines", "x", ("a", "b"), "log", "log"),
    Plot("lines", "x", ("a", "b")),
    Plot("lines", "name", ("a", "b"), "names"),
    Plot("points", "x", ("a", "b"), labels="name"),
    Plot("bars", "name", ("a", "b"), "names"),
    Plot("bars", "name", ("a", "b"), "names", "log"),
    Plot("stacked", "name", ("a", "b"), "names"),
]


@given(
    st.lists(st.tuples(st.text(max_size=12), _NUMBER, _CELL, _CELL), min_size=1, max_size=6),
    st.sampled_from(_PLOTS),
)
def test_whatever_is_measured_is_drawn_with_finite_numbers(
    rows: list[tuple[Any, ...]], plot: Plot
) -> None:
    text = draw(table(*rows), plot, "i")
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', text)
