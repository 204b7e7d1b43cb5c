"""Reports read back: the same as they were, and whatever else is refused by its place."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.lab.report.contents import Report
from farthing.lab.report.stored import read_report, section_of
from farthing.lab.samples import Samples
from lab.report.made_report import COLUMNS, report, section, table, whole

if TYPE_CHECKING:
    from pathlib import Path


def stored(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def test_a_report_read_back_is_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(stored(whole().as_json()))
    found = read_report(path)
    assert stored(found.as_json()) == stored(whole().as_json())
    cell = found.sections[0].tables[0].rows[3][3]
    assert isinstance(cell, float)
    assert math.isnan(cell)
    plain = report(section("s", table(rows=(("a", 1, 2.0, None),))))
    path.write_text(stored(plain.as_json()))
    assert read_report(path) == plain
    share = Samples((4.0, 3.0)).over(Samples((2.0, 3.0))).shifted(-1)
    moved = report(section("s", table(rows=(("a", 1, share, Samples((3.0, 1.0)).scaled(2)),))))
    path.write_text(stored(moved.widened().as_json()))
    assert read_report(path) == moved.widened() != moved


def test_one_section_is_a_report_of_it(tmp_path: Path) -> None:
    path = tmp_path / "section.json"
    path.write_text(stored(section("s", table()).as_json()))
    found = read_report(path)
    assert isinstance(found, Report)
    assert [each.name for each in found.sections] == ["s"]
    assert (found.seed, found.command) == (7, "farthing lab s m")


def changed(**changes: Any) -> str:
    return stored({**section("s", table()).as_json(), **changes})


def with_table(**changes: Any) -> str:
    return changed(tables=[{**table().as_json(), **changes}])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is no report of the laboratory"),
        ("[]", "is no report of the laboratory"),
        ('{"a": 1}', "missing required field"),
        ("[" * 100_000, "is no report of the laboratory"),
        ('{"report": 1}', "a report of version 1, and this farthing reads version 3"),
        ('{"report": "<html>"}', "a report of version '<html>'"),
        (changed(seconds="long"), r"$.seconds"),
        (changed(tables={}), r"$.tables"),
        (changed(looks=[[{"reading": 0, "multiplying": 1, "interpreting": 1}]]), "`$.looks[0]"),
        (changed(looks=[[{"reading": 1, "multiplying": 1}]]), "missing required field"),
        (changed(looks=[[]]), "`$.looks[0]"),
        (with_table(rows=[[1]]), "1 cells for 4 columns"),
        (with_table(rows=[[10**400, 1, 1, 1]]), "larger than anything"),
        (with_table(rows=[[{"a": 1}, 1, 1, 1]]), "unknown field"),
        (with_table(rows=[[{"values": []}, 1, 1, 1]]), "length >= 1"),
        (with_table(rows=[[{"middle": 1.0, "low": 0.0}, 1, 1, 1]]), "neither samples nor"),
        (with_table(plots=[{"kind": "pie"}]), "$.tables[0].plots[0].kind"),
        (
            with_table(columns=[{"name": "n", "unit": "", "spec": ".999999999f"}], rows=[]),
            "no number is shown as '.999999999f'",
        ),
    ],
)
def test_what_is_no_report_is_refused_by_its_place(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(RequestError) as refused:
        read_report(path)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_or_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_report(tmp_path / "none.json")
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(RequestError, match="is no report"):
        read_report(path)
    with path.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(RequestError, match="more than the 16,777,216 bytes"):
        read_report(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(_JSON, st.sampled_from(sorted(section("s", table()).as_json())))
def test_any_json_in_place_of_a_field_is_read_or_refused(value: Any, field: str) -> None:
    found = {**section("s", table()).as_json(), field: value}
    # A ValueError is what `read_report` turns into its refusal.
    with suppress(ValueError):
        section_of(found)


_EXTREME = st.one_of(
    st.sampled_from([0.0, -1.0, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]), st.floats()
)


@given(st.lists(_EXTREME, min_size=1, max_size=4), st.none() | _EXTREME, _EXTREME, st.booleans())
@example([1e308, 1e308], None, -1.0, False)  # whose median is infinite
@example([5e-324, 1e308], None, 1e300, True)
def test_samples_of_any_numbers_have_an_interval(
    values: list[float], level: float | None, moved: float, paired: bool
) -> None:
    samples = Samples(tuple(values), level, paired, 0.0, moved)
    found = section_of(
        json.loads(stored(section("s", table(rows=(("a", 1, samples, None),))).as_json()))
    )
    cell = found.tables[0].rows[0][2]
    assert isinstance(cell, Samples)
    assert isinstance(cell.low, float)
    assert COLUMNS[2].shown(cell)


def test_columns_of_every_section_can_be_read_back() -> None:
    assert section_of(section("s", table(plots=())).as_json()).tables[0].columns == COLUMNS
    assert report().as_json()["report"] == 3
