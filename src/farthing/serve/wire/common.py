"""What requests share: the fields that say how to sample, and what they become."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from farthing.core import RequestError, SamplingParams
from farthing.serve.errors import ApiError
from farthing.serve.settings import raised_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.serve.settings import Settings
    from farthing.serve.state import ServerState

FORM_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
)
"""The fields that ask for an answer of a certain form."""


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


class PrefixMiss(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cache ended for a prompt, and why.

    `position` is that of the first token that it had not, `message` the number of the message that
    this is in, `text` the prompt's own words around it. Of the `recomputed_tokens` an earlier
    prompt could have saved the `avoidable_tokens`, at least, had the two not differed there, or
    had it not been evicted. `explanation` says so in words.
    """

    reason: Literal["differs", "evicted", "new"]
    position: int
    message: int | None
    text: str
    reused_tokens: int
    recomputed_tokens: int
    avoidable_tokens: int
    explanation: str


class CachedTokens(msgspec.Struct, frozen=True):
    """Of the tokens of a prompt, those that the cache had; where asked for, why it had no more."""

    cached_tokens: int
    prefix_miss: PrefixMiss | UnsetType | None = UNSET


class WrittenTokens(msgspec.Struct, frozen=True):
    """Of the tokens written, those of reasoning; there where an answer has some.

    And tokens that were guessed ahead and computed: right ones, which were written, and others;
    there where tokens were guessed.
    """

    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class UsageCounts(msgspec.Struct, frozen=True):
    """Tokens read and written, of all prompts and answers of a request.

    `completion_tokens_details` are there where there is something to tell.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: WrittenTokens | UnsetType = UNSET


class StreamOptions(msgspec.Struct):
    """What a stream has besides its text: a last chunk with the usage, or the usage in each."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonFields(msgspec.Struct, kw_only=True):
    """The fields of every request to a model. None is as if a field were not there."""

    model: str | None = None
    user: str | None = None
    priority: int | None = None
    timeout: float | None = None


class SamplingFields(CommonFields, kw_only=True):
    """The fields of every request that generates.

    `max_draft_tokens` is farthing's own: the most tokens that a step guesses ahead, 0 for none.
    """

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    max_draft_tokens: int | None = None

    def asked_tokens(self) -> int | None:
        """The most tokens of an answer, by either name; raises `ApiError` 400 where they differ."""
        most = self.max_completion_tokens
        if most is None:
            return self.max_tokens
        if self.max_tokens not in (None, most):
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens differ: give one of them",
                param="max_tokens",
                code="invalid_value",
            )
        return most


_PLAIN = (
    "top_k",
    "min_p",
    "ignore_eos",
    "min_tokens",
    "repetition_penalty",
    "max_draft_tokens",
)
_RENAMED = ("presence_penalty", "frequency_penalty")
_MOST_PRIORITY = 1000
_SEEDS = 1 << 64


def sampling_of(
    fields: SamplingFields,
    settings: Settings,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    constraint: object | None = None,
) -> SamplingParams:
    """How the answers are sampled.

    As in OpenAI's API, the temperature is 1 where none is given. A negative `seed` counts as its
    two's complement. Raises `ApiError` 400, which names the field.
    """
    given: dict[str, Any] = {
        name: value for name in (*_PLAIN, *_RENAMED) if (value := getattr(fields, name)) is not None
    }
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    ids = fields.stop_token_ids or []
    check_count("stop", len(stop), settings, "most_stops")
    check_count("stop_token_ids", len(ids), settings, "most_biases")
    check_count("logit_bias", len(fields.logit_bias or ()), settings, "most_biases")
    for text in stop:
        if len(text) > settings.stop_characters:
            raise ApiError(
                400,
                f"a stop string has {len(text)} characters, and at most "
                f"{settings.stop_characters} are allowed: shorten it, or "
                + raised_by("stop_characters"),
                param="stop",
                code="invalid_value",
            )
    if fields.seed is not None:
        if not -_SEEDS // 2 <= fields.seed < _SEEDS:
            raise ApiError(400, "seed must be a 64-bit number", param="seed", code="invalid_value")
        given["seed"] = fields.seed % _SEEDS
    if fields.top_k == -1:  # vLLM's way to say that there is no such bound
        given["top_k"] = 0
    if constraint is not None:
        given["constraint"] = constraint
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if fields.temperature is None else fields.temperature,
            top_p=1.0 if fields.top_p is None else fields.top_p,
            stop=tuple(stop),
            stop_token_ids=tuple(ids),
            logit_bias=_biases(fields.logit_bias or {}),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            **given,
        )
    except RequestError as error:
        message = str(error)
        name = message.partition(" ")[0]
        param = name if name in fields.__struct_fields__ else None
        raise ApiError(400, message, param=param, code="invalid_value") from None


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise ApiError(
                400,
                f"logit_bias names {token!r:.40}, which is not a token id",
                param="logit_bias",
                code="invalid_value",
            )
        biases[int(token)] = bias
    return biases


def check_count(name: str, count: int, settings: Settings, limit: str, least: int = 0) -> None:
    """Raises `ApiError` 400 where a request has more of something than the `limit` allows."""
    most: int = getattr(settings, limit)
    if not least <= count <= most:
        advice = f": {raised_by(limit)}" if count > most else ""
        raise ApiError(
            400,
            f"{name} has {count} entries, and may have from {least} to {most}{advice}",
            param=name,
            code="invalid_value",
        )


def choices_of(fields: SamplingFields, settings: Settings) -> int:
    """How many answers each prompt gets; raises `ApiError` 400."""
    n = 1 if fields.n is None else fields.n
    if not 1 <= n <= settings.most_choices:
        raise ApiError(
            400,
            f"n must be from 1 to {settings.most_choices}, not {n}: ask in several requests, or "
            + raised_by("most_choices"),
            param="n",
            code="invalid_value",
        )
    return n


def priority_of(fields: CommonFields) -> int:
    """Which of the waiting requests goes first; raises `ApiError` 400."""
    priority = fields.priority or 0
    if abs(priority) > _MOST_PRIORITY:
        raise ApiError(
            400,
            f"priority must be from -{_MOST_PRIORITY} to {_MOST_PRIORITY}",
            param="priority",
            code="invalid_value",
        )
    return priority


def seconds_of(fields: CommonFields, settings: Settings) -> float:
    """How long the answers may take; raises `ApiError` 400."""
    seconds = fields.timeout
    if seconds is None:
        return settings.request_seconds
    if not seconds > 0:
        raise ApiError(
            400, "timeout must be seconds above 0", param="timeout", code="invalid_value"
        )
    return min(seconds, settings.request_seconds)


def options_of(fields: SamplingFields) -> StreamOptions | None:
    """What the stream has besides text, None where none is wanted; raises `ApiError` 400."""
    if fields.stream:
        return fields.stream_options or StreamOptions()
    if fields.stream_options is not None:
        raise ApiError(
            400,
            "stream_options are for streams: set stream, or leave them out",
            param="stream_options",
            code="invalid_value",
        )
    return None


def form_of(fields: SamplingFields) -> dict[str, Any]:
    """The fields that ask for a form of the answer, without those that ask for plain text."""
    form = {name: value for name in FORM_FIELDS if (value := getattr(fields, name)) is not None}
    if form.get("response_format") == {"type": "text"}:
        del form["response_format"]
    return form


def refuse_forms(fields: SamplingFields, state: ServerState) -> None:
    """Raises `ApiError` 400 where a form is asked for, and the server gives none."""
    if state.structured is None:
        for name in form_of(fields):
            raise unsupported(name)


def unsupported(name: str) -> ApiError:
    """What a client is told that uses a part of the API which this server does without."""
    return ApiError(
        400,
        f"{name} is not supported by this server: leave it out",
        param=name,
        code="unsupported_parameter",
    )


def created_now() -> int:
    """The seconds of the epoch, as responses have them."""
    return int(time.time())
