"""Tables as data: what is shown, what JSON says, and what a table refuses to be."""

from __future__ import annotations

import json

import pytest

from farthing.lab.samples import Interval, Samples, interleaved
from farthing.lab.table import Cell, Column, Expectation, Plot, Section, Table

COLUMNS = (Column("size", "tokens"), Column("time", "ms", ",.1f"))


def table(*rows: tuple[object, object], **changes: object) -> Table:
    settings = {"plots": (), **changes}
    return Table("t", "A table", COLUMNS, rows, "Found.", **settings)  # type: ignore[arg-type]


def test_a_measured_cell_shows_its_median_and_in_brackets_its_extremes() -> None:
    shown = Column("time", "ms", ",.1f").shown
    assert shown(Samples((3000.0, 1.0, 2.0))) == "2.0 (1.0 to 3,000.0)"
    assert shown(Samples((2.0,))) == "2.0"
    assert shown(Interval(2.0, 1.0, 4.0)) == "2.0 (1.0 to 4.0)"
    assert shown(1234.56) == "1,234.6"
    assert shown("said") == "said"
    assert shown(None) == ""


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (1.97e-7, "2e-7"),
        (-0.004, "-4e-3"),
        (0.0, "0.00"),
        (0.006, "0.01"),
        (0.5, "0.50"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Interval(0.001, -0.004, 0.02), "1e-3 (-4e-3 to 0.02)"),
        (Samples((0.001, 0.001)), "1e-3 (1e-3 to 1e-3)"),
        (Samples((0.001,)), "1e-3"),
    ],
)
def test_what_is_not_nothing_is_not_shown_as_nothing(cell: Cell, shown: str) -> None:
    assert Column("share", spec=".2f").shown(cell) == shown


def test_a_heading_has_the_unit() -> None:
    assert [column.heading for column in (*COLUMNS, Column("way"))] == [
        "size, tokens",
        "time, ms",
        "way",
    ]


def test_samples_know_their_middle_their_spread_and_ratios_within_a_round() -> None:
    samples = Samples((4.0, 1.0, 2.0, 3.0))
    assert (samples.count, samples.median, samples.low, samples.high) == (4, 2.5, 1.0, 4.0)
    assert samples.over(Samples((2.0, 1.0, 1.0, 1.0))).values == (2.0, 1.0, 2.0, 3.0)
    assert samples.per(12).values == (3.0, 12.0, 6.0, 4.0)
    assert samples.scaled(10).shifted(1).values == (41.0, 11.0, 21.0, 31.0)


def test_tasks_take_turns_so_that_a_slow_minute_slows_them_all() -> None:
    log: list[str] = []
    told: list[str] = []
    looked: list[int] = []

    def task(name: str) -> float:
        log.append(name)
        return float(len(log))

    tasks = {n: lambda n=n: task(n) for n in "ab"}  # type: ignore[misc]
    found = interleaved(tasks, 2, told.append, lambda: looked.append(len(log)))
    assert looked == [0, 1, 2, 3]
    assert log == ["a", "b", "a", "b"]
    assert found == {"a": Samples((1.0, 3.0)), "b": Samples((2.0, 4.0))}
    assert told[-1] == "b, round 2 of 2"


def test_json_has_every_value_that_was_measured_and_how_often() -> None:
    found = table((16, Samples((3.0, 1.0))), (32, Interval(2.0, 1.0, 3.0)), (64, None)).as_json()
    assert found["columns"] == [
        {"name": "size", "unit": "tokens", "spec": ","},
        {"name": "time", "unit": "ms", "spec": ",.1f"},
    ]
    assert found["rows"] == [
        [
            16,
            {"median": 2.0, "low": 1.0, "high": 3.0, "n": 2, "values": [3.0, 1.0]}
            | {"level": None, "paired": False, "least": 0.0, "moved": 0.0},
        ],
        [32, {"middle": 2.0, "low": 1.0, "high": 3.0}],
        [64, None],
    ]
    assert table((16, Samples((3.0, 1.0)))).repeats == 2
    assert table((16, 1.0)).repeats == 0


@pytest.mark.parametrize(("number", "name"), [(float("nan"), "nan"), (float("-inf"), "-inf")])
def test_a_number_that_json_does_not_have_is_named(number: float, name: str) -> None:
    found = json.loads(json.dumps(table((1, number)).as_json(), allow_nan=False))
    assert found["rows"] == [[1, {"not_finite": name}]]


def test_an_expectation_is_met_contradicted_or_not_judged_and_json_says_which() -> None:
    assert [Expectation("x", met).verdict for met in (True, False, None)] == [
        "met",
        "contradicted",
        "not judged here",
    ]
    told = table((1, 2.0), expectation=Expectation("x", met=False)).as_json()
    assert told["expectation"] == {"text": "x", "met": False}


def test_a_plot_names_columns_that_are_there() -> None:
    plot = Plot("lines", "size", ("time",), "log")
    assert table((1, 2.0), plots=(plot,)).as_json()["plots"][0]["y"] == ["time"]
    with pytest.raises(ValueError, match="speed"):
        table((1, 2.0), plots=(Plot("lines", "size", ("speed",)),))


def test_a_row_has_a_cell_for_each_column_and_columns_have_different_names() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        table((1,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one name"):
        Table("t", "", (Column("a", "ms"), Column("a", "s")), (), "")


def test_a_section_carries_where_its_tables_come_from() -> None:
    section = Section(
        "s", "about", "farthing lab s m", 7, {"version": "1"}, 0.5, (table((1, 2.0)),)
    )
    found = section.as_json()
    assert (found["version"], found["command"], found["seed"]) == ("1", "farthing lab s m", 7)
    assert [each["key"] for each in found["tables"]] == ["t"]
