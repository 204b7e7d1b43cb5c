"""GET /health: 200 only when a request would be answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.serve.wire.common import json_response
from farthing.serve.wire.models import Health

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.serve.state import ServerState


async def health(state: ServerState, request: Request) -> Response:
    """Ready, or 503 with what is being done."""
    if state.draining:
        return json_response(Health("draining"), 503)
    if state.engine is None:
        now = state.loading
        about = now.phase, now.fraction, now.failure
        failed = now.failure is not None
        return json_response(Health("failed" if failed else "loading", *about), 503)
    return json_response(Health("ready"))
