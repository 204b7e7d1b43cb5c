"""POST /tokenize and /detokenize: what the model reads, without running it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from farthing.core import FarthingError, RequestError
from farthing.serve.asking import is_slow
from farthing.serve.endpoints.models import check_model
from farthing.serve.errors import ApiError, api_error
from farthing.serve.reading import read_structure
from farthing.serve.wire.chat import template_messages, template_variables
from farthing.serve.wire.common import check_count, json_response
from farthing.serve.wire.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.engine.engine import Engine
    from farthing.serve.state import ServerState


async def tokenize(state: ServerState, request: Request) -> Response:
    """The token ids of a prompt or a chat, exactly as an answer to it would begin."""
    engine, card = state.ready()
    fields, raw, body = await read_structure(request, state, TokenizeRequest, _CHANGING)
    check_model(card, fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt", code="invalid_value")
    if fields.messages is not None:
        check_count("messages", len(fields.messages), state.settings, "most_messages", least=1)
        raw["messages"] = template_messages(fields.messages, raw["messages"])
    messages = raw.get("messages") or []
    variables = template_variables(fields.chat_template_kwargs)

    def written() -> Response:
        ids = _encode(engine, fields, messages, variables)
        texts = _texts(engine, ids) if fields.return_token_strs else UNSET
        return json_response(TokenizeAnswer(len(ids), card.max_model_len, ids, texts))

    try:
        if fields.messages is None and not is_slow(len(body)):
            return written()
        # A text of any length, or a template: neither may keep others waiting.
        async with state.tokenizing.turn(request, len(body)):
            return await asyncio.to_thread(written)
    except FarthingError as error:
        raise api_error(error, "prompt" if fields.messages is None else "messages") from error


async def detokenize(state: ServerState, request: Request) -> Response:
    """The text of token ids."""
    engine, card = state.ready()
    fields, _, body = await read_structure(request, state, DetokenizeRequest)
    check_model(card, fields.model)

    def written() -> Response:
        return json_response(DetokenizeAnswer(engine.tokenizer.decode(fields.tokens, False)))

    try:
        if not is_slow(len(body)):
            return written()
        async with state.tokenizing.turn(request, len(body)):
            return await asyncio.to_thread(written)
    except FarthingError as error:
        raise api_error(error, "tokens") from error


_CHANGING: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "continue_final_message": (False,),
}


def _texts(engine: Engine, ids: list[int]) -> list[str]:
    """The text of each id; those of a long text are few, many times over."""
    tokenizer = engine.tokenizer
    known = {each: tokenizer.token_bytes(each).decode("utf-8", "replace") for each in set(ids)}
    return [known[each] for each in ids]


def _encode(
    engine: Engine,
    fields: TokenizeRequest,
    messages: list[dict[str, object]],
    variables: dict[str, Any],
) -> list[int]:
    if fields.prompt is not None:
        special = fields.add_special_tokens is not False
        return engine.tokenizer.encode(fields.prompt, add_special_tokens=special)
    template = engine.chat_template
    if template is None:
        raise RequestError("this model has no chat template: give a prompt instead of messages")
    generation = fields.add_generation_prompt is not False
    return template.encode(messages, fields.tools, add_generation_prompt=generation, **variables)
