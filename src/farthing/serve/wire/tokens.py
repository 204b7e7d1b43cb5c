"""The structures of /tokenize and /detokenize, as vLLM's clients send and read them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from farthing.serve.wire.chat import ChatMessage


class TokenizeRequest(msgspec.Struct):
    """POST /tokenize: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True):
    """The token ids of a text, and their texts where that was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The text of token ids."""

    prompt: str
