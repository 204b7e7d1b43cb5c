"""From a request that was read to the engine, and its answers on their way back."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import UNSET

from farthing.core import FarthingError
from farthing.serve.asking import admit, prepared, submit
from farthing.serve.errors import ApiError, ClientGoneError, api_error, retry_headers
from farthing.serve.settings import raised_by
from farthing.serve.wire.common import CachedTokens, UsageCounts, WrittenTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from msgspec import UnsetType
    from starlette.requests import Request
    from starlette.types import Receive

    from farthing.engine.completion import Completion, Delta
    from farthing.engine.prefix import Miss
    from farthing.engine.prompt_rows import TokenLogprob
    from farthing.engine.stream import Stream
    from farthing.serve.asking import Asked
    from farthing.serve.state import Caller, RequestRecord, ServerState, Ticket
    from farthing.serve.wire.common import PrefixMiss, StreamOptions


class Generation:
    """The answers to one request, numbered: those to the first prompt, those to the second, ...

    Made by `begin`, `before` seconds after the request arrived; whoever has it must `close` it,
    however it ended. `gone`: the client has left, and all is cancelled.
    """

    def __init__(
        self,
        state: ServerState,
        record: RequestRecord,
        ticket: Ticket | None,
        prompts: list[list[int]],
        streams: list[Stream],
        before: float,
        explain: Callable[[Miss], PrefixMiss] | None,
        reasoning_tokens: Callable[[Completion], int] | None,
    ) -> None:
        self.gone = False
        self.prompt_tokens = sum(map(len, prompts))
        self.generated = 0
        self.prompts = prompts
        self._state = state
        self._record = record
        self._ticket = ticket
        self._streams = streams
        self._explain = explain
        self._reasoning_tokens = reasoning_tokens
        self._open = dict(enumerate(streams))
        self._unarmed = set(self._open)
        # Whose prompt nobody has been told the log-probabilities of yet.
        self._unscored = set(self._open)
        self._came: dict[int, float] = {}
        self._error: Exception | None = None
        self._bell: asyncio.Future[None] | None = None
        self._rung = False
        self._before = before
        self._loop = asyncio.get_running_loop()
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def begin(cls, state: ServerState, request: Request, asked: Asked) -> Generation:
        """Admits, encodes and submits a request.

        Raises `ApiError` when it is refused, and `ClientGoneError` when its client has left.
        """
        engine, _ = state.ready()
        record: RequestRecord = request.state.record
        caller: Caller = request.state.caller
        began: float = request.state.began
        record.answers = asked.prompts * asked.n
        record.max_tokens = asked.max_tokens
        ticket = admit(state, caller, asked)
        streams: list[Stream] = []
        try:
            prompts, sampling = await prepared(asked)
            if ticket is not None:
                ticket.settle(sum(map(len, prompts)))
            # The engine may compute before `submit` returns: that time is in its own timing.
            before = perf_counter() - began
            await submit(state, engine, caller.name, asked, prompts, sampling, streams)
            if ticket is not None:
                ticket.follow(streams)
            return cls(
                state,
                record,
                ticket,
                prompts,
                streams,
                before,
                asked.explain,
                asked.reasoning_tokens,
            )
        except BaseException:
            for stream in streams:
                stream.close()
            if ticket is not None:
                ticket.close()
            raise

    @property
    def answers(self) -> int:
        """How many answers there are in all."""
        return len(self._streams)

    @property
    def unfinished(self) -> bool:
        """Whether `more` has more to give, an error at least."""
        return bool(self._open) or self._error is not None

    def watch(self, receive: Receive) -> None:
        """Cancels everything as soon as the client has left."""
        self._watcher = self._loop.create_task(self._watch(receive))

    def ring(self) -> None:
        """Has `more` return at once, if only with nothing."""
        self._rung = True
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def more(self) -> list[tuple[int, Delta]]:
        """What has come since the last time, each with the number of its answer.

        Waits until there is something; empty after `ring`. Raises, once all that came before has
        been given, `ClientGoneError`, or the `ApiError` that ended the answers.
        """
        while True:
            if self.gone:
                raise ClientGoneError
            deltas = self._take()
            if deltas or self._rung or not self._open:
                self._rung = False
                break
            if self._error is not None:
                break
            self._bell = self._loop.create_future()
            if self._arm():
                await self._bell
        if self._error is not None and not deltas:
            self._open.clear()
            self._raise_error()
        return deltas

    async def completions(self, receive: Receive) -> list[Completion]:
        """All answers, when the last has ended; wakes for nothing before.

        Raises `ClientGoneError` when the client left meanwhile, and an `ApiError` when an answer
        did not come to an end of its own.
        """
        self.watch(receive)
        try:
            done = [await stream for stream in self._streams]
        except FarthingError as failure:
            raise api_error(failure) from failure
        if self.gone:
            raise ClientGoneError
        for completion in done:
            self._error = self._error or _unfinished(self._state, completion.finish_reason)
        self._raise_error()
        self.generated = sum(len(each.token_ids) for each in done)
        return done

    def prompt(self, number: int) -> list[int]:
        """The token ids of an answer's prompt."""
        return self.prompts[number * len(self.prompts) // len(self._streams)]

    def prompt_logprobs(self, number: int) -> tuple[TokenLogprob | None, ...] | None:
        """Those of the tokens of an answer's prompt; None where they were not asked for."""
        choices = len(self._streams) // len(self.prompts)
        return self._streams[number - number % choices].prompt_logprobs

    def scores(self, parts: Iterable[tuple[int, Completion | Delta]]) -> int:
        """The tokens with log-probabilities in these parts of answers, and in the prompts of those
        that begin with them.
        """
        found = 0
        for number, part in parts:
            found += len(part.logprobs or ())
            if number in self._unscored:
                self._unscored.remove(number)
                found += len(self._streams[number].prompt_logprobs or ())
        return found

    def cached_tokens(self) -> int:
        """The tokens of the prompts that the cache had; the answers to a prompt share it."""
        return sum(stream.usage.cached_tokens for stream in self._first())

    def _first(self) -> list[Stream]:
        """The first answer to each prompt."""
        return self._streams[:: len(self._streams) // len(self.prompts)]

    def cached(self) -> CachedTokens:
        """The same as a client is told it, with why it was no more where that is wanted."""
        tokens = self.cached_tokens()
        if self._explain is None:
            return CachedTokens(tokens)
        miss = self._streams[0].completion.miss
        return CachedTokens(tokens, None if miss is None else self._explain(miss))

    def usage(self) -> UsageCounts:
        """The tokens of all answers, when they have ended."""
        reasoning = 0
        if self._reasoning_tokens is not None:
            reasoning = sum(self._reasoning_tokens(each.completion) for each in self._streams)
        return self.usage_with(self.cached(), reasoning)

    def usage_with(self, cached: CachedTokens, reasoning: int = 0) -> UsageCounts:
        """The tokens so far, where the cached ones are known, and those of reasoning."""
        return UsageCounts(
            self.prompt_tokens,
            self.generated,
            self.prompt_tokens + self.generated,
            cached,
            self._written(reasoning),
        )

    def _written(self, reasoning: int) -> WrittenTokens | UnsetType:
        usages = [stream.usage for stream in self._streams]
        drafted = sum(usage.drafted_tokens for usage in usages)
        accepted = sum(usage.accepted_tokens for usage in usages)
        if not (drafted or reasoning):
            return UNSET
        return WrittenTokens(
            reasoning or UNSET,
            accepted if drafted else UNSET,
            drafted - accepted if drafted else UNSET,
        )

    def close(self) -> None:
        """Cancels what is not done, and notes what the request took. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # it knows this generation: both would wait for the collector
        for stream in self._streams:
            stream.close()
        if self._ticket is not None:
            self._ticket.close()
        self._note()

    def _take(self) -> list[tuple[int, Delta]]:
        deltas: list[tuple[int, Delta]] = []
        tokens, now = 0, perf_counter()
        for number, stream in list(self._open.items()):
            delta = stream.take()
            if delta is not None:
                tokens += len(delta.token_ids)
                if number in self._came:
                    self._state.came(len(delta.token_ids), now - self._came[number])
                self._came[number] = now
                error = _unfinished(self._state, delta.finish_reason)
                if error is None:
                    deltas.append((number, delta))
                self._error = self._error or error
            if stream.finished:
                del self._open[number]
                try:
                    stream.raise_error()
                except FarthingError as failure:
                    self._error = self._error or api_error(failure)
        self.generated += tokens
        return deltas

    def _arm(self) -> bool:
        """False where there is something to take already."""
        quiet = True
        for number in self._unarmed & self._open.keys():
            waiter = self._loop.create_future()
            if self._open[number].arm(waiter):
                self._unarmed.discard(number)
                waiter.add_done_callback(lambda _, number=number: self._woken(number))  # type: ignore[misc]
            else:
                quiet = False
        return quiet

    def _woken(self, number: int) -> None:
        self._unarmed.add(number)
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _raise_error(self) -> None:
        """Raises it, if there is one, and forgets it: its traceback leads here."""
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        for stream in self._streams:
            stream.close()
        self.ring()

    def _note(self) -> None:
        record, done = self._record, [stream.completion for stream in self._streams]
        record.prompt_tokens = sum(stream.prompt_read for stream in self._first())
        record.completion_tokens = sum(each.usage.completion_tokens for each in done)
        record.cached_tokens = self.cached_tokens()
        record.finish_reasons = tuple(each.finish_reason or "cancelled" for each in done)
        record.misses = tuple(each.miss for each in done if each.miss is not None)
        begun = [each.timing for each in done if each.token_ids]
        if begun:
            record.first_token_seconds = self._before + min(t.prefill_seconds for t in begun)
            record.decode_seconds = max(each.decode_seconds for each in begun)
            record.queue_seconds = min(each.queue_seconds for each in begun)
        record.machine_seconds = sum(each.timing.machine_seconds for each in done)


class StreamUsage:
    """The usage in the chunks of a stream: in each, or null in each and a last chunk with it."""

    def __init__(self, generation: Generation, options: StreamOptions) -> None:
        self.continuous = bool(options.continuous_usage_stats)
        self._generation = generation
        self._has_last = bool(options.include_usage)
        self._cached: CachedTokens | None = None

    def each(self) -> UsageCounts | UnsetType | None:
        """For a chunk with text."""
        if not self.continuous:
            return None if self._has_last else UNSET
        if self._cached is None:
            self._cached = self._generation.cached()
        return self._generation.usage_with(self._cached)

    def last(self) -> UsageCounts | None:
        """For the chunk after all text; None where there is none."""
        return self._generation.usage() if self._has_last else None


def _unfinished(state: ServerState, reason: str | None) -> ApiError | None:
    """What a client is told whose answer was ended by neither itself nor its limits."""
    if reason == "timeout":
        return ApiError(
            408,
            "the answer did not end within the time it had: ask for fewer tokens, or set a longer "
            f"timeout; it may be {state.settings.request_seconds:g} seconds at most, and "
            + raised_by("request_seconds"),
            code="timeout",
            retryable=False,
        )
    if reason == "cancelled":
        return ApiError(
            503,
            "the server is shutting down, and the answer is cut short: ask again when it is back",
            code="shutting_down",
            headers=retry_headers(5),
        )
    return None
