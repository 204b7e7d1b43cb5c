from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from serve.page.talking import answering, answers, ask, figure, open_page, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from farthing.serve.state import ServerState
    from serve.server import Served

LONG = "One word after another. " * 60


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(answering(LONG, seconds=0.004)) as served:
        yield served


def test_the_figures_move_while_an_answer_is_written_and_come_to_rest(
    page: Page, server: Served
) -> None:
    open_page(page, server)
    expect(page.locator("#live-running")).to_have_text("0 of 64")
    free = figure(page, "free")
    ask(page, "Talk")
    expect(page.locator("#live-running")).to_have_text("1 of 64")
    speed = page.locator(".figure")
    expect(speed).not_to_have_text("0.0")
    expect(page.locator("#live-held")).not_to_have_text("0 tokens")
    assert figure(page, "free") != free
    line = page.locator(".sparkline .line")
    expect(line).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+L"))
    picture = page.get_by_role("img", name=re.compile(r"Tokens written a second .*: now \d"))
    expect(picture).to_be_visible()
    page.keyboard.press("Escape")
    wait_done(page)
    expect(page.locator("#live-running")).to_have_text("0 of 64")
    expect(page.locator("#live-held")).to_have_text("0 tokens")
    expect(page.locator("#live-cached")).not_to_have_text("0 tokens")
    expect(page.locator("#live-first")).to_contain_text("on average")
    expect(speed).to_have_text("0.0")


def test_the_three_parts_of_the_cache_are_all_there_is(page: Page, server: Served) -> None:
    open_page(page, server)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    parts = page.evaluate(
        "[...document.querySelectorAll('.cache-bar span')].map((part) => +part.style.flexGrow)"
    )
    assert sum(parts) == server.engine.stats().free_blocks + sum(
        (server.engine.stats().held_blocks, server.engine.stats().cached_blocks)
    )
    page.keyboard.press("Escape")


def test_a_hidden_page_asks_for_no_figures(page: Page, server: Served) -> None:
    open_page(page, server)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true });"
    page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(1500)  # what was under way may have asked once more
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []
    with page.expect_request("**/stats"):
        page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")


def described(receipt: dict[str, Any] | None) -> Any:
    from dataclasses import replace

    def prepare(state: ServerState) -> None:
        assert state.card is not None
        description = {
            "architecture": "llama",
            "parameters": 134_515_008,
            "formats": {"Q4_1": 211, "F32": 61},
            "cache_tokens": 32768,
            "kv_dtype": "fp16",
            "memory_bytes": {"weights": 98_000_000, "cache": 377_000_000},
            "isa": "avx512-vnni",
            "threads": 2,
            "licence": "Apache-2.0",
        }
        state.card = replace(state.card, description=description, receipt=receipt)

    return prepare


def test_the_model_card_says_what_is_served_and_that_it_has_no_receipt(page: Page) -> None:
    with serving(answering("Hello."), prepare=described(None)) as served:
        open_page(page, served)
        card = page.locator("#card")
        expect(card).to_contain_text("no receipt")
        for words in (
            "scripted",
            "llama",
            "134.5 million",
            "Q4_1\u00a0(211\u00a0tensors), F32\u00a0(61)",
            "8,192 tokens",
            "32,768 tokens in fp16",
            "475 MB",
            "avx512-vnni",
            "Apache-2.0",
        ):
            expect(card).to_contain_text(words)


def test_the_model_card_shows_a_measured_number_with_its_interval(page: Page) -> None:
    kl = {"mean": {"value": 0.0501234, "low": 0.0451, "high": 0.05512}, "largest": 1.5}
    receipt = {"kl": kl, "methods": [], "warnings": ["one", "two"], "battery": None}
    with serving(answering("Hello."), prepare=described(receipt)) as served:
        open_page(page, served)
        card = page.locator("#card")
        for words in ("0.05012 (0.0451 to 0.05512)", "1.5", "one; two", "none"):
            expect(card).to_contain_text(words)


def test_the_model_card_begins_with_what_people_ask_a_receipt_for(page: Page) -> None:
    receipt = {
        "scheme": "int4-g64",
        "methods": ["gptq"],
        "bits_per_weight": 4.25,
        "reference": {"name": "original", "bits_per_weight": 16.0, "precision": {"isa": "avx2"}},
        "perplexity_ratio": {"value": 1.0512, "low": 1.031, "high": 1.07},
        "kl": {"mean": {"value": 0.0501, "low": 0.0451, "high": 0.0551}},
        "agreement": {"value": 0.921, "low": 0.911, "high": 0.93},
        "battery": {"questions": 200, "correct": 101, "reference_correct": 106},
        "warnings": ["the reference is no full precision"],
    }
    with serving(answering("Hello."), prepare=described(receipt)) as served:
        open_page(page, served)
        card = page.locator("#card")
        for name, value in (
            ("Scheme", "int4-g64 with gptq, 4.25 bits a weight"),
            ("Measured against", "original, 16 bits a weight"),
            ("Same next token", "92 % (91 % to 93 %)"),
            ("Perplexity", "\u00d7\u00a01.051 (\u00d7\u00a01.031 to \u00d7\u00a01.07)"),
            ("KL divergence", "0.0501 (0.0451 to 0.0551)"),
            ("Questions right", "101 of 200 (before: 106)"),
        ):
            row = card.locator(".facts > div", has_text=name).first
            expect(row.locator("dd")).to_have_text(value)
            expect(row).to_be_visible()
        expect(card).to_contain_text("Note: the reference is no full precision.")
        deep = card.get_by_text("avx2")
        expect(deep).to_be_hidden()
        card.get_by_text("The whole receipt").click()
        expect(deep).to_be_visible()


def test_the_model_card_says_that_a_receipt_is_being_checked_or_why_it_is_refused(
    page: Page,
) -> None:
    from dataclasses import replace

    def prepare(state: ServerState) -> None:
        assert state.card is not None
        state.card = replace(state.card, description={"receipt": "refused: other weights"})

    with serving(answering("Hello."), prepare=prepare) as served:
        open_page(page, served)
        card = page.locator("#card")
        expect(card).to_contain_text("refused: other weights")
        expect(card).not_to_contain_text("no receipt")
        expect(card).not_to_contain_text("Nobody has measured")


def test_the_model_card_shows_the_whole_receipt(page: Page) -> None:
    receipt = {"perplexity": 12.34, "agreement": {"top_1": 0.973, "tokens": 4096}}
    with serving(answering("Hello."), prepare=described(receipt)) as served:
        open_page(page, served)
        card = page.locator("#card")
        for words in ("perplexity", "12.34", "top 1", "0.973", "4096"):
            expect(card).to_contain_text(words)
        expect(card).not_to_contain_text("no receipt")
