"""What the page tells of usage and money."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from farthing.serve.settings import USUAL_USAGE_STORE
from farthing.serve.usage import open_usage
from serve.page.talking import answering, ask, open_page, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from farthing.serve.state import ServerState
    from serve.server import Served


def counting(tmp_path: Path, **settings: Any) -> AbstractContextManager[Served]:
    def counted(state: ServerState) -> None:
        state.usage = open_usage(state.settings, "scripted")

    usual = {"usage_store": str(tmp_path / "usage.sqlite")}
    engine = answering("It is blue.", seconds=0.001)
    return serving(engine, prepare=counted, **{**usual, **settings})


def rows(section: Locator, name: str) -> list[str]:
    """The values of a name: of today, and of all."""
    return section.locator(".facts > div", has_text=name).locator("dd").all_text_contents()


def test_what_was_used_and_what_it_cost_is_shown_and_grows(page: Page, tmp_path: Path) -> None:
    with counting(tmp_path, price_per_hour=3600.0, currency="EUR") as served:
        open_page(page, served)
        section = page.get_by_role("region", name="Usage")
        expect(section).to_be_visible()
        expect(section.locator("dd").first).to_have_text("0")
        for number in (1, 2):
            ask(page, "Which colour is the sky?")
            wait_done(page)
            expect(section.locator("dd").first).to_have_text(str(number))
        assert rows(section, "Tokens written") == ["24", "24"]
        assert all(
            re.fullmatch(r"[\d,]+ \(\d+ % cached\)", each) for each in rows(section, "Prompt")
        )
        for cost in rows(section, "Cost"):
            assert re.fullmatch(r"\u20ac\d+\.\d{2,6}", cost)
            assert cost != "\u20ac0.00"


@pytest.mark.parametrize(("price", "shown"), [(0.0, False), (7200.0, True)])
def test_money_is_shown_where_there_is_a_price_in_whatever_currency(
    page: Page, tmp_path: Path, price: float, shown: bool
) -> None:
    with counting(tmp_path, price_per_hour=price, currency="beans") as served:
        open_page(page, served)
        section = page.get_by_role("region", name="Usage")
        expect(section).to_be_visible()
        costs = rows(section, "Cost")
        assert costs == (["0.00 beans", "0.00 beans"] if shown else [])


@pytest.mark.parametrize("home", ["absent", "."])
def test_usage_that_is_lost_when_the_server_ends_is_said_to_be(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / home))
    with counting(tmp_path, usage_store=USUAL_USAGE_STORE) as served:
        open_page(page, served)
        section = page.get_by_role("region", name="Usage")
        expect(section).to_be_visible()
        note = section.get_by_text("lost when the server ends")
        expect(note).to_have_count(1 if home == "absent" else 0)


def test_where_no_usage_is_kept_nothing_is_said_of_it(page: Page) -> None:
    with serving(answering("Blue.")) as served:
        open_page(page, served)
        expect(page.locator("#live-running")).to_have_text("0 of 64")
        ask(page, "x")
        wait_done(page)
        expect(page.locator("#usage-section")).to_be_hidden()
