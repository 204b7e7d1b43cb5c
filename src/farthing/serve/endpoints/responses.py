"""POST /v1/responses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from farthing.serve.asking import Asked
from farthing.serve.endpoints.chat import ChatAsking
from farthing.serve.endpoints.models import check_model
from farthing.serve.errors import ApiError
from farthing.serve.generation import Generation
from farthing.serve.reading import read_structure
from farthing.serve.response_answers import ResponseAnswers, ResponseChunks, ResponseStream
from farthing.serve.response_input import chat_of, refuse_options
from farthing.serve.sse import respond
from farthing.serve.wire.chat import template_messages
from farthing.serve.wire.common import priority_of, seconds_of
from farthing.serve.wire.responses import CHANGING, ResponseRequest

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.serve.state import ServerState

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""What the chat's fields are called here."""


async def responses(state: ServerState, request: Request) -> Response:
    """Answers a text or a list of items, in one piece or as a stream of events."""
    answers, streamed = await _begin(state, request)
    chunks = ResponseChunks(answers) if streamed else None
    return await respond(answers, chunks, state, request, ResponseStream)


async def _begin(state: ServerState, request: Request) -> tuple[ResponseAnswers, bool]:
    engine, card = state.ready()
    settings = state.settings
    fields, _, body = await read_structure(request, state, ResponseRequest, CHANGING)
    check_model(card, fields.model)
    refuse_options(fields, settings)
    chat, messages = chat_of(fields)
    try:
        asking = ChatAsking(state, engine, chat, template_messages(chat.messages, messages))
        asked = Asked(
            param="input",
            prompts=1,
            body=body,
            prompt_bytes=len(body),
            prompt_tokens=None,
            max_tokens=chat.most_tokens(),
            n=1,
            priority=priority_of(fields),
            seconds=seconds_of(fields, settings),
            slow=True,
            prepare=asking.prepare,
            reasoning_tokens=asking.reasoning_tokens,
        )
        generation = await Generation.begin(state, request, asked)
    except ApiError as error:
        raise _renamed(error) from error.__cause__
    return ResponseAnswers(generation, card, fields, asking.parser), bool(fields.stream)


def _renamed(error: ApiError) -> ApiError:
    """A refusal of the chat's, with the names that the client used."""
    for ours, theirs in _NAMES.items():
        if error.param is not None and error.param.partition("[")[0] == ours:
            error.param = theirs + error.param.removeprefix(ours)
        error.message = re.sub(rf"\b{ours}\b", theirs, error.message)
    return error
