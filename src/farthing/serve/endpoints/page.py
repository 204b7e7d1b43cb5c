"""GET / and its files: the page, as it lies in the package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

from farthing.serve.errors import http_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from farthing.serve.state import ServerState

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_HEADERS = {
    # Nothing from elsewhere, nothing inline, no string that becomes markup, nobody's frame.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept, and asked about each time: files of two versions never meet.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    headers: Mapping[str, str]


@cache
def _page() -> Mapping[str, _File]:
    """The files of the page by name, read once."""
    found: dict[str, _File] = {}
    for each in files("farthing.serve").joinpath("page").iterdir():
        kind = _TYPES.get(each.name.rpartition(".")[2])
        if kind is not None:
            content = each.read_bytes()
            etag = f'"{blake2b(content, digest_size=16).hexdigest()}"'
            headers = {**_HEADERS, "content-type": kind, "etag": etag}
            found[each.name] = _File(content, headers)
    return found


async def page(state: ServerState, request: Request) -> Response:
    """The page, or a file of it by its name; 304 where the client has it already."""
    name = request.path_params.get("name", "index.html")
    file = _page().get(name)
    if file is None:
        raise http_error(404)
    etag = file.headers["etag"]
    if _holds(request.headers.get("if-none-match", ""), etag):
        kept = {name: value for name, value in file.headers.items() if name != "content-type"}
        return Response(status_code=304, headers=kept)
    return Response(file.content, headers=file.headers)


def _holds(if_none_match: str, etag: str) -> bool:
    """Whether a client names the tag among those it has; a weak one is the same here."""
    tags = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return etag in tags or tags == ["*"]
