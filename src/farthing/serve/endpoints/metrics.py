"""GET /metrics: for Prometheus. Where keys are set it needs one, unless the settings open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from farthing.serve.errors import ApiError
from farthing.serve.metrics import Metrics

if TYPE_CHECKING:
    from starlette.requests import Request

    from farthing.serve.state import ServerState


async def metrics(state: ServerState, request: Request) -> Response:
    """In the text format, or OpenMetrics for who asks for it."""
    if state.keys is not None and not state.settings.open_metrics:
        state.keys.authenticate(request.headers.get("authorization"))
    counted = state.metrics
    if not isinstance(counted, Metrics):
        raise ApiError(404, "nothing is counted on this server", code="no_metrics")
    body, content_type = counted.write(state, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
