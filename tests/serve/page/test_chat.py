from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from farthing.serve.reasoning import USUAL
from serve.page.talking import answering, answers, ask, open_page, question, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from farthing.serve.state import ServerState
    from serve.server import Served

LONG = "One word after another. " * 40


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """A server whose answers take some seconds."""
    with serving(answering(LONG, seconds=0.005)) as served:
        yield served


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    with serving(
        answering("It is **blue**.", "Because I *said* so.", "No more of that.", seconds=0.01)
    ) as served:
        yield served


def test_an_answer_streams_and_says_what_it_took(page: Page, quick: Served) -> None:
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    expect(answers(page)).to_have_text("It is blue.")
    expect(answers(page).locator("strong")).to_have_text("blue")
    meta = page.locator(".message[data-role=assistant] .meta")
    expect(meta).to_have_text(
        re.compile(
            r"^16 tokens · first after [\d.]+ m?s · [\d,.]+ tokens/s · prompt of 43 tokens, none"
        )
    )


def test_what_was_said_goes_along_and_comes_from_the_cache(page: Page, quick: Served) -> None:
    open_page(page, quick)
    page.get_by_label("System message").fill("Be brief. " * 12)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Why?")
    body = json.loads(sent.value.post_data or "")
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"] == "It is **blue**."
    wait_done(page)
    expect(answers(page).nth(1)).to_have_text("Because I said so.")
    expect(page.locator(".meta").last).to_have_text(re.compile(r"[1-9]\d+ of them cached"))


def test_the_settings_go_along_and_outlive_a_reload(page: Page, quick: Served) -> None:
    open_page(page, quick)
    page.get_by_label("Temperature").fill("1.25")
    page.get_by_label("Most tokens").fill("5")
    page.get_by_label("Seed").fill("7")
    open_page(page, quick)
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hello")
    body = json.loads(sent.value.post_data or "")
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (1.25, 5, 7)
    wait_done(page)
    expect(page.locator(".meta").last).to_contain_text("ended at the limit")
    page.get_by_role("button", name="Back to the defaults").click()
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hello")
    assert {"max_tokens", "seed"}.isdisjoint(json.loads(sent.value.post_data or ""))


def test_a_setting_that_makes_no_sense_is_marked_and_not_taken(page: Page, quick: Served) -> None:
    open_page(page, quick)
    field = page.get_by_label("Temperature")
    field.fill("9")
    expect(field).to_have_attribute("aria-invalid", "true")
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hello")
    assert json.loads(sent.value.post_data or "")["temperature"] == 0.7


@pytest.mark.parametrize("way", ["Escape", "button"])
def test_an_answer_is_stopped_in_the_middle_and_its_blocks_are_free(
    page: Page, slow: Served, way: str
) -> None:
    open_page(page, slow)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    wait_done(page)
    kept = answers(page).inner_text()
    assert LONG.startswith(kept)
    assert 0 < len(kept) < len(LONG) - 10
    expect(page.locator(".meta").last).to_contain_text("You stopped it.")
    slow.wait_idle()


def test_a_stopped_answer_is_part_of_the_chat(page: Page, slow: Served) -> None:
    open_page(page, slow)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    page.keyboard.press("Escape")
    wait_done(page)
    kept = answers(page).inner_text()
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Go on")
    body = json.loads(sent.value.post_data or "")
    assert body["messages"][1]["content"].strip() == kept
    page.keyboard.press("Escape")
    wait_done(page)


def test_a_reload_keeps_the_chat_even_in_the_middle_of_an_answer(page: Page, slow: Served) -> None:
    open_page(page, slow)
    ask(page, "Talk to me")
    expect(answers(page)).to_contain_text("another")
    page.reload()
    expect(page.locator(".message[data-role=user] .text")).to_have_text("Talk to me")
    assert LONG.startswith(answers(page).inner_text())
    expect(page.locator(".meta").last).to_contain_text("left before it ended")
    slow.wait_idle()


def test_retry_asks_for_another_answer_in_the_same_place(page: Page, quick: Served) -> None:
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    with page.expect_request("**/chat/completions") as sent:
        page.get_by_role("button", name="Ask for another answer").click()
    assert len(json.loads(sent.value.post_data or "")["messages"]) == 1
    wait_done(page)
    expect(page.locator(".message")).to_have_count(2)
    expect(answers(page)).to_have_text("It is blue.")


def test_copy_gives_the_words_as_the_model_wrote_them(page: Page, quick: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    button = page.get_by_role("button", name="Copy this answer")
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "It is **blue**."


def test_copy_works_without_the_new_clipboard(page: Page, quick: Served) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    page.get_by_role("button", name="Copy this answer").click()
    expect(page.get_by_role("button", name="Copy this answer")).to_have_text("Copied")
    question(page).press("Control+v")
    expect(question(page)).to_have_value("It is **blue**.")


def test_a_new_chat_begins_empty_and_the_old_one_can_be_gone_back_to(
    page: Page, quick: Served
) -> None:
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(page.get_by_role("heading", name="What shall we talk about?")).to_be_visible()
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Another thing")
    assert len(json.loads(sent.value.post_data or "")["messages"]) == 1
    wait_done(page)
    page.get_by_role("button", name="Which colour is the sky?").click()
    expect(page.locator(".message[data-role=user] .text")).to_have_text("Which colour is the sky?")
    expect(answers(page)).to_have_text("It is blue.")


def test_leaving_a_chat_for_a_new_one_stops_its_answer_and_keeps_it(
    page: Page, slow: Served
) -> None:
    open_page(page, slow)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    slow.wait_idle()
    page.locator("#chats").get_by_role("button", name="Talk").click()
    expect(page.locator(".meta").last).to_contain_text("You stopped it.")


def test_clearing_asks_first_and_forgets_everything(page: Page, quick: Served) -> None:
    open_page(page, quick)
    ask(page, "A secret")
    wait_done(page)
    page.get_by_role("button", name="Clear all chats").click()
    page.keyboard.press("Escape")
    expect(page.locator(".message")).to_have_count(2)
    page.get_by_role("button", name="Clear all chats").click()
    page.get_by_role("button", name="Clear them").click()
    expect(page.locator(".message")).to_have_count(0)
    assert "secret" not in page.evaluate("JSON.stringify({ ...sessionStorage, ...localStorage })")


def test_nothing_that_was_said_is_kept_outside_the_tab(page: Page, quick: Served) -> None:
    open_page(page, quick)
    ask(page, "A secret")
    wait_done(page)
    assert "secret" in page.evaluate("JSON.stringify({ ...sessionStorage })")
    assert "secret" not in page.evaluate("JSON.stringify({ ...localStorage })")
    assert page.evaluate("document.cookie") == ""


def test_a_browser_that_keeps_nothing_can_chat_all_the_same(page: Page, quick: Served) -> None:
    page.add_init_script(
        "for (const name of ['sessionStorage', 'localStorage'])"
        "  Object.defineProperty(window, name, { get() { throw new DOMException('no') } })"
    )
    open_page(page, quick)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    expect(answers(page)).to_have_text("It is blue.")
    expect(page.locator("#context-use")).to_contain_text("This browser keeps no more")


def test_a_browser_that_is_full_forgets_the_oldest_chats_first(page: Page, quick: Served) -> None:
    page.add_init_script(
        "const keep = Storage.prototype.setItem;"
        "Storage.prototype.setItem = function (name, value) {"
        "  if (value.length > (window.most ?? 1e9)) throw new DOMException('full');"
        "  keep.call(this, name, value);"
        "};"
    )
    open_page(page, quick)
    for text in ("The oldest", "The newest"):
        page.get_by_role("button", name="New chat").click()
        ask(page, text)
        wait_done(page)
    page.evaluate("window.most = sessionStorage.getItem('farthing.chats').length + 100")
    ask(page, "More of it")
    wait_done(page)
    page.reload()
    expect(page.locator(".message[data-role=user] .text").last).to_have_text("More of it")
    expect(answers(page)).to_have_count(2)
    assert "The oldest" not in page.evaluate("JSON.stringify({ ...sessionStorage })")


def test_a_system_message_that_changed_is_named_where_it_cost_a_long_prompt(
    page: Page, quick: Served
) -> None:
    open_page(page, quick)
    page.get_by_label("System message").fill("It is Monday. " + "Be kind to everybody. " * 8)
    ask(page, "Which colour is the sky?")
    wait_done(page)
    expect(page.locator(".miss:visible")).to_have_count(0)
    page.get_by_label("System message").fill("It is Friday. " + "Be kind to everybody. " * 8)
    ask(page, "Why?")
    wait_done(page)
    miss = page.locator(".message").last.locator(".miss")
    expect(miss).to_contain_text(
        re.compile(r"\d+ tokens of the prompt were read again: in the first")
    )
    expect(miss).to_contain_text("Friday")


def test_reasoning_can_be_opened_beside_the_answer_and_is_not_sent_again(page: Page) -> None:
    def reasons(state: ServerState) -> None:
        state.reasoning = USUAL

    engine = answering("<think>Rayleigh scattering.</think>It is blue.", seconds=0.002)
    with serving(engine, prepare=reasons) as served:
        open_page(page, served)
        ask(page, "Which colour is the sky?")
        wait_done(page)
        expect(answers(page)).to_have_text("It is blue.")
        thoughts = page.get_by_text("Rayleigh scattering.")
        expect(thoughts).to_be_hidden()
        summary = page.locator("summary", has_text="Reasoning")
        summary.focus()
        page.keyboard.press("Enter")
        expect(thoughts).to_be_visible()
        with page.expect_request("**/chat/completions") as sent:
            ask(page, "Why?")
        assert "Rayleigh" not in (sent.value.post_data or "")
        wait_done(page)
