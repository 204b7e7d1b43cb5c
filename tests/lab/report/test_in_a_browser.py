"""The page in a real browser: it asks for nothing, fits a phone, and can be read by everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe

from farthing.lab.report.page import render
from lab.report.made_report import whole
from serve.page.conftest import browser  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

WIDTHS = {"desktop": 1280, "phone": 360}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(whole()), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest, address: str) -> Iterator[Page]:  # noqa: F811
    """Fails on anything asked for but the file, and on any word of the console."""
    # The axe runs despite the page's policy, without which nothing would be asked for either.
    context = browser.new_context(color_scheme=request.param, bypass_csp=True)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.on("console", lambda each: said.append(each.text))
    page.on("pageerror", lambda each: said.append(str(each)))
    page.goto(address)
    yield page
    context.close()
    assert (asked, said) == ([address], [])


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_everything_is_named_ordered_and_contrasted_enough(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert not found.violations_count, "".join(
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}\n"
        for each in found.response["violations"]
    )


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_differ_and_paper_is_white(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = page.evaluate(ground)
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert seen != "rgb(255, 255, 255)"
    assert len(page.pdf()) > 10_000


def test_every_picture_has_a_size_and_its_text_lies_within_the_page(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    boxes = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map((each) => {"
        " const box = each.getBoundingClientRect(); return [box.width, box.height]; })"
    )
    assert len(boxes) == 5
    assert all(width > 250 and height > 100 for width, height in boxes)
