from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from engine.threads import eventually
from serve.page.talking import answering, answers, ask, open_page, question, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from serve.server import Served

RICH = (
    "# Title\n\nSome **bold** and `code`.\n\n- one\n- two\n\n> quoted\n\n---\n\n"
    "```python\nprint('a line that is a good deal longer than any telephone is wide, and more')\n"
    "```\n\nThe end."
)
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(answering(RICH, context_length=1024)) as served:
        yield served


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serving(answering("One word after another. " * 60, seconds=0.005)) as served:
        yield served


@pytest.fixture(params=["light", "dark"])
def themed(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page in a browser whose owner likes it light, or dark. The axe runs despite the policy."""
    context = browser.new_context(
        color_scheme=request.param, bypass_csp=True, viewport={"width": 1280, "height": 860}
    )
    yield context.new_page()
    context.close()


def check(page: Page) -> None:
    """Fails on whatever axe-core finds: contrast, names, roles, order of headings and more."""
    page.evaluate("document.getAnimations().forEach((each) => each.cancel())")
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert not found.violations_count, "".join(
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}\n"
        for each in found.response["violations"]
    )


def test_everything_is_named_ordered_and_contrasted_enough(themed: Page, server: Served) -> None:
    page = themed
    open_page(page, server)
    check(page)
    ask(page, "Tell me")
    wait_done(page)
    page.locator(".message[data-role=user]").hover()
    page.locator("#card summary").first.click() if page.locator("#card summary").count() else None
    check(page)
    ask(page, "x" * 1200)  # more than the context holds
    expect(page.get_by_role("alert")).to_be_visible()
    check(page)
    page.get_by_role("button", name="API key").click()
    check(page)
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    check(page)
    page.get_by_role("button", name="Panel").click()
    check(page)


def test_what_is_drawn_is_contrasted_enough_while_an_answer_grows_and_the_server_is_gone(
    themed: Page, slow: Served
) -> None:
    page = themed
    open_page(page, slow)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    check(page)
    page.keyboard.press("Escape")
    wait_done(page)
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#banner")).to_be_visible()
    check(page)


CONTRAST = """([selector, property, behind]) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const one = luminance(style(selector)[property]);
  const other = luminance(style(behind).backgroundColor);
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""


@pytest.mark.parametrize(
    ("selector", "edge", "behind", "least"),
    [
        # WCAG 2.2: 4.5 for text (1.4.3), 3 for what shows where a control is (1.4.11)
        ("body", "color", "body", 4.5),
        (".hint", "color", "body", 4.5),
        (".facts dt", "color", ".panel", 4.5),
        ("#composer", "borderTopColor", "body", 3),
        ("#theme", "borderTopColor", ".bar", 3),
        ("#seed", "borderTopColor", ".panel", 3),
        (".sparkline .line", "stroke", ".panel", 3),
        ("[data-part=held]", "backgroundColor", ".panel", 3),
        ("[data-part=held]", "backgroundColor", "[data-part=free]", 3),
        (".status", "color", ".bar", 4.5),
    ],
)
def test_edges_and_pictures_stand_out(
    themed: Page, server: Served, selector: str, edge: str, behind: str, least: float
) -> None:
    open_page(themed, server)
    assert themed.evaluate(CONTRAST, [selector, edge, behind]) >= least


def test_the_switch_goes_from_the_systems_theme_to_light_to_dark_and_is_remembered(
    page: Page, server: Served
) -> None:
    page.emulate_media(color_scheme="dark")
    open_page(page, server)
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    switch = page.get_by_role("button", name="Theme")
    expect(switch).to_have_text("Theme: system")
    switch.click()
    expect(switch).to_have_text("Theme: light")
    light = page.evaluate(colour)
    assert light != dark
    page.reload()
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme").click()
    expect(switch).to_have_text("Theme: dark")
    assert page.evaluate(colour) == dark


@pytest.mark.parametrize("width", [320, 360, 768, 1280, 2200])
def test_nothing_is_cut_off_at_any_width(page: Page, server: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_page(page, server)
    ask(page, "Tell me " + "w" * 300)
    wait_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
    for name in ("#send", "#question", "#new-chat", "#theme", "#status"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 800
    if width < 960:
        page.get_by_role("button", name="Panel").click()
        expect(page.get_by_role("heading", name="Live")).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name="Live")).not_to_be_in_viewport()
    else:
        expect(page.get_by_role("heading", name="Live")).to_be_in_viewport()


def test_twice_the_size_of_letters_still_fits(page: Page, server: Served) -> None:
    page.add_init_script(
        "addEventListener('DOMContentLoaded',"
        " () => (document.documentElement.style.fontSize = '200%'))"
    )
    open_page(page, server)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    expect(page.locator("#send")).to_be_in_viewport()


def test_the_whole_page_works_by_keyboard_and_shows_where_one_is(
    page: Page, server: Served
) -> None:
    open_page(page, server)
    expect(question(page)).to_be_focused()
    seen: set[str] = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "(() => { const here = document.activeElement;"
            " const outlined = (each) => getComputedStyle(each).outlineStyle !== 'none';"
            " if (here === document.body) return ['', true];"
            " return [here.id || here.textContent.trim(), outlined(here) ||"
            "   outlined(here.closest('.composer') ?? here)]; })()"
        )
        name, outlined = here
        if name in seen:
            break
        assert outlined, f"{name} has the focus, and nothing shows it"
        seen.add(name)
    assert {"send", "system", "temperature", "max-tokens", "seed", "clear", "change-key"} <= seen
    assert {"new-chat", "theme", "scroller"} <= seen
    question(page).focus()
    page.keyboard.type("Tell me")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("more")
    page.keyboard.press("Tab")
    expect(page.locator("#send")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".message[data-role=user] .text")).to_have_text("Tell me\nmore")
    wait_done(page)


def test_the_panel_on_a_phone_takes_the_focus_and_gives_it_back(page: Page, server: Served) -> None:
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    open_page(page, server)
    toggle = page.get_by_role("button", name="Panel", exact=True)
    toggle.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close the panel")).to_be_focused()
    expect(toggle).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(toggle).to_be_focused()
    expect(toggle).to_have_attribute("aria-expanded", "false")
    for _ in range(12):  # what is not seen is not walked through either
        page.keyboard.press("Tab")
        assert not page.evaluate(
            "document.querySelector('#panel').contains(document.activeElement)"
        )


def test_a_screen_reader_is_told_sentences_and_the_end_once(page: Page, slow: Served) -> None:
    open_page(page, slow)
    ask(page, "Talk")
    told = page.locator("#announcements p")
    assert page.locator("#announcements").get_attribute("aria-live") == "polite"
    expect(told.first).to_have_text("The answer begins.")
    expect(told.nth(1)).to_have_text("One word after another.")
    expect(answers(page)).to_have_attribute("aria-busy", "true")
    page.keyboard.press("Escape")
    wait_done(page)
    expect(told.last).to_have_text("Stopped.")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    assert told.get_by_text("Stopped.").count() == 1


def test_who_wants_little_motion_gets_none(page: Page, slow: Served) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    open_page(page, slow)
    ask(page, "Talk")
    expect(answers(page)).to_contain_text("another")
    page.get_by_role("button", name="Panel", exact=True).click()
    assert page.evaluate("document.getAnimations().length") == 0
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    wait_done(page)


LEFT = (
    "(({ scrollTop, scrollHeight, clientHeight }) => scrollHeight - scrollTop - clientHeight)"
    "(document.querySelector('#scroller'))"
)
TOP = "document.querySelector('#scroller').scrollTop"


def open_long_answer(page: Page, slow: Served) -> None:
    """Returns while an answer is being written that no longer fits in the window."""
    page.set_viewport_size({"width": 500, "height": 420})
    open_page(page, slow)
    ask(page, "Talk")
    assert eventually(lambda: page.evaluate(TOP) > 60)
    assert page.evaluate(LEFT) < 60


def test_the_newest_words_stay_in_view_unless_one_scrolls_away(page: Page, slow: Served) -> None:
    open_long_answer(page, slow)
    page.locator("#scroller").focus()
    page.keyboard.press("Home")
    assert eventually(lambda: page.evaluate(TOP) == 0)
    page.wait_for_timeout(300)
    assert page.evaluate(TOP) == 0
    page.get_by_role("button", name="To the latest words").click()
    assert eventually(lambda: page.evaluate(TOP) > 60)
    assert page.evaluate(LEFT) < 60
    page.keyboard.press("Escape")
    wait_done(page)


@pytest.mark.parametrize(
    "event",
    [
        "KeyboardEvent('keydown', { key: 'PageUp' })",
        "KeyboardEvent('keydown', { key: ' ', shiftKey: true })",
        "WheelEvent('wheel', { deltaY: -1 })",
    ],
)
def test_words_that_come_before_the_first_step_of_a_scroll_upwards_do_not_undo_it(
    page: Page, slow: Served, event: str
) -> None:
    open_long_answer(page, slow)
    page.evaluate(f"document.querySelector('#scroller').dispatchEvent(new {event})")
    assert eventually(lambda: page.evaluate(LEFT) > 60)
    page.keyboard.press("Escape")
    wait_done(page)
