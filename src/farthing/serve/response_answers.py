"""How an answer of the Responses API is written: in one piece, or as its sequence of events.

An answer is a list of items, messages and calls of functions. Both ways go through `Items`, which
opens and closes them as text and calls come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from farthing.serve.ids import new_id
from farthing.serve.sse import EventStream
from farthing.serve.wire.common import created_now
from farthing.serve.wire.responses import (
    AskedReasoning,
    CachedInput,
    Incomplete,
    OutputCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningOutput,
    ReasoningText,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from farthing.engine.completion import Completion, Delta
    from farthing.serve.answer_parts import AnswerParser
    from farthing.serve.errors import ApiError
    from farthing.serve.generation import Generation
    from farthing.serve.state import ModelCard
    from farthing.serve.wire.common import UsageCounts
    from farthing.serve.wire.responses import OutputItem, ResponseRequest


class ResponseAnswers:
    """How the answer to one request is written."""

    def __init__(
        self,
        generation: Generation,
        card: ModelCard,
        request: ResponseRequest,
        parser: Callable[[], AnswerParser],
    ) -> None:
        """`parser` gives a new one for each answer."""
        self.generation = generation
        self._parser = parser
        form = None if request.text is None else request.text.format
        self._begun = ResponseObject(
            id=f"resp_{new_id()}",
            created_at=created_now(),
            status="in_progress",
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            model=card.id,
            output=[],
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=AskedReasoning(
                None if request.reasoning is None else request.reasoning.effort
            ),
            temperature=1.0 if request.temperature is None else request.temperature,
            text={"format": form or {"type": "text"}},
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_p=1.0 if request.top_p is None else request.top_p,
            user=request.user,
            metadata=request.metadata or {},
        )

    def items(self) -> Items:
        """For one answer that is still to come."""
        return Items(self._parser())

    def begun(self) -> ResponseObject:
        """The answer before anything of it has come."""
        return self._begun

    def ended(self, output: list[OutputItem], finish_reason: str | None) -> ResponseObject:
        """The answer when all has come."""
        usage = self.generation.usage()
        complete = finish_reason != "length"
        return replace(
            self._begun,
            status="completed" if complete else "incomplete",
            incomplete_details=None if complete else Incomplete("max_output_tokens"),
            output=output,
            usage=ResponseUsage(
                usage.prompt_tokens,
                CachedInput(usage.prompt_tokens_details.cached_tokens),
                usage.completion_tokens,
                ReasoningOutput(_reasoning_of(usage)),
                usage.total_tokens,
            ),
        )

    def whole(self, done: Sequence[Completion]) -> ResponseObject:
        """All in one piece."""
        items = self.items()
        [completion] = done
        items.push(completion.text, completion.finish_reason)
        return self.ended(items.output, completion.finish_reason)


def _reasoning_of(usage: UsageCounts) -> int:
    written = usage.completion_tokens_details
    return 0 if written is UNSET else written.reasoning_tokens or 0


class Items:
    """The items of an answer, and the events that tell of them, both as text comes."""

    def __init__(self, parser: AnswerParser) -> None:
        self.output: list[OutputItem] = []
        self._parser = parser
        self._open: OutputItem | None = None
        self._call: int | None = None
        self._space = ""
        self._events: list[dict[str, Any]] = []

    def push(self, text: str, finish_reason: str | None) -> list[dict[str, Any]]:
        """The events of more text, without their numbers; those of the end where it has a reason.

        With it comes what was held back.
        """
        reasoning, text, calls = self._parser.push(text, last=finish_reason is not None)
        self._write_reasoning(reasoning)
        self._write(text)
        for call in calls:
            self._write_call(call)
        if finish_reason is not None:
            if not self.output:
                self._open_message()
            self._close("completed" if finish_reason != "length" else "incomplete")
        events, self._events = self._events, []
        return events

    def _write_reasoning(self, text: str) -> None:
        if not text:
            return
        if not isinstance(self._open, OutputReasoning):
            item = OutputReasoning(f"rs_{new_id()}", "in_progress", [])
            self._begin(item)
            self._add_part(item, ReasoningText(""))
        assert isinstance(self._open, OutputReasoning)
        self._open.content[0].text += text
        self._tell(
            "response.reasoning_text.delta", item_id=self._open.id, content_index=0, delta=text
        )

    def _write(self, text: str) -> None:
        text = self._space + text
        self._space = ""
        if not isinstance(self._open, OutputMessage):
            if self._parser.calls and not text.strip():
                # Between calls, and before the first, it belongs to nothing.
                self._space = text
                return
            if not text:
                return
            self._open_message()
        if not text:
            return
        assert isinstance(self._open, OutputMessage)
        self._open.content[0].text += text
        self._tell(
            "response.output_text.delta",
            item_id=self._open.id,
            content_index=0,
            delta=text,
            logprobs=[],
        )

    def _write_call(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function") or {}
        if not isinstance(self._open, OutputCall) or delta["index"] != self._call:
            self._close("completed")
            call_id = delta.get("id") or f"call_{new_id()}"
            name = function.get("name") or ""
            self._begin(OutputCall(f"fc_{new_id()}", "in_progress", call_id, name, ""))
            self._call = delta["index"]
        assert isinstance(self._open, OutputCall)
        arguments = function.get("arguments") or ""
        if arguments:
            self._open.arguments += arguments
            self._tell(
                "response.function_call_arguments.delta", item_id=self._open.id, delta=arguments
            )

    def _open_message(self) -> None:
        self._close("completed")
        message = OutputMessage(f"msg_{new_id()}", "in_progress", [])
        self._begin(message)
        self._add_part(message, OutputText(""))

    def _add_part(self, item: OutputMessage | OutputReasoning, part: Any) -> None:
        """The one part that an item of text has."""
        item.content = [part]
        self._tell(
            "response.content_part.added", item_id=item.id, content_index=0, part=replace(part)
        )

    def _begin(self, item: OutputItem) -> None:
        self._open = item
        self.output.append(item)
        self._tell("response.output_item.added", item=replace(item))

    def _close(self, status: str) -> None:
        """The item that is open is whole, or cut short."""
        item = self._open
        if item is None:
            return
        item.status = status
        if isinstance(item, OutputMessage | OutputReasoning):
            part = item.content[0]
            of: dict[str, Any] = {"item_id": item.id, "content_index": 0}
            if isinstance(item, OutputMessage):
                self._tell("response.output_text.done", text=part.text, logprobs=[], **of)
            else:
                self._tell("response.reasoning_text.done", text=part.text, **of)
            self._tell("response.content_part.done", part=part, **of)
        else:
            self._tell(
                "response.function_call_arguments.done",
                item_id=item.id,
                name=item.name,
                arguments=item.arguments,
            )
        self._tell("response.output_item.done", item=item)
        self._open = self._call = None

    def _tell(self, type: str, **fields: Any) -> None:  # noqa: A002
        index = len(self.output) - 1
        self._events.append({"type": type, "output_index": index, **fields})


class ResponseChunks:
    """The events of one answer."""

    def __init__(self, answers: ResponseAnswers) -> None:
        self._answers = answers
        self._items = answers.items()
        self._told = 0
        self._reason: str | None = None

    def of(self, deltas: Iterable[tuple[int, Delta]]) -> list[msgspec.Struct]:
        """The events for what came."""
        events: list[msgspec.Struct] = []
        for _, delta in deltas:
            if not self._told:
                response = self._answers.begun()
                events.append(self._event(type="response.created", response=response))
                events.append(self._event(type="response.in_progress", response=response))
            told = self._items.push(delta.text, delta.finish_reason)
            self._reason = delta.finish_reason
            events += [self._event(**each) for each in told]
        return events

    def last(self) -> list[msgspec.Struct]:
        """The event with the whole answer."""
        response = self._answers.ended(self._items.output, self._reason)
        return [self._event(type=f"response.{response.status}", response=response)]

    def failed(self, error: ApiError) -> ResponseEvent:
        """The event of a failure; `error` is for clients that look for it as elsewhere."""
        return self._event(
            type="error",
            code=error.code,
            message=error.message,
            param=error.param,
            error=error.body().error,
        )

    def _event(self, **fields: Any) -> ResponseEvent:
        event = ResponseEvent(sequence_number=self._told, **fields)
        self._told += 1
        return event


class ResponseStream(EventStream):
    """Events with a name each, and none to mark the end: the last one says so."""

    end = b""

    def written(self, chunk: object) -> bytes:
        """One event, as it is sent."""
        assert isinstance(chunk, ResponseEvent)
        return b"event: " + chunk.type.encode("ascii") + b"\n" + super().written(chunk)

    def written_error(self, error: ApiError) -> bytes:
        """The last event where the answer fails."""
        assert isinstance(self.chunks, ResponseChunks)
        return self.written(self.chunks.failed(error))
