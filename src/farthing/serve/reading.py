"""From the bytes of a request to its structure: bounded in size and time, and read strictly."""

from __future__ import annotations

import asyncio
import gc
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from farthing.serve.errors import ApiError, ClientGoneError, retry_headers
from farthing.serve.settings import raised_by
from farthing.serve.wire.fields import ASKING, check_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request
    from starlette.types import Receive

    from farthing.serve.settings import Settings
    from farthing.serve.state import ServerState

Structure = TypeVar("Structure", bound=msgspec.Struct)

_CLOSE = {"connection": "close"}
_MOST_DISCARDED = 64 << 20
_DISCARD_SECONDS = 2.0
_QUICK_BYTES = 1 << 18
_PLACE = re.compile(r"(?s)(.*) - at `(.*)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


async def read_structure(
    request: Request,
    state: ServerState,
    kind: type[Structure],
    changing: Mapping[str, tuple[object, ...]] = ASKING,
) -> tuple[Structure, dict[str, Any], bytes]:
    """The structure of a request's body, the same as plain data, and as it came.

    Raises `ApiError` 413 for a body of more than `request_bytes` or `request_values`, 408 when it
    does not come in time, 503 when too much is being read at once, and what `parse` raises;
    `ClientGoneError` when the client left.
    """
    async with _Reading(state) as reading:
        body = await reading.body(request)
        most = state.settings.request_values
        if len(body) > _QUICK_BYTES:
            # A thread, so that others have their turn between the parts of this.
            return *await asyncio.to_thread(parse, body, kind, changing, most), body
    return *parse(body, kind, changing, most), body


class _Reading:
    """Counts what is being read in all, from its first byte to its last."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._settings = state.settings
        self._size = 0

    async def __aenter__(self) -> _Reading:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._state.reading_bytes -= self._size

    async def body(self, request: Request) -> bytes:
        """All of it."""
        settings = self._settings
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > settings.request_bytes:
            if request.headers.get("expect", "").lower() != "100-continue":
                await _discard(request.receive)
            raise _too_long(settings)
        try:
            async with asyncio.timeout(settings.body_seconds):
                return await self._all(request.receive)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body of the request did not arrive within {settings.body_seconds:g} seconds: "
                f"send it faster, or {raised_by('body_seconds')}",
                code="body_timeout",
                headers=_CLOSE,
            ) from None

    async def _all(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        while True:
            part, more = await _next(receive)
            self._size += len(part)
            self._state.reading_bytes += len(part)
            if self._size > self._settings.request_bytes:
                parts.clear()
                if more:
                    await _discard(receive)
                raise _too_long(self._settings)
            if more and self._state.reading_bytes > self._settings.reading_bytes:
                raise ApiError(
                    503,
                    "too much is being sent at once: send it again in a moment, or "
                    + raised_by("reading_bytes"),
                    code="too_much_at_once",
                    headers={**_CLOSE, **retry_headers(1)},
                )
            parts.append(part)
            if not more:
                return b"".join(parts)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


async def _discard(receive: Receive) -> None:
    """Reads on for a moment: many clients look for the answer only when all has been sent."""
    left = _MOST_DISCARDED
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            more = True
            while more and left > 0:
                part, more = await _next(receive)
                left -= len(part)
    except TimeoutError:
        pass


def _too_long(settings: Settings) -> ApiError:
    return ApiError(
        413,
        f"the body of the request is longer than {settings.request_bytes} bytes, which is the most "
        f"that is read: send less, or {raised_by('request_bytes')}",
        code="request_too_large",
        headers=_CLOSE,
    )


def parse(
    body: bytes,
    kind: type[Structure],
    changing: Mapping[str, tuple[object, ...]] = ASKING,
    most_values: int | None = None,
) -> tuple[Structure, dict[str, Any]]:
    """The structure of a body in JSON, and the same as plain data.

    Raises `ApiError` 400 for what is not JSON, for a wrong type, and for a field that is not known
    and would change the answer: `changing` lists those; 413 for more than `most_values`.
    """
    if most_values is not None and len(body) > most_values:
        _check_values(body, most_values)
    with _uncollected():
        structure, raw = _converted(body, kind)
    check_unknown(raw, kind.__struct_fields__, changing=changing)
    return structure, raw


def _check_values(body: bytes, most: int) -> None:
    """Counts without building anything: in JSON, quotes that are not escaped bound texts."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = body.count(b'"') // 2
    if values <= most:
        outside = b"".join(body.split(b'"')[::2])
        values += outside.count(b"[") + outside.count(b"{")
    if values > most:
        raise ApiError(
            413,
            f"the body of the request has {values} texts, lists and objects or more, and {most} "
            f"are the most that are read: send less, or {raised_by('request_values')}",
            code="request_too_large",
        )


def _converted(body: bytes, kind: type[Structure]) -> tuple[Structure, dict[str, Any]]:
    try:
        raw = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(
            400, f"the body of the request is not JSON: {error!s:.200}", code="invalid_json"
        ) from None
    if not isinstance(raw, dict):
        raise ApiError(400, "the body of the request must be a JSON object", code="invalid_json")
    try:
        return msgspec.convert(raw, kind), raw
    except (ValueError, RecursionError) as error:
        raise _misfit(str(error)) from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without collections of garbage: a body of millions of lists has none, and sets off many.

    They took six sevenths of the time in which nobody else is answered.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _misfit(message: str) -> ApiError:
    """What a client is told where msgspec finds that a body has not the structure."""
    place = ""
    if found := _PLACE.fullmatch(message):
        message, place = found[1], found[2].removeprefix("$").removeprefix(".")
    if missing := _MISSING.fullmatch(message):
        param = f"{place}.{missing[1]}" if place else missing[1]
        return ApiError(400, f"{param} is missing: give it", param=param, code="missing_field")
    where = f"{place}: " if place else ""
    return ApiError(400, f"{where}{message:.300}", param=place or None, code="invalid_type")
