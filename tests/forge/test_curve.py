"""The picture of a training run: sound SVG, both lines where their numbers say."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from farthing.forge.curve import curve
from farthing.forge.trainer import Point

SVG = "{http://www.w3.org/2000/svg}"


def test_both_lines_run_from_the_first_point_to_the_last() -> None:
    history = [Point(0, 0, 0.0, 4.0, 0.0, 0.0), Point(9, 1000, 1.0, 1.0, 0.5, 0.4)]
    root = ET.fromstring(curve(history, "draft of <b> & co"))
    assert root.findtext(f"{SVG}title") == "draft of <b> & co"
    lines = [each.attrib["points"].split() for each in root.iter(f"{SVG}polyline")]
    # From 4 of at most 4 nats to a quarter of it; from no acceptance to half.
    assert lines == [["64.0,56.0", "656.0,278.0"], ["64.0,352.0", "656.0,204.0"]]
    labels = [each.text for each in root.iter(f"{SVG}text")]
    assert {"4.00", "100%", "1,000"} <= set(labels)


def test_one_point_is_drawn_too() -> None:
    ET.fromstring(curve([Point(0, 0, 0.0, 0.0, 0.0, 0.0)], "x"))
