"""Which web pages may call the server: its own, and those of the origins it was told of.

A browser sends requests to this machine for any page, and a name of the page's owner may stand for
this machine's own address. Other clients send no Origin, and are not concerned.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from farthing.serve.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection

_LARGEST_AGE = b"7200"


def allowed_origin(
    origin: str, host: str, allowed: Collection[str], *, anonymous: bool
) -> str | None:
    """The origin where the answer must name it for the page to see it, None for the server's own.

    `host` is the request's Host. Where callers are `anonymous`, the server's own page must have
    come from an address or from localhost, not from a name that could be anybody's.
    Raises `ApiError` 403 for any other origin.
    """
    if origin in allowed or "*" in allowed:
        return origin
    try:
        page = urlsplit(origin)
        own = page.netloc.lower() == host.lower() != ""
        name = page.hostname or ""
    except ValueError:
        own, name = False, ""
    if own and (not anonymous or _is_address(name)):
        return None
    raise ApiError(
        403,
        f"pages of {origin!r:.200} may not call this server: start it with that origin in "
        "cors_origins if they should",
        code="origin_not_allowed",
    )


def cross_origin_headers(origin: str) -> list[tuple[bytes, bytes]]:
    """What lets a page of that origin see an answer."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"x-request-id, retry-after, retry-after-ms"),
        (b"vary", b"Origin"),
    ]


def preflight_headers(wanted: bytes) -> list[tuple[bytes, bytes]]:
    """The answer to a browser that asks, before a request, for the headers it may have."""
    return [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", wanted or b"authorization, content-type"),
        (b"access-control-max-age", _LARGEST_AGE),
    ]


def _is_address(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
