"""What a client is told when a request fails: one shape, the right status, never a traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from farthing.core import BusyError, ContextLengthError, FarthingError, RequestError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}

_FIELDS = frozenset({"logit_bias", "stop_token_ids"})
"""Fields that the engine's own messages may begin with."""

_FAULT = (
    "the server failed on this request by a fault of its own: the log says more; the request can "
    "be made again"
)


class ErrorDetail(msgspec.Struct, frozen=True):
    """What was wrong and what to do; which field is to blame; and the same for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The JSON of every answer that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape.

    `param` names the field that is to blame, `code` is for programs. The type is the status's own
    unless given. `retryable` is False where the same request would only fail again at the same
    cost: clients are told so, whatever they do with its status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str | None = None,  # noqa: A002
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        retryable: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "server_error" if status >= 500 else _TYPES[400])
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if not retryable:
            self.headers["x-should-retry"] = "false"

    def body(self) -> ErrorAnswer:
        """The JSON of the answer, which is also what an event in mid-stream carries."""
        return ErrorAnswer(ErrorDetail(self.message, self.type, self.param, self.code))

    def response(self) -> Response:
        """The answer as it is sent."""
        return Response(
            msgspec.json.encode(self.body()),
            self.status,
            headers=self.headers,
            media_type="application/json",
        )


class ClientGoneError(Exception):
    """The client has closed its connection: there is nobody to answer."""


def retry_headers(seconds: float) -> dict[str, str]:
    """When to come back: whole seconds for all clients, milliseconds for those that read them."""
    return {
        "Retry-After": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(seconds * 1000))),
    }


def api_error(error: Exception, param: str | None = None) -> ApiError:
    """What a client is told of any error.

    Where the request is to blame, its field is the one that the message begins with, else `param`.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), param=param, code="context_length_exceeded")
    if isinstance(error, RequestError):
        first = str(error).partition(" ")[0]
        named = first if first in _FIELDS else param
        return ApiError(400, str(error), param=named, code="invalid_value")
    if isinstance(error, BusyError):
        return ApiError(
            429, str(error), code="queue_full", headers=retry_headers(error.retry_after)
        )
    if isinstance(error, FarthingError):
        return ApiError(500, str(error), code="engine_error")
    return ApiError(500, _FAULT, code="internal_error")


def http_error(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """What a client is told of a path or a method that does not exist."""
    phrase = HTTPStatus(status).phrase
    hint = {
        404: "there is nothing at this path: /openapi.json lists what there is",
        405: "this path does not take this method: /openapi.json lists what it takes",
    }.get(status, phrase)
    code = phrase.lower().replace(" ", "_")
    return ApiError(status, hint, code=code, headers=headers)
