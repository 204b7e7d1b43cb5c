from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from farthing.serve.keys import load_keys
from serve.server import serving

if TYPE_CHECKING:
    from farthing.serve.state import ServerState
    from serve.server import Served

FOLDER = files("farthing.serve").joinpath("page")
NAMES = sorted(each.name for each in FOLDER.iterdir() if not each.name.startswith("_"))
PATHS = ["/", *(f"/page/{name}" for name in NAMES)]


def text_of(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


def policy_of(served: Served, path: str) -> dict[str, list[str]]:
    header = served.http.get(path).headers["content-security-policy"]
    parts = (part.split() for part in header.split(";"))
    return {name: values for name, *values in parts}


@pytest.mark.parametrize("path", PATHS)
def test_a_file_has_its_type_its_tag_and_is_asked_about_each_time(
    server: Served, path: str
) -> None:
    answer = server.http.get(path)
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind[path[1:].rpartition(".")[2] or "html"])
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    tag = answer.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = server.http.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert server.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    head = server.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", PATHS)
def test_the_policy_lets_nothing_in_but_the_servers_own_files(server: Served, path: str) -> None:
    policy = policy_of(server, path)
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert not any("unsafe" in value for values in policy.values() for value in values)


def test_no_file_names_another_host_nor_makes_markup_of_a_string() -> None:
    for name in NAMES:
        text = text_of(name).replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]", text), name
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
        assert not re.search(forbidden, text), name


class _Inline(HTMLParser):
    """Collects what a page has inline, which its policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [name for name in names if name == "style" or name.startswith("on")]


def test_the_page_has_nothing_inline() -> None:
    parser = _Inline()
    parser.feed(text_of("index.html"))
    assert parser.found == []


@pytest.mark.parametrize("name", ["", "nothing.js", "%2e%2e/page.py", "..%2fpage.py", "a/b"])
def test_no_other_file_is_served(server: Served, name: str) -> None:
    answer = server.http.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_page_needs_no_key_and_no_model(server: Served) -> None:
    def prepare(state: ServerState) -> None:
        state.engine = None
        state.keys = load_keys(state.settings)

    with serving(prepare=prepare, api_key="a-secret-that-is-long-enough") as served:
        for path in PATHS:
            assert served.http.get(path).status_code == 200
        assert served.http.get("/stats").status_code == 401


def test_a_file_is_read_in_one_sitting() -> None:
    for name in NAMES:
        assert len(text_of(name).splitlines()) <= 300, name
