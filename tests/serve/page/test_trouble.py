from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import create_autospec

from playwright.sync_api import expect

from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.keys import load_keys
from farthing.serve.state import Ticket
from serve.page.proxy import line_to
from serve.page.talking import answering, answers, ask, open_page, question, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from farthing.serve.state import ServerState

LONG = "One word after another. " * 60
SECRET = "a-secret-that-is-long-enough"


@dataclass
class Crowded:
    """Admission that refuses as many requests as it is told to, and notes their bodies."""

    refusals: int
    seconds: float
    digests: list[bytes] = field(default_factory=list)

    def admit(self, key: object, *, body_digest: bytes, **_: Any) -> Any:
        self.digests.append(body_digest)
        if len(self.digests) > self.refusals:
            return create_autospec(Ticket, instance=True)
        raise ApiError(
            429,
            "the wait would be too long",
            code="queue_full",
            headers=retry_headers(self.seconds),
        )


def test_a_busy_server_is_counted_down_to_and_asked_again_by_itself_on_wish(page: Page) -> None:
    crowded = Crowded(refusals=1, seconds=2.5)

    def prepare(state: ServerState) -> None:
        state.admission = crowded

    with serving(answering("Now it is your turn."), prepare=prepare) as served:
        open_page(page, served)
        ask(page, "Hello")
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("The server is busy. The wait would be too long.")
        expect(notice).to_contain_text(re.compile(r"There should be room in [123] second"))
        expect(page.locator("#send")).to_have_text("Send")
        notice.get_by_role("button", name="Ask again by itself then").click()
        expect(notice.get_by_role("button")).to_have_attribute("aria-pressed", "true")
        expect(answers(page)).to_have_text("Now it is your turn.")
        expect(notice).to_be_hidden()
    # The server knows who comes back as told by the body, and keeps its place.
    assert len(crowded.digests) == 2
    assert crowded.digests[0] == crowded.digests[1]


def test_a_busy_server_is_not_asked_again_unless_one_wants_to(page: Page) -> None:
    crowded = Crowded(refusals=1, seconds=0.3)

    def prepare(state: ServerState) -> None:
        state.admission = crowded

    with serving(answering("Now it is your turn."), prepare=prepare) as served:
        open_page(page, served)
        ask(page, "Hello")
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("There should be room now.")
        page.wait_for_timeout(500)
        assert len(crowded.digests) == 1
        notice.get_by_role("button", name="Ask again now").click()
        expect(answers(page)).to_have_text("Now it is your turn.")


def test_an_error_in_the_middle_keeps_what_had_come_and_says_why(page: Page) -> None:
    engine = answering(LONG, seconds=0.005)
    with serving(engine, request_seconds=1.5) as served:
        open_page(page, served)
        ask(page, "Talk")
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("did not end within the time it had")
        expect(notice).to_contain_text("What had come is kept.")
        kept = answers(page).inner_text()
        assert LONG.startswith(kept)
        assert len(kept) > 10
        page.reload()
        expect(answers(page)).to_have_text(kept)
        expect(page.get_by_role("alert")).to_contain_text("did not end within the time it had")
        page.get_by_role("button", name="Ask again").click()
        expect(notice).to_be_hidden()
        expect(answers(page)).to_contain_text("One")


def test_a_chat_too_long_for_the_context_is_told_so(page: Page) -> None:
    with serving(answering("Never.", context_length=64)) as served:
        open_page(page, served)
        ask(page, "x" * 200)
        expect(page.get_by_role("alert")).to_contain_text("the context holds 64")
        # A question without an answer is not sent along with the next.
        with page.expect_request("**/chat/completions") as sent:
            ask(page, "short")
        assert len(json.loads(sent.value.post_data or "")["messages"]) == 1
        wait_done(page)


def test_a_line_that_is_cut_keeps_the_words_and_the_page_finds_back(page: Page) -> None:
    with serving(answering(LONG, seconds=0.01)) as served, line_to(served.port) as line:
        page.goto(line.url)
        status = page.locator("#status")
        expect(status).to_have_text("Ready")
        ask(page, "Talk")
        expect(answers(page)).to_contain_text("another")
        line.cut()
        expect(page.get_by_role("alert")).to_contain_text("The connection was lost")
        expect(status).to_have_text("Not reached")
        expect(page.locator("#banner")).to_contain_text("The server does not answer.")
        expect(page.locator("#banner")).to_contain_text(re.compile(r"Trying( again in \d second)?"))
        assert LONG.startswith(answers(page).inner_text())
        question(page).fill("Are you there?")
        page.keyboard.press("Enter")
        expect(question(page)).to_have_value("Are you there?")  # it is not thrown away
        line.mend()
        page.get_by_role("button", name="Try now").click()
        expect(status).to_have_text("Ready")
        expect(page.locator("#banner")).to_be_hidden()
        page.keyboard.press("Tab")
        question(page).press("Enter")
        expect(answers(page).nth(1)).to_contain_text("One")


def test_a_server_that_is_gone_is_found_again_without_a_click(page: Page) -> None:
    with serving(answering("Hello.")) as served, line_to(served.port) as line:
        page.goto(line.url)
        status = page.locator("#status")
        expect(status).to_have_text("Ready")
        line.cut()
        expect(status).to_have_text("Not reached")
        line.mend()
        expect(status).to_have_text("Ready")


def test_while_the_model_is_loaded_the_progress_is_shown_and_then_one_can_chat(
    page: Page,
) -> None:
    engine = answering("Here I am.")

    def prepare(state: ServerState) -> None:
        state.engine = None
        state.loading.phase, state.loading.fraction = "fetching the model", 0.4

    with serving(engine, prepare=prepare) as served:
        page.goto(served.url)
        banner = page.locator("#banner")
        expect(banner).to_contain_text("The model is being loaded")
        expect(banner).to_contain_text("fetching the model, 40 %")
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.4")
        ask(page, "Are you there?")
        expect(question(page)).to_have_value("Are you there?")
        served.state.loading.phase, served.state.loading.fraction = "packing", None
        expect(banner).to_contain_text("packing")
        assert page.get_by_role("progressbar").get_attribute("value") is None
        served.state.engine = engine
        expect(page.locator("#status")).to_have_text("Ready")
        expect(banner).to_be_hidden()
        question(page).press("Enter")
        expect(answers(page)).to_have_text("Here I am.")


def test_a_load_that_failed_and_a_server_that_shuts_down_are_told(page: Page) -> None:
    def prepare(state: ServerState) -> None:
        state.engine = None
        state.loading.failure = "the file is cut off at byte 17"

    engine = answering("Here I am.")
    with serving(engine, prepare=prepare) as served:
        page.goto(served.url)
        expect(page.locator("#banner")).to_contain_text("cut off at byte 17")
        served.state.loading.failure = None
        served.state.engine = engine
        expect(page.locator("#status")).to_have_text("Ready")
        served.state.draining = True
        expect(page.locator("#status")).to_have_text("Shutting down")


def with_a_key(state: ServerState) -> None:
    state.keys = load_keys(state.settings)


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(page: Page) -> None:
    with serving(answering("Welcome."), prepare=with_a_key, api_key=SECRET) as served:
        page.goto(served.url)
        dialog = page.get_by_role("dialog", name="This server wants a key")
        expect(dialog).to_contain_text("Whoever runs it can give you one.")
        dialog.get_by_label("API key").fill("wrong-wrong-wrong-wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("Key wanted")
        expect(page.locator("#banner")).to_contain_text("does not know this key")
        page.get_by_role("button", name="Enter a key").click()
        dialog.get_by_label("API key").fill(SECRET)
        dialog.get_by_role("button", name="Use this key").click()
        expect(page.locator("#status")).to_have_text("Ready")
        ask(page, "Hello")
        expect(answers(page)).to_have_text("Welcome.")
        page.reload()
        expect(page.locator("#status")).to_have_text("Ready")
        assert SECRET in page.evaluate("JSON.stringify({ ...sessionStorage })")
        assert SECRET not in page.evaluate("JSON.stringify({ ...localStorage })")
        assert SECRET not in page.content()
