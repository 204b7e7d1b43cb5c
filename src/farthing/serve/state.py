"""What all requests share, and what the server's other parts promise to the endpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from farthing.files.catalog import installed, shipped
from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.reasoning import tags_of
from farthing.serve.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from farthing.core import Constraint
    from farthing.engine.engine import Engine
    from farthing.engine.prefix import Miss
    from farthing.engine.stream import Stream
    from farthing.serve.reasoning import Tags
    from farthing.serve.settings import Settings


class Caller(Protocol):
    """Whose request it is. The anonymous caller's name is empty."""

    @property
    def name(self) -> str:
        """The name of the key, which fairness, usage and the cache go by."""


@dataclass(frozen=True)
class Anonymous:
    """Everybody, where no keys are configured."""

    name: str = ""


class Keys(Protocol):
    """Who may use the server."""

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller that an Authorization header names; raises `ApiError` 401."""


class Ticket(Protocol):
    """One admitted request, from its admission to its end."""

    def settle(self, prompt_tokens: int) -> None:
        """The prompts have so many tokens; raises `ApiError` when that is too many."""

    def follow(self, answers: Sequence[Stream]) -> None:
        """Its answers are on their way; they are looked at when somebody else asks."""

    def close(self) -> None:
        """The request has ended, however that was; called once."""


class Admission(Protocol):
    """Whether a request may begin, decided before any work goes into it."""

    def admit(
        self,
        key: Caller,
        *,
        prompt_bytes: int,
        prompt_tokens: int | None,
        max_tokens: int | None,
        n: int,
        priority: int,
        body_digest: bytes = b"",
    ) -> Ticket:
        """A ticket, or an `ApiError`: 429 when the wait would be too long.

        `body_digest` is of the whole body: by it a client that was refused is known again when it
        comes back as it was told to, and keeps its place. Empty, nobody is known again.

        `prompt_bytes` of text, or None and `prompt_tokens` where the ids were sent; `n` answers in
        all of at most `max_tokens` each (None: to the end of the context).
        """


@dataclass
class RequestRecord:
    """What one request was and took, for metrics, usage and the log. No text of anybody's.

    `received` is in seconds of the epoch; the other times are seconds, and None where the request
    did not come so far. `completion_tokens` are of all answers together, and so are
    `machine_seconds`: their share of the time that the machine computed. `queue_seconds` are those
    before the first step that held some of the request. `endpoint` is the path, and where it is not
    `known` nothing is there: then it may be whatever a client wrote.
    """

    id: str
    key: str
    endpoint: str
    known: bool = True
    received: float = field(default_factory=time.time)
    streamed: bool = False
    answers: int = 0
    max_tokens: int | None = None
    status: int = 0
    error_code: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    misses: tuple[Miss, ...] = ()
    seconds: float = 0.0
    first_token_seconds: float | None = None
    decode_seconds: float | None = None
    queue_seconds: float | None = None
    machine_seconds: float = 0.0


class Observer(Protocol):
    """Told of every request to a model when it has ended. Must return within microseconds."""

    def finished(self, record: RequestRecord) -> None:
        """A request has ended: answered, refused, failed or left by its client."""


class Meter(Observer, Protocol):
    """Told of tokens as well, once whenever some are on their way to a client."""

    def came(self, tokens: int, seconds: float) -> None:
        """A stream that had tokens before got so many more, so long after the last ones."""


class ToolParser(Protocol):
    """Takes the tool calls out of one answer as it is written."""

    def push(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """What of the text is content, and the deltas of tool calls, as the API streams them."""

    def finish(self) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """What was held back, when no more text comes."""

    @property
    def called(self) -> bool:
        """Whether there was a call, which makes the finish reason "tool_calls"."""


class ToolUse(Protocol):
    """How the tools of one request are used."""

    @property
    def template_tools(self) -> Sequence[Mapping[str, Any]] | None:
        """What the chat template is given."""

    @property
    def constraint(self) -> Constraint | None:
        """What the answer is constrained to, for `SamplingParams`; None for nothing."""

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the chat template is given them."""

    def parser(self) -> ToolParser:
        """A new parser, for one answer."""


class Tools(Protocol):
    """Tool calls in the way of the model that is served."""

    def prepare(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str | Mapping[str, Any] | None,
        parallel_tool_calls: bool,
        form: Constraint | None,
    ) -> ToolUse:
        """Without tools, for the calls in a chat's history; `form` is that of an answer in text.

        Raises `ApiError` 400 when they cannot be used as asked. May take milliseconds.
        """


class Structured(Protocol):
    """Answers that follow a form."""

    def constraint(self, fields: Mapping[str, Any]) -> Constraint | None:
        """What `SamplingParams` is given for the fields of a request that ask for a form.

        Those are `response_format`, `structured_outputs` and `guided_*`; None where they ask for
        plain text. Raises `ApiError` 400 when they cannot be followed. May take milliseconds.
        """


@dataclass(frozen=True)
class ModelCard:
    """What is served, for people and programs.

    `receipt` is the quality that was measured, once it is known to speak of these weights; until
    then, and where it does not, `description` says so under "receipt".
    """

    id: str
    created: int
    max_model_len: int
    description: Mapping[str, object] = field(default_factory=dict)
    receipt: Mapping[str, object] | None = None


@dataclass
class Loading:
    """How far the start has come: what is being done, and how much of it, from 0 to 1."""

    phase: str = "starting"
    fraction: float | None = None
    failure: str | None = None


@dataclass
class FirstTokens:
    """Requests of which a token came and that have ended, and how long these waited for it."""

    requests: int = 0
    seconds: float = 0.0


@dataclass
class ServerState:
    """The server, as endpoints see it.

    `engine` and `card` are None until the model is loaded. The other parts are None where they are
    not wanted. `draining`: no request is accepted any more. `reading_bytes` have come of bodies
    that are not whole yet. `tokenizing` are those who wait for /tokenize and /detokenize.
    `reasoning` is how the model marks its own, where that is to be told apart.
    """

    settings: Settings
    engine: Engine | None = None
    card: ModelCard | None = None
    loading: Loading = field(default_factory=Loading)
    draining: bool = False
    keys: Keys | None = None
    admission: Admission | None = None
    usage: Observer | None = None
    metrics: Meter | None = None
    log: Observer | None = None
    tools: Tools | None = None
    structured: Structured | None = None
    started: float = field(default_factory=time.time)
    reading_bytes: int = 0
    first_tokens: FirstTokens = field(default_factory=FirstTokens)
    reasoning: Tags | None = None
    tokenizing: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizing = Turns(self.settings.reading_bytes)

    def serve(self, engine: Engine, card: ModelCard) -> None:
        """From now on this model answers."""
        if self.settings.reasoning_format != "none":
            self.reasoning = tags_of(engine.chat_template, engine.tokenizer)
        self.card = card
        self.engine = engine

    def ready(self) -> tuple[Engine, ModelCard]:
        """The engine and its card; raises `ApiError` 503 while there is none, and when draining."""
        if self.draining:
            raise ApiError(
                503,
                "the server is shutting down: ask another one, or again when it is back",
                code="shutting_down",
                headers=retry_headers(5),
            )
        if self.engine is None or self.card is None:
            done = self.loading
            if done.failure is not None:
                raise ApiError(503, f"the model could not be loaded: {done.failure}", code="failed")
            share = "" if done.fraction is None else f", {done.fraction:.0%}"
            raise ApiError(
                503,
                f"the model is being loaded ({done.phase}{share}): ask again in a moment",
                code="loading",
                headers=retry_headers(1),
            )
        return self.engine, self.card

    def came(self, tokens: int, seconds: float) -> None:
        """Tells who counts tokens; see `Meter`."""
        if self.metrics is not None:
            self.metrics.came(tokens, seconds)

    def finished(self, record: RequestRecord) -> None:
        """Tells everybody who counts."""
        if record.first_token_seconds is not None:
            self.first_tokens.requests += 1
            self.first_tokens.seconds += record.first_token_seconds
        for observer in (self.metrics, self.usage, self.log):
            if observer is not None:
                observer.finished(record)


def card_of(engine: Engine, name: str | None = None) -> ModelCard:
    """The card of a loaded model; `name` is its id instead of its own name."""
    report = engine.report
    description: dict[str, object] = {}
    if report is not None:
        description = {
            "architecture": report.architecture,
            "parameters": report.parameters,
            "context_length": report.context_length,
            "cache_tokens": report.cache_tokens,
            "slots": report.slots,
            "kv_dtype": report.kv_dtype,
            "formats": dict(report.formats),
            "memory_bytes": dict(report.memory),
            "threads": report.threads,
            "isa": report.isa,
        }
        if report.has_receipt:
            description["receipt"] = "being checked"
        if (licence := _licence(report.path)) is not None:
            description["licence"] = licence
    own = "scripted" if report is None else report.model
    return ModelCard(name or own, int(time.time()), engine.most_tokens, description)


def _licence(path: Path) -> str | None:
    """What a model was fetched under; None for a file that farthing did not fetch."""
    known = [*installed(), shipped()]
    return next((each.licence for each in known if each.path == path), None)
