from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from serve.page.talking import answers, ask, open_page, wait_done

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from serve.server import Served


def test_the_default_model_answers_and_its_card_says_what_it_is(
    page: Page, real_server: Served
) -> None:
    open_page(page, real_server)
    card = page.locator("#card")
    for words in ("smollm2-135m", "llama", "134.5 million", "Q4_1", "1,024 tokens", "Apache-2.0"):
        expect(card).to_contain_text(words)
    expect(card).to_contain_text("no receipt")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("64")
    ask(page, "Why is the sky blue?")
    wait_done(page)
    expect(answers(page)).to_contain_text("light")
    expect(page.locator(".meta")).to_have_text(re.compile(r"^\d+ tokens · first after .* tokens/s"))
    ask(page, "And at night?")
    wait_done(page)
    expect(page.locator(".meta").last).to_have_text(re.compile(r"[1-9]\d* of them cached"))


def test_the_default_model_is_stopped_in_the_middle(page: Page, real_server: Served) -> None:
    open_page(page, real_server)
    ask(page, "Write a long story about a bird.")
    expect(answers(page)).to_have_text(re.compile(r"\w+ \w+"))
    page.keyboard.press("Escape")
    wait_done(page)
    expect(page.locator(".meta")).to_contain_text("You stopped it.")
    real_server.wait_idle()
