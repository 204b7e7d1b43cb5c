"""A real browser, Debian's chromium, with a page of the server in it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
MILLISECONDS = 20_000
"""The patience of every wait: a shared machine makes any single step late."""

expect.set_options(timeout=MILLISECONDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a file: while it is open, its thread can run no other event loop."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        reason = "the page is tested in a real browser, and there is none: apt install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page in a fresh profile. An error in the page, or one of its policy, fails the test.

    Whatever it asks of another host than its own fails the test, too.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(MILLISECONDS)
    page = context.new_page()
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: errors.append(message.text) if is_fault(message.text) else None,
    )
    page.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    yield page
    context.close()
    assert errors == []
    assert hosts <= {"127.0.0.1"}


def is_fault(text: str) -> bool:
    """Whether a line of the console tells of a fault of the page, not of a request refused."""
    return "Content Security Policy" in text or "Trusted" in text
