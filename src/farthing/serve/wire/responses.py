"""The structures of the Responses API for text, as OpenAI's clients send and read them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from farthing.serve.errors import ErrorDetail
from farthing.serve.wire.chat import ReasoningEffort, ReasoningFormat
from farthing.serve.wire.common import CommonFields, StreamOptions
from farthing.serve.wire.fields import ASKING

CHANGING: dict[str, tuple[object, ...]] = {
    **ASKING,
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "include": ([], ["reasoning.encrypted_content"]),  # reasoning is given in clear
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Fields that would change the answer and are not supported: the values that change nothing."""


class TextOptions(msgspec.Struct):
    """The form of the answer's text: a `format` of type text, json_object or json_schema."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    """How much the model is to reason. There is no summary of it, so none can be chosen."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseRequest(CommonFields, kw_only=True):
    """POST /v1/responses.

    farthing's own are `top_k`, `min_p`, `seed`, and what is as in a chat: `chat_template_kwargs`,
    `max_draft_tokens`, `reasoning_format` and `include_reasoning`.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_draft_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: ReasoningFormat | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A part of a message: its text."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What a model wrote before its answer."""

    text: str


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The reasoning of the model's; there is no summary of it."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[dict[str, Any]] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A message of the model's."""

    id: str
    status: str
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputReasoning | OutputMessage | OutputCall


class CachedInput(msgspec.Struct, frozen=True):
    """Of the tokens read, those that the cache had."""

    cached_tokens: int


class ReasoningOutput(msgspec.Struct, frozen=True):
    """Of the tokens written, those of reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens read and written."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: ReasoningOutput
    total_tokens: int


class AskedReasoning(msgspec.Struct, frozen=True):
    """How much the model was to reason; null where it was left to its template."""

    effort: ReasoningEffort | None = None
    summary: None = None


class Incomplete(msgspec.Struct, frozen=True):
    """Why an answer is not complete."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """An answer, with what it was asked by."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: AskedReasoning
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class ResponseEvent(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One event of a stream; each `type` has its own of these fields."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[dict[str, Any]] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
    error: ErrorDetail | UnsetType = UNSET
