"""What the tests of the page say and read: through what a person sees, where that is possible."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from playwright.sync_api import expect

from engine.scripted import EOS, TURN
from engine.scripted import engine as scripted_engine

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from playwright.sync_api import Locator, Page

    from farthing.engine.engine import Engine
    from serve.server import Served

_LEAD = len("assistant: ")


def answering(*answers: str, seconds: float = 0.0, **sizes: Any) -> Engine:
    """An engine that says the first text to the first question of a chat, and so on, round about.

    A token is a byte, and takes at least so many seconds.
    """

    def next_token(prefix: NDArray[np.int32]) -> int:
        if seconds:
            time.sleep(seconds)
        turns = np.flatnonzero(prefix == TURN)
        said = len(prefix) - 1 - int(turns[-1]) - _LEAD
        users = bytes(prefix[prefix < 256].astype(np.uint8)).count(b"user: ")
        answer = [*answers[(users - 1) % len(answers)].encode(), EOS]
        return answer[min(said, len(answer) - 1)]

    return scripted_engine(next_token, **{"context_length": 8192, "total_blocks": 512, **sizes})


def open_page(page: Page, served: Served, path: str = "/") -> None:
    """Returns when the page says that the server is ready."""
    page.goto(served.url + path)
    expect(page.get_by_role("status").first).to_have_text("Ready")


def ask(page: Page, text: str) -> None:
    """Types a question, and sends it by Enter."""
    question(page).fill(text)
    page.keyboard.press("Enter")


def question(page: Page) -> Locator:
    """Where a person writes."""
    return page.get_by_label("Your message", exact=True)


def answers(page: Page) -> Locator:
    """The texts of the answers."""
    return page.locator(".message[data-role=assistant] .text")


def wait_done(page: Page) -> None:
    """Returns when nothing is being answered."""
    expect(page.locator("#send")).to_have_text("Send")


def figure(page: Page, name: str) -> str:
    """One of the live figures, by the id of its place."""
    return page.locator(f"#live-{name}").inner_text()
