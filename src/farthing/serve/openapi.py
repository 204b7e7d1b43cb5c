"""GET /openapi.json: what the server takes and gives, from the structures that it reads with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

import farthing
from farthing.serve.errors import ErrorAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.serve.state import ServerState

    Answering = Callable[[ServerState, Request], Awaitable[Response]]

_REFUSALS = {
    400: "the request is wrong, or could never be served",
    401: "the key is missing or wrong",
    403: "the request is that of a web page from elsewhere",
    404: "this model is not served here",
    408: "the body did not arrive, or the answer did not end, in time",
    413: "the body is too long",
    429: "the wait would be too long: Retry-After says when to come back",
    500: "a fault of the server's own",
    503: "the model is being loaded, or the server is shutting down",
}


@dataclass(frozen=True)
class Operation:
    """One method of one path, and the function that answers it.

    `takes` and `gives` are the structures of the bodies; a body of another kind than JSON has its
    `media_type` instead. `streams`: it can answer with events, too. `unready`: the structure of
    its own that it gives with status 503.
    """

    method: str
    path: str
    answer: Answering
    takes: type[msgspec.Struct] | None = None
    gives: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    streams: bool = False
    unready: type[msgspec.Struct] | None = None


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of some operations."""
    operations = list(operations)
    bodies = [body for each in operations for body in (each.takes, each.gives, each.unready)]
    kinds: list[type[msgspec.Struct]] = [ErrorAnswer]
    kinds += dict.fromkeys(body for body in bodies if body is not None)
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    references: Mapping[type[msgspec.Struct], dict[str, Any]] = dict(
        zip(kinds, schemas, strict=True)
    )
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        path = each.path.replace(":path}", "}")
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "farthing", "version": farthing.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(
    operation: Operation, references: Mapping[type[msgspec.Struct], dict[str, Any]]
) -> dict[str, Any]:
    summary = (operation.answer.__doc__ or "").strip().partition("\n")[0]
    schema = {"type": "string"} if operation.gives is None else references[operation.gives]
    content: dict[str, Any] = {operation.media_type: {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": summary, "content": content}}
    for status, meaning in _REFUSALS.items():
        kind = operation.unready if status == 503 and operation.unready else ErrorAnswer
        responses[str(status)] = {
            "description": meaning,
            "content": {"application/json": {"schema": references[kind]}},
        }
    described: dict[str, Any] = {"summary": summary, "responses": responses}
    if operation.takes is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[operation.takes]}},
        }
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition("}")[0].partition(":")[0]
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return described
