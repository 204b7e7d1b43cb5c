"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.serve.asking import Asked, is_slow
from farthing.serve.completion_answers import CompletionAnswers, CompletionChunks
from farthing.serve.endpoints.models import check_model
from farthing.serve.errors import ApiError
from farthing.serve.generation import Generation
from farthing.serve.reading import read_structure
from farthing.serve.settings import raised_by
from farthing.serve.sse import respond
from farthing.serve.wire.common import (
    check_count,
    choices_of,
    form_of,
    options_of,
    priority_of,
    refuse_forms,
    sampling_of,
    seconds_of,
)
from farthing.serve.wire.completions import CompletionRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.core import Constraint, SamplingParams
    from farthing.engine.engine import Engine
    from farthing.serve.settings import Settings
    from farthing.serve.state import ServerState
    from farthing.serve.wire.common import StreamOptions


async def completions(state: ServerState, request: Request) -> Response:
    """Continues prompts, in one piece or as a stream."""
    answers, options = await _begin(state, request)
    chunks = None if options is None else CompletionChunks(answers, options)
    return await respond(answers, chunks, state, request)


async def _begin(
    state: ServerState, request: Request
) -> tuple[CompletionAnswers, StreamOptions | None]:
    """The answers on their way, and the options of the stream where they are wanted as one."""
    engine, card = state.ready()
    settings = state.settings
    fields, _, body = await read_structure(request, state, CompletionRequest)
    check_model(card, fields.model)
    prompts, n = fields.prompts(), choices_of(fields, settings)
    _check_counts(prompts, n, settings)
    options = options_of(fields)
    asking = _Asking(state, engine, fields, prompts)
    size = sum(len(each.encode("utf-8", "replace")) for each in asking.texts)
    asked = Asked(
        param="prompt",
        prompts=len(prompts),
        body=body,
        prompt_bytes=size,
        prompt_tokens=None if asking.texts else sum(map(len, prompts)),
        max_tokens=fields.most_tokens(),
        n=n,
        priority=priority_of(fields),
        seconds=seconds_of(fields, settings),
        slow=is_slow(size) or bool(form_of(fields)),
        prepare=asking.prepare,
    )
    generation = await Generation.begin(state, request, asked)
    answers = CompletionAnswers(
        generation, engine, card, logprobs=asking.logprobs is not None, echoes=asking.echoes
    )
    return answers, options


def _check_counts(prompts: Sequence[object], n: int, settings: Settings) -> None:
    check_count("prompt", len(prompts), settings, "most_prompts", least=1)
    if len(prompts) * n > settings.most_answers:
        raise ApiError(
            400,
            f"{len(prompts)} prompts with {n} answers each are more than {settings.most_answers} "
            "answers: send fewer at a time, or " + raised_by("most_answers"),
            param="n",
            code="invalid_value",
        )


class _Asking:
    """What is done once a request is admitted: encoding the prompts."""

    def __init__(
        self,
        state: ServerState,
        engine: Engine,
        fields: CompletionRequest,
        prompts: list[str] | list[list[int]],
    ) -> None:
        self.prompts = prompts
        self.texts = [each for each in prompts if isinstance(each, str)]
        self.logprobs = fields.wanted_logprobs()
        self.echoes: list[str] = []
        self._state = state
        self._engine = engine
        self._fields = fields
        if (
            fields.echo
            and self.logprobs is not None
            and fields.stream
            and fields.n not in (None, 1)
        ):
            raise ApiError(
                400,
                "a stream with log-probabilities of its prompt has one answer a prompt: leave out "
                "n, echo or logprobs, or do not stream",
                param="n",
                code="unsupported_parameter",
            )
        # Refused before anything is admitted.
        self._unconstrained = self._sampling(None)
        refuse_forms(fields, state)

    def prepare(self) -> tuple[list[list[int]], SamplingParams]:
        """The token ids, and how to sample."""
        form, structured = form_of(self._fields), self._state.structured
        constraint = structured.constraint(form) if form and structured is not None else None
        most = self._engine.most_tokens
        ids = [
            self._engine.tokenizer.encode(each, most_tokens=most) if isinstance(each, str) else each
            for each in self.prompts
        ]
        if self._fields.echo:
            self.echoes = self.texts or [self._engine.tokenizer.decode(each) for each in ids]
        return ids, self._sampled(constraint)

    def _sampled(self, constraint: Constraint | None) -> SamplingParams:
        return self._unconstrained if constraint is None else self._sampling(constraint)

    def _sampling(self, constraint: Constraint | None) -> SamplingParams:
        return sampling_of(
            self._fields,
            self._state.settings,
            max_tokens=self._fields.most_tokens(),
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self._fields.echo else None,
            constraint=constraint,
        )
