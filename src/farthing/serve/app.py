"""The application: which path goes where, and what happens to every request on its way."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from farthing.serve.endpoints.chat import chat
from farthing.serve.endpoints.completions import completions
from farthing.serve.endpoints.embeddings import embeddings
from farthing.serve.endpoints.health import health
from farthing.serve.endpoints.metrics import metrics
from farthing.serve.endpoints.models import model, models
from farthing.serve.endpoints.page import page
from farthing.serve.endpoints.responses import responses
from farthing.serve.endpoints.stats import stats
from farthing.serve.endpoints.tokenize import detokenize, tokenize
from farthing.serve.endpoints.usage import usage
from farthing.serve.errors import http_error
from farthing.serve.middleware import RequestMiddleware
from farthing.serve.openapi import Operation, document
from farthing.serve.state import ServerState
from farthing.serve.wire.chat import ChatCompletion, ChatRequest
from farthing.serve.wire.completions import CompletionRequest, TextCompletion
from farthing.serve.wire.embeddings import EmbeddingList, EmbeddingRequest
from farthing.serve.wire.models import Health, ModelEntry, ModelList
from farthing.serve.wire.responses import ResponseObject, ResponseRequest
from farthing.serve.wire.stats import Stats
from farthing.serve.wire.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from farthing.serve.wire.usage import UsageReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from farthing.serve.openapi import Answering

__all__ = ["ServerState", "build_app"]

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/health", health, gives=Health, unready=Health),
    Operation("GET", "/stats", stats, gives=Stats),
    Operation("GET", "/metrics", metrics, media_type="text/plain"),
    Operation("GET", "/usage", usage, gives=UsageReport),
    Operation("GET", "/v1/models", models, gives=ModelList),
    Operation("GET", "/v1/models/{model:path}", model, gives=ModelEntry),
    Operation(
        "POST", "/v1/chat/completions", chat, ChatRequest, gives=ChatCompletion, streams=True
    ),
    Operation(
        "POST", "/v1/completions", completions, CompletionRequest, TextCompletion, streams=True
    ),
    Operation("POST", "/v1/responses", responses, ResponseRequest, ResponseObject, streams=True),
    Operation("POST", "/v1/embeddings", embeddings, EmbeddingRequest, EmbeddingList),
    Operation("POST", "/tokenize", tokenize, TokenizeRequest, gives=TokenizeAnswer),
    Operation("POST", "/detokenize", detokenize, DetokenizeRequest, gives=DetokenizeAnswer),
)
"""All that the server answers to, and what /openapi.json describes."""


def build_app(state: ServerState) -> Starlette:
    """The ASGI application that answers for a server."""

    async def openapi(_: Request) -> Response:
        return Response(_description(), media_type="application/json")

    app = Starlette(
        routes=[
            *(
                Route(each.path, _bound(each.answer, state), methods=[each.method])
                for each in OPERATIONS
            ),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/", _bound(page, state), methods=["GET"]),
            Route("/page/{name}", _bound(page, state), methods=["GET"]),
        ],
        middleware=[
            Middleware(RequestMiddleware, state=state, endpoints={each.path for each in OPERATIONS})
        ],
        exception_handlers={HTTPException: _http_exception},
    )
    app.router.redirect_slashes = False
    return app


@cache
def _description() -> bytes:
    """The OpenAPI document, which takes too long to make to be made for each who asks."""
    return msgspec.json.encode(document(OPERATIONS))


def _bound(answer: Answering, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def bound(request: Request) -> Response:
        return await answer(state, request)

    return bound


async def _http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    answer = http_error(error.status_code, error.headers)
    request.state.record.error_code = answer.code
    return answer.response()
