from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from serve.page.talking import answering, answers, ask, open_page, wait_done
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from serve.server import Served

DRAW = """async (text) => {
  const { Rendering } = await import("/page/markdown.js");
  const place = document.createElement("div");
  new Rendering(place).show(text);
  return place.innerHTML;
}"""

GROW = """async (texts) => {
  const { Rendering } = await import("/page/markdown.js");
  const place = document.createElement("div");
  const rendering = new Rendering(place);
  for (const text of texts) rendering.show(text);
  const tags = [...place.querySelectorAll("*")].map((each) => each.localName);
  return { html: place.innerHTML, tags: [...new Set(tags)] };
}"""

TAGS = {
    *("p", "strong", "em", "code", "pre", "div", "span", "button", "ul", "ol", "li"),
    *("blockquote", "hr", "h3", "h4", "h5", "h6"),
}
"""All elements that a text can become."""

ATTACK = (
    "<script>window.hit = 1</script> <img src=x onerror='window.hit = 2'> "
    "**<b onclick=hit()>x</b>** [a link](javascript:alert(1)) `<svg onload=alert(1)>`\n\n"
    "- <iframe srcdoc='<script>parent.hit = 3</script>'></iframe>\n\n"
    "```html\n</code></pre><script>window.hit = 4</script>\n```\n"
    "# <style>body { display: none }</style>\n> <a href='http://example.com'>x</a>\n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(answering(ATTACK)) as served:
        yield served


@pytest.fixture(scope="module")
def drawing(browser: Browser, server: Served) -> Iterator[Page]:
    """A page in which texts can be drawn."""
    page = browser.new_page()
    page.goto(server.url)
    yield page
    page.close()


def test_markup_in_an_answer_is_shown_as_its_own_letters(page: Page, server: Served) -> None:
    open_page(page, server)
    ask(page, "Attack <b>me</b>")
    wait_done(page)
    for letters in ("<script>", "<img src=x", "<iframe", "javascript:alert(1)", "<style>"):
        expect(answers(page)).to_contain_text(letters)
    tags = page.evaluate(
        "[...document.querySelectorAll('.messages .text *')].map((each) => each.localName)"
    )
    assert set(tags) <= TAGS
    assert page.evaluate("window.hit") is None
    expect(page.locator(".message[data-role=user] .text")).to_have_text("Attack <b>me</b>")
    page.reload()  # and it is no other when it comes from the browser's storage
    expect(answers(page)).to_contain_text("<script>")
    assert page.evaluate("window.hit") is None


def test_a_string_cannot_become_markup_even_by_mistake(drawing: Page) -> None:
    policy = drawing.evaluate(
        "(() => { try { document.body.insertAdjacentHTML('beforeend', '<b>x</b>'); } "
        "catch (error) { return error.name; } return 'taken'; })()"
    )
    assert policy == "TypeError"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "<p>plain</p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("**bold** and *slanted*", "<p><strong>bold</strong> and <em>slanted</em></p>"),
        ("**bold with *both* in it**", "<p><strong>bold with <em>both</em> in it</strong></p>"),
        ("`a < b` and ``a ` b``", "<p><code>a &lt; b</code> and <code>a ` b</code></p>"),
        ("2 * 3 * 4 and **open", "<p>2 * 3 * 4 and **open</p>"),
        ("snake_case_name", "<p>snake_case_name</p>"),
        ("## Title", "<h4>Title</h4>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("1. a\n\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        (
            "1. a\n   - x\n   - y\n2. b",
            "<ol><li>a<ul><li>x</li><li>y</li></ul></li><li>b</li></ol>",
        ),
        ("- a\n  goes on", "<ul><li>a\ngoes on</li></ul>"),
        ("> quoted\n> twice", "<blockquote>quoted\ntwice</blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("1. a\n- b", "<ol><li>a</li></ol><ul><li>b</li></ul>"),
    ],
)
def test_what_models_write_becomes_what_they_mean(drawing: Page, text: str, html: str) -> None:
    assert drawing.evaluate(DRAW, text) == html


def test_code_keeps_its_letters_and_may_still_be_open(drawing: Page) -> None:
    whole = drawing.evaluate(DRAW, "```python\nx = **1**\n\n# no title\n```\nafter")
    assert "<code>x = **1**\n\n# no title</code>" in whole
    assert "<span>python</span>" in whole
    assert whole.endswith("<p>after</p>")
    assert "<code>x = 1</code>" in drawing.evaluate(DRAW, "~~~\nx = 1")


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                (
                    *("**", "*", "`", "```", "```js\n", "\n", "\n\n", "- ", "  - ", "1. ", "> "),
                    *("# ", "<b>", "</p>", "<script>x</script>", "&lt;", "---\n", "a", "word "),
                    *("\u202e", "é"),
                )
            ),
            st.text(max_size=5),
        ),
        max_size=40,
    )
)
def test_any_text_becomes_known_elements_and_growing_gives_the_same(
    drawing: Page, pieces: list[str]
) -> None:
    texts = ["".join(pieces[: end + 1]) for end in range(len(pieces))] or [""]
    grown = drawing.evaluate(GROW, texts)
    assert set(grown["tags"]) <= TAGS
    assert grown["html"] == drawing.evaluate(DRAW, texts[-1])


def test_a_long_text_of_marks_is_drawn_in_no_time(drawing: Page) -> None:
    for mark in ("*a ", "**a ", "` `` ", "> ", "- ", "  " * 40 + "- ", "`" * 7 + "a "):
        took = drawing.evaluate(
            """async (text) => {
              const { Rendering } = await import("/page/markdown.js");
              const began = performance.now();
              new Rendering(document.createElement("div")).show(text);
              return performance.now() - began;
            }""",
            mark * (60_000 // len(mark)),
        )
        assert took < 2000, mark
