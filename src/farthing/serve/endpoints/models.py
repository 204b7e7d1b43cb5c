"""GET /v1/models: what is served, with its quality receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.serve.errors import ApiError
from farthing.serve.wire.common import json_response
from farthing.serve.wire.models import ModelEntry, ModelList

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.serve.state import ModelCard, ServerState


async def models(state: ServerState, request: Request) -> Response:
    """The list, of one model."""
    _, card = state.ready()
    return json_response(ModelList([_entry(card)]))


async def model(state: ServerState, request: Request) -> Response:
    """One model by its id, which may have slashes in it."""
    _, card = state.ready()
    check_model(card, request.path_params["model"])
    return json_response(_entry(card))


def check_model(card: ModelCard, name: str | None) -> None:
    """Raises `ApiError` 404 unless the name is that of the model served; None names it too."""
    if name is not None and name != card.id:
        raise ApiError(
            404,
            f"the model {name!r:.200} is not served here; {card.id!r} is",
            param="model",
            code="model_not_found",
        )


def _entry(card: ModelCard) -> ModelEntry:
    return ModelEntry(
        id=card.id,
        created=card.created,
        max_model_len=card.max_model_len,
        details=dict(card.description),
        receipt=None if card.receipt is None else dict(card.receipt),
    )
