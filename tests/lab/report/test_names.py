"""Names of points: on nothing else, and their threads cross neither names nor each other."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from farthing.lab.report.frame import Field
from farthing.lab.report.names import Box, Line, Named, _cross, _crosses, place

FIELD = Field(40.0, 20.0, 450.0, 350.0)


@pytest.mark.parametrize("seed", range(4))
def test_names_of_a_dense_cluster_lie_on_nothing_and_no_thread_crosses_another(seed: int) -> None:
    random = Random(seed)
    places = [(60 + random.random() * 60, 130 + random.random() * 60) for _ in range(11)]
    points = [Named(x, y, 50.0 + random.random() * 30, y, y) for x, y in places]
    found = place(points, 12.0, FIELD, 460.0)
    boxes = [each.box for each in found]
    threads = [each.thread for each in found if each.thread is not None]
    for one, other in combinations(boxes, 2):
        assert (
            one.right <= other.left
            or other.right <= one.left
            or (one.bottom <= other.top or other.bottom <= one.top)
        )
    assert sum(_cross(one, other) for one, other in combinations(threads, 2)) == 0
    passed = [(each.thread, box) for each in found for box in boxes if box != each.box]
    assert sum(thread is not None and _crosses(thread, box) for thread, box in passed) <= 1


def test_a_name_does_not_lie_on_a_neighbours_whisker() -> None:
    story, chat = Named(60, 250, 30, 230, 330), Named(68, 180, 30, 150, 253)
    [first, _] = place([story, chat], 12.0, FIELD, 460.0)
    assert first.box.top >= 253 or first.box.right <= 66 or first.box.left >= 70


def test_a_name_alone_stands_right_beside_its_point_without_a_thread() -> None:
    [found] = place([Named(100, 100, 40, 100, 100)], 12.0, FIELD, 460.0)
    assert found.box == Box(107.0, 94.0, 147.0, 106.0)
    assert found.thread is None
    [left] = place([Named(440, 100, 40, 100, 100)], 12.0, FIELD, 460.0)
    assert left.box.right < 440


def test_a_line_crosses_a_box_only_within_its_ends() -> None:
    box = Box(10, 10, 20, 20)
    assert _crosses(Line(0, 0, 30, 30), box)
    assert not _crosses(Line(0, 0, 9, 9), box)
    assert not _crosses(Line(0, 15, 0, 30), box)
    assert _crosses(Line(15, 0, 15, 30), box)
