"""Two reports side by side: what differs, what does not, and what only one of them has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farthing.lab.report.compare import Verdict, compare, judge, row_names
from farthing.lab.samples import Interval, Samples
from farthing.lab.table import Cell, Column, Expectation, Table
from lab.report.made_report import PROVENANCE, report, section

MS = Column("time", "ms", ".1f")


def timed(*rows: tuple[Any, ...], key: str = "t", met: bool = True) -> Table:
    columns = (Column("way"), Column("size"), MS)
    return Table(key, "Times", columns, rows, "Found.", Expectation("x", met))


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (Samples((1.0, 2.0)), Samples((3.0, 4.0)), Verdict.DIFFERS),
        (Samples((1.0, 3.0)), Samples((3.0, 4.0)), Verdict.INSIDE),
        (Samples((1.0, 9.0)), Samples((3.0, 4.0)), Verdict.INSIDE),
        (Interval(2.0, 1.0, 3.0), Samples((3.5, 4.0)), Verdict.DIFFERS),
        (Interval(2.0, 1.0, 3.0), 2.5, Verdict.INSIDE),
        (Interval(2.0, 1.0, 3.0), 3.5, Verdict.DIFFERS),
        (Samples((1.0,)), Samples((3.0,)), Verdict.ONCE),
        (Samples((1.0,)), Samples((1.0,)), Verdict.INSIDE),
        (1.04, 1.02, Verdict.SAME),
        (1.04, 1.16, Verdict.DIFFERS),
        ("a", "a", Verdict.SAME),
        ("a", "b", Verdict.DIFFERS),
        (None, 1.0, Verdict.DIFFERS),
        (Samples((1.0, 2.0)), "gone", Verdict.DIFFERS),
    ],
)
def test_two_figures_differ_where_their_intervals_do_not_meet(
    one: Cell, other: Cell, verdict: Verdict
) -> None:
    assert judge(one, other, MS, MS) is verdict
    assert judge(other, one, MS, MS) is verdict


def test_rows_are_named_by_as_few_cells_as_tell_them_apart() -> None:
    assert row_names(timed(("a", 1, 1.0), ("b", 1, 1.0))) == ["a", "b"]
    together = Table(
        "t", "T", (Column("x"), Column("y"), MS), (("a", "c", 1.0), ("a", "d", 2.0)), ""
    )
    assert row_names(together) == ["a, c", "a, d"]
    assert row_names(timed(("a", 1, 1.0), ("a", 2, 1.0))) == ["a", "a (2)"]
    by_number = Table("t", "T", (Column("context"), MS), ((16, 1.0), (1024, 2.0)), "")
    assert row_names(by_number) == ["16", "1,024"]


def test_every_figure_of_both_is_judged_and_what_one_lacks_is_said() -> None:
    first = report(
        section("s", timed(("a", 1, Samples((1.0, 2.0))), ("gone", 1, 1.0)), timed(key="only a")),
    )
    second = report(
        section(
            "s",
            timed(("new", 2, 1.0), ("a", 1, Samples((4.0, 5.0))), met=False),
            timed(key="only b"),
        ),
        provenance=PROVENANCE | {"threads": 4},
    )
    found = compare(first, second)
    verdicts = {(each.row, each.column): each.verdict for each in found.figures}
    assert verdicts == {
        ("a", "size"): Verdict.SAME,
        ("a", "time"): Verdict.DIFFERS,
        ("gone", ""): Verdict.ONLY_FIRST,
        ("new", ""): Verdict.ONLY_SECOND,
    }
    change = next(each for each in found.figures if each.column == "time")
    assert (change.first, change.second) == ("1.5 (1.0 to 2.0)", "4.5 (4.0 to 5.0)")
    assert change.change == pytest.approx(2)
    assert found.settings == {"threads": ("2", "4")}
    tables = {each.table: each for each in found.tables}
    assert tables["t"].first_expectation == "met"
    assert tables["t"].second_expectation == "contradicted"
    assert tables["only a"].only is Verdict.ONLY_FIRST
    assert tables["only b"].only is Verdict.ONLY_SECOND
    assert list(tables) == ["t", "only a", "only b"]
    assert json.loads(json.dumps(found.as_json()))["tables"][0]["counts"]["differs"] == 1


def test_a_report_beside_itself_differs_nowhere() -> None:
    one = report(section("s", timed(("a", 1, Samples((1.0, 2.0))), ("b", 1, None), ("c", 2, 3.0))))
    found = compare(one, one)
    assert {each.verdict for each in found.figures} <= {Verdict.SAME, Verdict.INSIDE}
    assert found.settings == {}


def test_a_change_from_nothing_or_to_no_number_is_none() -> None:
    first = report(section("s", timed(("a", 1, 0.0), ("b", 1, 2.0), ("c", 1, float("inf")))))
    second = report(section("s", timed(("a", 1, 1.0), ("b", 1, float("inf")), ("c", 1, 1.0))))
    found = compare(first, second)
    assert [each.change for each in found.figures if each.column == "time"] == [None, None, -1]
    json.dumps(found.as_json(), allow_nan=False)


def test_a_column_that_one_lacks_is_said_once_for_each_row() -> None:
    less = Table("t", "T", (Column("way"), MS), (("a", 1.0),), "")
    more = Table("t", "T", (Column("way"), MS, Column("new")), (("a", 1.0, 2),), "")
    found = compare(report(section("s", less)), report(section("s", more)))
    assert {each.column: each.verdict for each in found.figures} == {
        "time": Verdict.SAME,
        "new": Verdict.ONLY_SECOND,
    }


def test_the_verdict_on_a_counted_figure_speaks_of_no_interval() -> None:
    assert "interval" not in judge("256 x 512", "576 x 1536", Column("shape"), Column("shape"))
