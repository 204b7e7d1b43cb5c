"""The chat API's structures, as OpenAI's clients send and read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from farthing.serve.errors import ApiError
from farthing.serve.wire.common import SamplingFields, UsageCounts
from farthing.serve.wire.fields import check_unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ReasoningFormat = Literal["auto", "deepseek", "none"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """One message: text, or the tool calls that were made, or what a tool gave."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions. `explain_prefix_miss` is farthing's own.

    `reasoning_format` is llama.cpp's: "none" leaves reasoning in the text. `include_reasoning` is
    vLLM's: with false it is not sent.
    """

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    explain_prefix_miss: bool | None = None
    reasoning_format: ReasoningFormat | None = None
    include_reasoning: bool | None = None
    reasoning_effort: ReasoningEffort | None = None

    def most_tokens(self) -> int | None:
        """The most tokens of an answer; None for as many as the context holds."""
        most = self.asked_tokens()
        if most is not None and most < 1:
            raise ApiError(
                400,
                f"max_tokens must be a whole number from 1, not {most}",
                param="max_tokens",
                code="invalid_value",
            )
        return most

    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token are wanted; None for no log-probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise ApiError(
                    400,
                    "top_logprobs needs logprobs: set it to true",
                    param="top_logprobs",
                    code="invalid_value",
                )
            return None
        count = self.top_logprobs or 0
        if not 0 <= count <= 20:
            raise ApiError(
                400,
                f"top_logprobs must be from 0 to 20, not {count}",
                param="top_logprobs",
                code="invalid_value",
            )
        return count


_CHANGING: dict[str, tuple[object, ...]] = {"function_call": (), "audio": (), "prefix": (False,)}
"""Fields of a message that would change the answer, and are not supported."""


def template_messages(
    messages: Sequence[ChatMessage], raw: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The messages for the template; `raw` is what was sent, with fields that are not known.

    A developer's message is a system message, which is what templates know. Raises `ApiError` 400.
    """
    chat: list[dict[str, Any]] = []
    for number, (message, sent) in enumerate(zip(messages, raw, strict=True)):
        where = f"messages[{number}]."
        check_unknown(sent, ChatMessage.__struct_fields__, where, _CHANGING)
        plain: dict[str, Any] = msgspec.to_builtins(message)
        if message.role == "developer":
            plain["role"] = "system"
        if message.content is None:
            if message.role != "assistant" or not message.tool_calls:
                raise ApiError(
                    400,
                    f"{where}content is missing: only a message with tool_calls may go without",
                    param=f"{where}content",
                    code="invalid_value",
                )
            plain["content"] = ""
        chat.append(plain)
    return chat


_GIVEN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "most_tokens", "self"}
)
_MOST_VARIABLES = 32
_HARMLESS_TEXT = re.compile(r"[\w .,:/+-]{0,200}")


def template_variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The further variables of the template that a request has in `chat_template_kwargs`.

    Values are single ones, and texts too plain to be one of the model's control tokens. Raises
    `ApiError` 400 for any other, and for a name that the server gives itself.
    """
    variables = dict(given or {})
    problem = None
    if len(variables) > _MOST_VARIABLES:
        problem = f"has {len(variables)} entries, and may have {_MOST_VARIABLES}"
    for name, value in variables.items():
        if name in _GIVEN_VARIABLES or name.endswith("_token") or not name.isidentifier():
            problem = f"cannot set {name!r:.60}: leave it out"
        elif isinstance(value, dict | list) or (
            isinstance(value, str) and not _HARMLESS_TEXT.fullmatch(value)
        ):
            problem = (
                f"has a {name:.60} that is neither true, false, a number, null nor a plain text of "
                "at most 200 letters, digits, spaces and . , : / + - _"
            )
    if problem is not None:
        raise ApiError(
            400,
            f"chat_template_kwargs {problem}",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return variables


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token of the answer, and the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of an answer's tokens, or of those of one chunk."""

    content: list[TokenLogprobs]
    refusal: None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    """An answer as a message."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """All answers to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageCounts


class ChatDelta(msgspec.Struct, frozen=True):
    """What has been added to an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """The part of a chunk that belongs to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageCounts | UnsetType | None = UNSET
