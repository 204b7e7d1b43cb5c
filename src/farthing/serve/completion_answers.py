"""How the answers to plain prompts are written: in one piece, or chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.serve.generation import StreamUsage
from farthing.serve.ids import new_id
from farthing.serve.logprobs import Aligner, completion_logprobs, joined, prompt_logprobs
from farthing.serve.wire.common import created_now
from farthing.serve.wire.completions import CompletionChoice, TextCompletion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    from msgspec import UnsetType

    from farthing.engine.completion import Completion, Delta
    from farthing.engine.engine import Engine
    from farthing.serve.generation import Generation
    from farthing.serve.logprobs import Placed
    from farthing.serve.state import ModelCard
    from farthing.serve.wire.common import StreamOptions, UsageCounts
    from farthing.serve.wire.completions import CompletionLogprobs


class CompletionAnswers:
    """How the answers to one request are written."""

    def __init__(
        self,
        generation: Generation,
        engine: Engine,
        card: ModelCard,
        *,
        logprobs: bool,
        echoes: Sequence[str],
    ) -> None:
        """`echoes` are what stands before the answers to each prompt; none where nothing does."""
        self.id = f"cmpl-{new_id()}"
        self.created = created_now()
        self.model = card.id
        self.generation = generation
        self.tokenizer = engine.tokenizer
        self.logprobs = logprobs
        self._echoes = echoes

    def echo(self, index: int) -> str:
        """What stands before an answer."""
        if not self._echoes:
            return ""
        return self._echoes[index * len(self._echoes) // self.generation.answers]

    def logprobs_of(
        self, index: int, placed: Sequence[Placed], *, first: bool
    ) -> CompletionLogprobs:
        """Of what has been added to an answer; the `first` has those of an echoed prompt, too."""
        found = completion_logprobs(self.tokenizer, placed, len(self.echo(index)))
        scores = self.generation.prompt_logprobs(index) if first else None
        if scores is None:
            return found
        prompt = self.generation.prompt(index)
        return joined(prompt_logprobs(self.tokenizer, prompt, scores), found)

    def whole(self, done: Sequence[Completion]) -> TextCompletion:
        """All in one piece."""
        choices = []
        for index, each in enumerate(done):
            text, reason, logprobs = each.text, each.finish_reason, None
            if each.logprobs is not None:
                placed = Aligner(self.tokenizer).push(each.logprobs, text, reason)
                logprobs = self.logprobs_of(index, placed, first=True)
            choices.append(CompletionChoice(index, self.echo(index) + text, logprobs, reason))
        return self.body(choices, self.generation.usage())

    def body(
        self, choices: list[CompletionChoice], usage: UsageCounts | UnsetType | None
    ) -> TextCompletion:
        """A response or a chunk."""
        return TextCompletion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )


class CompletionChunks:
    """How the answers to one request are streamed."""

    def __init__(self, answers: CompletionAnswers, options: StreamOptions) -> None:
        self._answers = answers
        count = answers.generation.answers
        self._begun = [False] * count
        self._aligners = [Aligner(answers.tokenizer) for _ in range(count)]
        self._usage = StreamUsage(answers.generation, options)

    def of(self, deltas: Iterable[tuple[int, Delta]]) -> list[msgspec.Struct]:
        """A chunk for each delta with something to see."""
        answers = self._answers
        chunks: list[msgspec.Struct] = []
        for index, delta in deltas:
            text, reason = delta.text, delta.finish_reason
            logprobs: CompletionLogprobs | None = None
            if answers.logprobs:
                placed = self._aligners[index].push(delta.logprobs or (), text, reason)
                logprobs = answers.logprobs_of(index, placed, first=not self._begun[index])
            if text or reason or self._usage.continuous or (logprobs and logprobs.tokens):
                if not self._begun[index]:
                    self._begun[index] = True
                    text = answers.echo(index) + text
                choice = CompletionChoice(index, text, logprobs, reason)
                chunks.append(answers.body([choice], self._usage.each()))
        return chunks

    def last(self) -> list[msgspec.Struct]:
        """The usage, where it was asked for."""
        usage = self._usage.last()
        return [] if usage is None else [self._answers.body([], usage)]
