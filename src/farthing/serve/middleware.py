"""What happens to every request: an id, whose it is, an account of it, and no bare error."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from farthing.serve.connection import CROWDED
from farthing.serve.errors import ApiError, ClientGoneError, api_error, http_error, retry_headers
from farthing.serve.ids import new_id
from farthing.serve.origin import allowed_origin, cross_origin_headers, preflight_headers
from farthing.serve.settings import raised_by
from farthing.serve.state import Anonymous, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from farthing.serve.state import Caller, ServerState

log = logging.getLogger("farthing.serve")

CLIENT_GONE = 499
"""The status of a request whose client left before it was answered; nobody is sent it."""

_OPEN = frozenset({"/", "/health", "/metrics", "/openapi.json"})
_OPEN_FOLDERS = ("/page/",)
_MOST_PATH = 200
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


class RequestMiddleware:
    """Puts what endpoints need into the scope's state, and answers what they raise.

    That is `record`, the request's account, `caller`, whose it is, and `began`, in seconds of
    `time.perf_counter`. Whoever counts is told of every POST to the API when it has ended.
    """

    def __init__(self, app: ASGIApp, state: ServerState, endpoints: Collection[str]) -> None:
        """`endpoints` are the paths at which the API has something."""
        self._app = app
        self._state = state
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id().encode()
        path: str = scope["path"]
        known = path in self._endpoints
        record = RequestRecord(request_id.decode("ascii"), "", path[:_MOST_PATH], known=known)

        more_headers = [(b"x-request-id", request_id)]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *more_headers]
            await send(message)

        own: dict[str, Any] = scope.setdefault("state", {})
        own["record"] = record
        own["began"] = began = time.perf_counter()
        try:
            if CROWDED in own:
                raise _too_crowded()
            if b"access-control-request-method" in headers and scope["method"] == "OPTIONS":
                await self._preflight(headers)(scope, receive, send_named)
                return
            caller = self._caller(path, headers.get(b"authorization"))
            own["caller"] = caller
            record.key = caller.name
            if (origin := self._foreign_origin(headers, caller)) is not None:
                more_headers += cross_origin_headers(origin)
            await self._app(scope, receive, send_named)
        except ClientGoneError:
            record.status = CLIENT_GONE
        except Exception as error:
            # The error's traceback has this frame: were the frame to keep the answer, which may be
            # the error, both would stay, with the request, until garbage is collected.
            response = _refused(error, record)
            if not record.status:
                await response(scope, receive, send_named)
        finally:
            record.seconds = time.perf_counter() - began
            if scope["method"] == "POST" and path.startswith("/v1/"):
                self._state.finished(record)

    def _foreign_origin(self, headers: Mapping[bytes, bytes], caller: Caller) -> str | None:
        origin = headers.get(b"origin")
        if origin is None:
            return None
        return allowed_origin(
            origin.decode("latin-1"),
            headers.get(b"host", b"").decode("latin-1"),
            self._state.settings.cors_origins,
            anonymous=caller.name == "",
        )

    def _preflight(self, headers: Mapping[bytes, bytes]) -> Response:
        """A browser asks without the key that its request will have."""
        response = Response(status_code=204)
        origin = self._foreign_origin(headers, Anonymous())
        if origin is not None:
            response.raw_headers += cross_origin_headers(origin)
        wanted = headers.get(b"access-control-request-headers", b"")
        response.raw_headers += preflight_headers(wanted)
        return response

    def _caller(self, path: str, authorization: bytes | None) -> Caller:
        keys = self._state.keys
        if keys is None or path in _OPEN or path.startswith(_OPEN_FOLDERS):
            return Anonymous()
        header = None if authorization is None else authorization.decode("latin-1")
        return keys.authenticate(header)


def _too_crowded() -> ApiError:
    return ApiError(
        503,
        "there are too many connections: use one for many requests, come back in a moment, or "
        + raised_by("connections"),
        code="too_many_connections",
        headers={"connection": "close", **retry_headers(1)},
    )


def _refused(error: Exception, record: RequestRecord) -> Response:
    if isinstance(error, HTTPException):
        answer = http_error(error.status_code, error.headers)
    else:
        answer = api_error(error)
    if answer.status == 500:
        log.error("request %s failed", record.id, exc_info=error)
    record.error_code = answer.code
    return answer.response()
