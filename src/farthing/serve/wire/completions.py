"""The structures of plain completions, as OpenAI's clients send and read them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from farthing.serve.errors import ApiError
from farthing.serve.wire.common import SamplingFields, UsageCounts
from farthing.serve.wire.prompts import Texts, texts_of

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint."""


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions."""

    prompt: Texts
    logprobs: int | None = None
    echo: bool | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts: texts, or token ids. Raises `ApiError` 400 for a mixture."""
        return texts_of(self.prompt, "prompt")

    def most_tokens(self) -> int:
        """The most tokens of an answer; 0 where the prompt's echo is all that is wanted."""
        asked = self.asked_tokens()
        most = _DEFAULT_MAX_TOKENS if asked is None else asked
        if most < 1 and not (most == 0 and self.echo):
            raise ApiError(
                400,
                f"max_tokens must be a whole number from 1, or 0 with echo, not {most}",
                param="max_tokens",
                code="invalid_value",
            )
        return most

    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token are wanted; None for no log-probabilities."""
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise ApiError(
                400,
                f"logprobs must be from 0 to 20, not {self.logprobs}",
                param="logprobs",
                code="invalid_value",
            )
        return self.logprobs


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Lists of equal length, one entry a token. `text_offset` counts characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of the answers, or what has been added to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """All answers to all prompts, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageCounts | UnsetType | None = UNSET
