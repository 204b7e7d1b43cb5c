"""What a caller holds of an answer: its deltas as they come, and what it has become."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from farthing.engine.answer import wake
from farthing.engine.completion import Completion, Delta, Timing, Usage

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncIterator, Generator, Iterator

    from farthing.engine.answer import Answer, Waiter
    from farthing.engine.loop import Loop
    from farthing.engine.prompt_rows import TokenLogprob

T = TypeVar("T")

# No signal wakes a thread that is just about to fall asleep, and off Linux none that sleeps: a
# Ctrl-C is then seen when it has slept so long.
_MOST_SECONDS_ASLEEP = 0.2


class Stream:
    """One answer on its way, for one reader at a time: `for`, `async for`, `result`, or `await`.

    What comes while nobody reads is one delta for the next who does: a slow reader holds up nobody,
    and costs no more memory than the text. The last delta has the finish reason. Where the answer
    failed, reading it raises the `FarthingError` after the deltas that were made before.

    Closing it early ends the answer and frees its blocks before the next step; so does dropping the
    last reference to it. A stream keeps its engine alive.
    """

    def __init__(self, answer: Answer, loop: Loop, engine: object) -> None:
        """Made by the engine, before `loop` accepts the answer."""
        self._answer = answer
        self._loop = loop
        self._engine: object | None = engine
        self._read = 0
        self._cut: int | None = None
        self._finished = False

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while (delta := self.take()) is None:
            if self._finished:
                self.raise_error()
                raise StopIteration
            self._wait()
        return delta

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while (delta := self.take()) is None:
            if self._finished:
                self.raise_error()
                raise StopAsyncIteration
            await self._wait_async()
        return delta

    def __await__(self) -> Generator[Any, None, Completion]:
        """Waits for the end, and for nothing before it; as `result` does."""
        return self._result_async().__await__()

    def result(self) -> Completion:
        """Waits for the end, and for nothing before it; raises what the answer failed with."""
        while not self._has_ended:
            self._wait(patient=True)
        return self._outcome()

    def close(self) -> None:
        """Ends the text here, with finish reason "cancelled" if it has not ended by itself.

        Waits for nothing, so a signal handler may call it.
        """
        if not self._has_ended:
            answer = self._answer
            self._cut = answer.made
            self._loop.cancel(answer)
            waiters: list[Waiter] = []
            answer.release(waiters, ended=True)
            wake(waiters)
        self._engine = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def completion(self) -> Completion:
        """The text so far and what it took."""
        answer = self._answer
        made, ended = self._visible()
        cut = self._cut is not None
        text = "".join(answer.pieces[:made])
        request, sequence = answer.request, answer.sequence
        first = len(request.prompt)
        logprobs = None if sequence is None else sequence.logprobs
        return Completion(
            text=text + answer.tail if ended and not cut else text,
            token_ids=() if sequence is None else tuple(sequence.tokens[first : first + made]),
            finish_reason="cancelled" if cut else answer.reason if ended else None,
            logprobs=None if logprobs is None else tuple(logprobs[:made]),
            usage=self._usage(made),
            seed=answer.seed,
            timing=Timing(
                prefill_seconds=answer.first - answer.submitted,
                decode_seconds=answer.last - answer.first,
                native_seconds=answer.native_after - answer.native_before,
                queue_seconds=self.queue_seconds or 0.0,
                machine_seconds=0.0 if sequence is None else sequence.machine_seconds,
            ),
            miss=None if sequence is None else sequence.miss,
            prompt_logprobs=self.prompt_logprobs,
            embedding=answer.embedding if ended and not cut else None,
        )

    @property
    def usage(self) -> Usage:
        """The tokens so far; takes the same time however many they are."""
        return self._usage(self.made)

    def _usage(self, made: int) -> Usage:
        prompt, sequence = len(self._answer.request.prompt), self._answer.sequence
        if sequence is None:
            return Usage(prompt, made)
        return Usage(prompt, made, sequence.reused, sequence.drafted, sequence.accepted)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """The scores of the prompt's tokens, once all are known: before the first delta."""
        sequence = self._answer.sequence
        if sequence is None or sequence.scores is None:
            return None
        entries = tuple(sequence.scores.entries)
        return entries if len(entries) == len(self._answer.request.prompt) else None

    @property
    def prompt_read(self) -> int:
        """How many tokens of its prompt have been computed, or were found in the cache."""
        sequence = self._answer.sequence
        return 0 if sequence is None else min(sequence.furthest, len(self._answer.request.prompt))

    @property
    def made(self) -> int:
        """How many tokens it has, read or not."""
        return self._visible()[0]

    @property
    def queue_seconds(self) -> float | None:
        """How long it waited for the first step that held some of it; None while it does."""
        sequence = self._answer.sequence
        if sequence is None or sequence.began is None:
            return None
        return sequence.began - self._answer.submitted

    @property
    def finished(self) -> bool:
        """Whether all has been read, so that `take` gives no more."""
        return self._finished

    def take(self) -> Delta | None:
        """What has come since the last time, as one delta; None where nothing has.

        Waits for nothing. An answer that failed gives what it had, and then raises nothing here.
        """
        answer, read = self._answer, self._read
        made, ended = self._visible()
        reason = "cancelled" if self._cut is not None else answer.reason
        if ended and reason == "error":
            self._finished = made == read
        if self._finished or (made == read and not ended):
            return None
        pieces = answer.pieces[read:made]
        last = ended and reason != "error"
        if ended and self._cut is None:
            pieces.append(answer.tail)
        self._read = made
        if last:
            self._finished = True
            self._engine = None
        if answer.sequence is None:
            return Delta("", (), reason)
        first = len(answer.request.prompt)
        logprobs = answer.sequence.logprobs
        return Delta(
            "".join(pieces),
            tuple(answer.sequence.tokens[first + read : first + made]),
            reason if last else None,
            None if logprobs is None else tuple(logprobs[read:made]),
        )

    def arm(self, waiter: Waiter, *, patient: bool = False) -> bool:
        """Has `waiter` called once when there is more to take; where `patient`, at the end only.

        False where that is so already, and then it will not be called.
        """
        answer = self._answer
        (answer.patient_waiters if patient else answer.waiters).append(waiter)
        if self._has_ended or (not patient and answer.made > self._read):
            return not self._disarm(waiter)
        return True

    def _visible(self) -> tuple[int, bool]:
        """How many tokens may be read, and whether they are all there will be."""
        if self._cut is not None:
            return self._cut, True
        made = self._answer.made  # before `end`, which is set before the last token is shown
        return made, made == self._answer.end

    @property
    def _has_ended(self) -> bool:
        return self._visible()[1]

    def raise_error(self) -> None:
        """Raises what the answer failed with, if it did."""
        error = self._answer.error
        if error is not None and self._cut is None:
            raise error.with_traceback(None)

    def _outcome(self) -> Completion:
        self._engine = None
        self.raise_error()
        return self.completion

    def _wait(self, *, patient: bool = False) -> None:
        self._loop.refuse_fork()
        bell: SimpleQueue[None] = SimpleQueue()  # of its own: another thread would take its ring
        ring = partial(bell.put, None)
        if self.arm(ring, patient=patient):
            try:
                _next(bell)
            finally:
                self._disarm(ring)

    async def _wait_async(self, *, patient: bool = False) -> None:
        from asyncio import get_running_loop

        self._loop.refuse_fork()
        future = get_running_loop().create_future()
        if self.arm(future, patient=patient):
            try:
                await future
            finally:
                self._disarm(future)

    async def _result_async(self) -> Completion:
        while not self._has_ended:
            await self._wait_async(patient=True)
        return self._outcome()

    def _disarm(self, waiter: Waiter) -> bool:
        """Takes a waiter back, unless it is called already."""
        for waiters in (self._answer.waiters, self._answer.patient_waiters):
            with suppress(ValueError):
                waiters.remove(waiter)
                return True
        return False


def _next(bell: SimpleQueue[T]) -> T:
    """Waits for the next ring, and for Ctrl-C."""
    while True:
        with suppress(Empty):
            return bell.get(timeout=_MOST_SECONDS_ASLEEP)


def interleaved(
    streams: dict[int, Stream], waiting: deque[Answer], loop: Loop
) -> Iterator[tuple[int, Delta]]:
    """The deltas of several streams as they come, each with the number of its stream.

    `waiting` are the last of their answers, which `loop` is fed as it has room. An answer that
    fails ends the others.
    """
    bell: SimpleQueue[int] = SimpleQueue()
    known = done = 0
    total = len(streams)
    try:
        while done < total:
            if waiting:
                loop.feed(waiting, wait=known == done)
            for index in range(known, total - len(waiting)):
                bell.put(index)
            known = total - len(waiting)
            index = _next(bell)
            stream = streams[index]
            if (delta := stream.take()) is not None:
                yield index, delta
            if stream.finished:
                stream.raise_error()
                del streams[index]
                done += 1
            elif not stream.arm(partial(bell.put, index)):
                bell.put(index)
    finally:
        for stream in streams.values():
            stream.close()
