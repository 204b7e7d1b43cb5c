"""The page: well-formed, asks for nothing, says everything, and lets no name become markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from farthing.lab.report.chart import draw
from farthing.lab.report.frame import patterns
from farthing.lab.report.page import render
from farthing.lab.table import Plot
from lab.report.made_report import HOSTILE, PROVENANCE, report, section, table, whole

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that every tag is closed in its turn, and keeps what it finds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    return render(whole())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_element_is_closed_in_its_turn_and_every_id_is_one(page: Page) -> None:
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids))
    targets = {str(found["href"])[1:] for found in page.named("a")}
    assert targets <= set(ids)
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))


def test_it_asks_for_nothing_and_runs_nothing(page: Page, text: str) -> None:
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"} == set()
    for _, found in page.tags:
        assert not {"src", "srcset", "onclick", "onload", "style"} & set(found)
        assert str(found.get("href", "#")).startswith("#")
    style = text.split("<style>")[1].split("</style>")[0]
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) == {f"#fill-{n}" for n in range(4)}
    policy = page.named("meta")[-1]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_no_name_becomes_markup_or_a_control_character(text: str, page: Page) -> None:
    assert "<script" not in text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", text)
    words = " ".join(page.words)
    assert words.count("<script>alert(1)</script>") > 10
    text.encode("utf-8")


def test_every_picture_is_sound_xml_with_a_title_and_a_description(text: str) -> None:
    pictures = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    shown = [ET.fromstring(each) for each in pictures if "<pattern" not in each]
    assert len(shown) == 5
    space = "{http://www.w3.org/2000/svg}"
    for root in shown:
        assert root.get("role") == "img"
        names = str(root.get("aria-labelledby")).split()
        assert [root[0].get("id"), root[1].get("id")] == names
        assert [root[0].tag, root[1].tag] == [f"{space}title", f"{space}desc"]
        for each in root.iter():
            assert "nan" not in " ".join(map(str, each.attrib.values()))
            assert "inf" not in " ".join(map(str, each.attrib.values()))
    ET.fromstring(patterns())


def test_series_are_told_apart_without_their_colours(text: str) -> None:
    lines = re.findall(r"<svg .*?</svg>", text, re.DOTALL)[1]
    strokes = set(
        re.findall(r'<path [^>]*class="stroke (series-\d)"(?: stroke-dasharray="([^"]*)")?', lines)
    )
    assert strokes == {("series-0", "")}  # the other has one point
    assert "<circle" in lines
    assert 'points="' in lines
    assert 'stroke-dasharray="7 4"' in lines
    assert '<pattern id="fill-1"' in text


def test_tables_have_captions_scopes_units_and_intervals(page: Page, text: str) -> None:
    assert len(page.named("table")) == len(page.named("caption")) == 3
    assert {str(found["scope"]) for found in page.named("th")} == {"col", "row"}
    assert '<span class="unit">tokens</span>' in text
    assert re.search(r'2\.00 <span class="spread">1\.00 to 3\.00</span>', text)
    assert re.search(r'50\.0 <span class="spread">40\.0 to 60\.0</span>', text)


def test_expectations_are_counted_at_the_top_and_the_contradicted_come_first(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    assert "1 contradicted 1 not judged here 1 met" in words
    assert words.index("✗ contradicted") < words.index("– not judged here") < words.index("✓ met")
    assert words.index("✓ met") < words.index("about first Times")


def test_what_was_skipped_and_what_failed_is_told_with_the_reason(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    assert "Skipped: all of it: because" in words
    assert "What failed" in words
    assert "it broke: <script>" in words
    assert "farthing lab third m" in words


def test_where_it_comes_from_stands_at_the_end(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    end = words[words.rindex("Where this comes from") :]
    for told in (
        "ab" * 32,
        "P & Q",
        "17,179,869,184",
        "kernels",
        "k1",
        "seed 7",
        "farthing lab all m",
    ):
        assert told in end
    assert "farthing lab first m" in end
    assert "from 2026-01-01T10:00:00+00:00" in end


def test_it_is_for_light_and_dark_for_phones_and_for_paper(page: Page, text: str) -> None:
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named(
        "meta"
    )
    assert "color-scheme: light dark" in text
    assert "@media print" in text
    assert "@media (max-width" in text


def test_a_plot_of_nothing_is_not_drawn() -> None:
    empty = table(rows=(("a", 1, None, None),))
    assert draw(empty, Plot("lines", "size", ("time",)), "x") == ""
    assert "<figure" not in render(report(section("s", empty)))


def test_a_path_is_called_by_its_last_part() -> None:
    named = whole().provenance | {"model": {"name": "/a/b/c.gguf", "path": "", "sha256": ""}}
    assert "<h1>c.gguf</h1>" in render(report(provenance=named))
    hub = named | {"model": {"name": "owner/name", "path": "", "sha256": ""}}
    assert "<h1>owner/name</h1>" in render(report(provenance=hub))


def test_what_has_no_place_on_an_axis_is_named_under_it() -> None:
    drawn = draw(table(), Plot("points", "size", ("time",), y_scale="log", labels="name"), "x")
    assert "no place on this axis: c" in drawn
    assert HOSTILE not in drawn


def test_one_of_a_thing_is_told_as_one() -> None:
    where = PROVENANCE | {
        "rounds": 1,
        "threads": 1,
        "machine": PROVENANCE["machine"] | {"cores": 1},
    }
    words = " ".join(Page(render(report(provenance=where))).words)
    for one in ("1 round,", "1 thread,", "1 core,"):
        assert one in words
    assert not re.search(r"\b1 (rounds|threads|cores|readings)\b", words)
