"""How the answers to a chat are written: in one piece, or chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from farthing.serve.generation import StreamUsage
from farthing.serve.ids import new_id
from farthing.serve.logprobs import Aligner, chat_logprobs
from farthing.serve.wire.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChunkChoice,
)
from farthing.serve.wire.common import created_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import msgspec
    from msgspec import UnsetType

    from farthing.engine.completion import Completion, Delta
    from farthing.engine.engine import Engine
    from farthing.serve.answer_parts import AnswerParser
    from farthing.serve.generation import Generation
    from farthing.serve.state import ModelCard
    from farthing.serve.wire.chat import ChatLogprobs
    from farthing.serve.wire.common import StreamOptions, UsageCounts


class ChatAnswers:
    """How the answers to one chat are written."""

    def __init__(
        self,
        generation: Generation,
        engine: Engine,
        card: ModelCard,
        *,
        logprobs: bool,
        parser: Callable[[], AnswerParser],
    ) -> None:
        """`parser` gives a new one for each answer."""
        self.id = f"chatcmpl-{new_id()}"
        self.created = created_now()
        self.model = card.id
        self.generation = generation
        self.tokenizer = engine.tokenizer
        self.logprobs = logprobs
        self.parser = parser

    def whole(self, completions: Sequence[Completion]) -> ChatCompletion:
        """All in one piece."""
        choices = [self._choice(index, each) for index, each in enumerate(completions)]
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.generation.usage(),
        )

    def _choice(self, index: int, completion: Completion) -> ChatChoice:
        reason: str = completion.finish_reason or "stop"
        parser = self.parser()
        parts = parser.push(completion.text, last=True)
        content: str | None = parts.text
        if parser.called:
            content, reason = content or None, finish_of_calls(reason)
        logprobs = None
        if completion.logprobs is not None and self.logprobs:
            aligner = Aligner(self.tokenizer)
            placed = aligner.push(completion.logprobs, completion.text, completion.finish_reason)
            logprobs = chat_logprobs(self.tokenizer, placed)
        message = AnswerMessage(
            content,
            reasoning_content=parts.reasoning or UNSET,
            tool_calls=joined_calls(parts.calls) or UNSET,
        )
        return ChatChoice(index, message, logprobs, reason)


class _Writer:
    """One answer of a stream: what has to be remembered between its chunks."""

    def __init__(self, answers: ChatAnswers, index: int) -> None:
        self.index = index
        self.begun = False
        self.parser = answers.parser()
        self.aligner = Aligner(answers.tokenizer) if answers.logprobs else None
        self.tokenizer = answers.tokenizer

    def write(self, delta: Delta, *, always: bool) -> ChunkChoice | None:
        """The chunk's part for a delta; None where nothing is to be seen, unless `always`."""
        reason = delta.finish_reason
        reasoning, text, calls = self.parser.push(delta.text, last=reason is not None)
        finish: str | None = reason
        if reason is not None and self.parser.called:
            finish = finish_of_calls(reason)
        logprobs: ChatLogprobs | None = None
        if self.aligner is not None:
            placed = self.aligner.push(delta.logprobs or (), delta.text, reason)
            logprobs = chat_logprobs(self.tokenizer, placed) if placed else None
        if not (text or reasoning or finish or calls or logprobs or always):
            return None
        part = ChatDelta(
            UNSET if self.begun else "assistant",
            # The first has a content, the others may be nothing but a call or the reason.
            text if text or not self.begun else UNSET,
            reasoning or UNSET,
            [dict(each) for each in calls] or UNSET,
        )
        self.begun = True
        return ChunkChoice(self.index, part, logprobs, finish)


class ChatChunks:
    """How the answers to one chat are streamed."""

    def __init__(self, answers: ChatAnswers, options: StreamOptions) -> None:
        self._answers = answers
        self._writers = [_Writer(answers, i) for i in range(answers.generation.answers)]
        self._usage = StreamUsage(answers.generation, options)

    def of(self, deltas: Iterable[tuple[int, Delta]]) -> list[msgspec.Struct]:
        """A chunk for each delta with something to see."""
        chunks: list[msgspec.Struct] = []
        for index, delta in deltas:
            choice = self._writers[index].write(delta, always=self._usage.continuous)
            if choice is not None:
                chunks.append(self._chunk([choice], self._usage.each()))
        return chunks

    def last(self) -> list[msgspec.Struct]:
        """The usage, where it was asked for."""
        usage = self._usage.last()
        return [] if usage is None else [self._chunk([], usage)]

    def _chunk(
        self, choices: list[ChunkChoice], usage: UsageCounts | UnsetType | None
    ) -> ChatChunk:
        answers = self._answers
        return ChatChunk(
            id=answers.id,
            created=answers.created,
            model=answers.model,
            choices=choices,
            usage=usage,
        )


def finish_of_calls(reason: str) -> str:
    """The finish reason of an answer with calls, of which the last may have been cut off."""
    return "tool_calls" if reason == "stop" else reason


def joined_calls(deltas: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls from the deltas in which they are streamed."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        function = delta.get("function", {})
        call = calls.setdefault(
            delta["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
        )
        if delta.get("id"):
            call["id"] = delta["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return [calls[index] for index in sorted(calls)]
