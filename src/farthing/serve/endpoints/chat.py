"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.core import RequestError
from farthing.serve.answer_parts import AnswerParser
from farthing.serve.asking import Asked
from farthing.serve.chat_answers import ChatAnswers, ChatChunks
from farthing.serve.endpoints.models import check_model
from farthing.serve.generation import Generation
from farthing.serve.misses import PromptPlaces
from farthing.serve.reading import read_structure
from farthing.serve.reasoning import ReasoningParser, effort_variables, is_begun, reasoning_tokens
from farthing.serve.sse import respond
from farthing.serve.wire.chat import ChatRequest, template_messages, template_variables
from farthing.serve.wire.common import (
    check_count,
    choices_of,
    form_of,
    options_of,
    priority_of,
    refuse_forms,
    sampling_of,
    seconds_of,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.core import Constraint, SamplingParams
    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine
    from farthing.engine.prefix import Miss
    from farthing.serve.reasoning import Tags
    from farthing.serve.state import ServerState, ToolUse
    from farthing.serve.wire.common import PrefixMiss, StreamOptions


async def chat(state: ServerState, request: Request) -> Response:
    """Answers a chat, in one piece or as a stream."""
    answers, options = await _begin(state, request)
    chunks = None if options is None else ChatChunks(answers, options)
    return await respond(answers, chunks, state, request)


async def _begin(state: ServerState, request: Request) -> tuple[ChatAnswers, StreamOptions | None]:
    """The answers on their way, and the options of the stream where they are wanted as one."""
    engine, card = state.ready()
    settings = state.settings
    fields, raw, body = await read_structure(request, state, ChatRequest)
    check_model(card, fields.model)
    check_count("messages", len(fields.messages), settings, "most_messages", least=1)
    asking = ChatAsking(state, engine, fields, template_messages(fields.messages, raw["messages"]))
    options = options_of(fields)
    asked = Asked(
        param="messages",
        prompts=1,
        body=body,
        prompt_bytes=len(body),
        prompt_tokens=None,
        max_tokens=fields.most_tokens(),
        n=choices_of(fields, settings),
        priority=priority_of(fields),
        seconds=seconds_of(fields, settings),
        slow=True,
        prepare=asking.prepare,
        explain=asking.explain if fields.explain_prefix_miss else None,
        reasoning_tokens=asking.reasoning_tokens,
    )
    generation = await Generation.begin(state, request, asked)
    answers = ChatAnswers(
        generation, engine, card, logprobs=asking.logprobs is not None, parser=asking.parser
    )
    return answers, options


class ChatAsking:
    """What of a chat is done in another thread, once it is admitted."""

    def __init__(
        self,
        state: ServerState,
        engine: Engine,
        fields: ChatRequest,
        messages: list[dict[str, Any]],
    ) -> None:
        self.logprobs = fields.wanted_logprobs()
        self._state = state
        self._engine = engine
        self._fields = fields
        self._messages = messages
        self._places: PromptPlaces | None = None
        self._tools: ToolUse | None = None
        self._tags: Tags | None = None
        self._begun = False
        # Refused before anything is admitted.
        self._variables = template_variables(fields.chat_template_kwargs)
        self._unconstrained = self._sampling(None)
        if fields.tools and state.tools is None:
            raise unsupported("tools")
        refuse_forms(fields, state)

    def prepare(self) -> tuple[list[list[int]], SamplingParams]:
        """The token ids, and how to sample."""
        fields, state = self._fields, self._state
        form = form_of(fields)
        constraint: Constraint | None = None
        if form and state.structured is not None:
            constraint = state.structured.constraint(form)
        messages, tools = self._messages, None
        if state.tools is not None and self._has_tools():
            parallel = fields.parallel_tool_calls is not False
            self._tools = state.tools.prepare(
                fields.tools or [], fields.tool_choice, parallel, constraint
            )
            messages, tools = self._tools.chat(messages), self._tools.template_tools
            constraint = self._tools.constraint
        template = self._engine.chat_template
        if template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or serve a model that was "
                "trained for chat"
            )
        variables = self._variables
        if fields.reasoning_effort is not None:
            chosen = effort_variables(fields.reasoning_effort, template, self._engine.tokenizer)
            variables = {**chosen, **variables}
        ids = template.encode(messages, tools, most_tokens=self._engine.most_tokens, **variables)
        if state.reasoning is not None and self._may_reason(form):
            self._tags = state.reasoning
            self._begun = is_begun(ids, self._tags, self._engine.tokenizer)
        if fields.explain_prefix_miss:
            self._places = PromptPlaces(self._engine.tokenizer, ids, self._messages)
        return [ids], self._sampled(constraint)

    def _has_tools(self) -> bool:
        """Whether there are tools to call, or calls in the chat's history."""
        fields = self._fields
        return bool(fields.tools or fields.tool_choice) or any(
            message["role"] == "tool" or message.get("tool_calls") for message in self._messages
        )

    def _may_reason(self, form: Mapping[str, object]) -> bool:
        """Whether an answer can begin with reasoning, and that is to be told apart.

        One that has to follow a form, or to be a call, is that from its first token.
        """
        fields = self._fields
        talks = not form and fields.tool_choice in (None, "none", "auto")
        return talks and fields.reasoning_format != "none"

    def parser(self) -> AnswerParser:
        """A new one for an answer, once the prompt is prepared."""
        tags, tools = self._tags, self._tools
        return AnswerParser(
            None if tags is None else ReasoningParser(tags, begun=self._begun),
            None if tools is None else tools.parser(),
            shows_reasoning=self._fields.include_reasoning is not False,
        )

    def reasoning_tokens(self, completion: Completion) -> int:
        """How many tokens of an answer are reasoning."""
        tags = self._tags
        if tags is None or not (self._begun or completion.text.lstrip().startswith(tags.opening)):
            return 0
        return reasoning_tokens(completion.token_ids, tags, self._engine.tokenizer)

    def explain(self, miss: Miss) -> PrefixMiss:
        """Why the cache had no more of the prompt, once that is prepared."""
        assert self._places is not None
        return self._places.explain(miss)

    def _sampled(self, constraint: Constraint | None) -> SamplingParams:
        return self._unconstrained if constraint is None else self._sampling(constraint)

    def _sampling(self, constraint: Constraint | None) -> SamplingParams:
        fields = self._fields
        return sampling_of(
            fields,
            self._state.settings,
            max_tokens=fields.most_tokens(),
            logprobs=self.logprobs,
            constraint=constraint,
        )
