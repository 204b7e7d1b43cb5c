"""One text on its way: from sampled tokens to deltas, and what it has become."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.engine.completion import Completion, Delta, Timing, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farthing.engine.scheduler import Scheduler
    from farthing.engine.sequence import Sequence
    from farthing.text.stream import StreamDecoder


class Stream:
    """The deltas of one text, as they are made.

    Closing it early ends the text and frees its blocks, at once or when the step that is running
    ends; so does dropping the last reference to it. `completion` is what has been made so far.
    """

    def __init__(
        self,
        sequence: Sequence,
        decoder: StreamDecoder,
        advance: Callable[[Stream], None],
        abandon: Callable[[Sequence], None],
        native_seconds: float,
    ) -> None:
        """Made by the engine.

        `advance` runs a step, after which there may be more; `abandon` lets a sequence go, waiting
        for nothing. `native_seconds` have been spent in the backend so far, for whomever.
        """
        self._closed = False
        self._sequence = sequence
        self._decoder = decoder
        self._advance = advance
        self._abandon = abandon
        self._ready: deque[Delta] = deque()
        self._texts: list[str] = []
        self._made = 0
        self._submitted = self._first = self._last = perf_counter()
        self._native_before = self._native_after = native_seconds

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._ready:
            if self._closed or self._sequence.finish_reason is not None:
                raise StopIteration
            self._advance(self)
        return self._ready.popleft()

    def close(self) -> None:
        """Ends the text here, with finish reason "cancelled" if it has not ended by itself.

        Waits for nothing, so a signal handler may call it.
        """
        if not self._closed:
            self._closed = True
            self._abandon(self._sequence)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def waits(self) -> bool:
        """Whether another step is needed before there is a delta, or an end."""
        return not self._ready and self._sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """The text so far and what it took."""
        sequence = self._sequence
        reason = sequence.finish_reason
        logprobs = sequence.logprobs
        output = tuple(sequence.output)
        return Completion(
            text="".join(self._texts),
            token_ids=output,
            finish_reason="cancelled" if reason is None and self._closed else reason,
            logprobs=None if logprobs is None else tuple(logprobs),
            usage=Usage(len(sequence.request.prompt), len(output)),
            seed=sequence.seed,
            timing=Timing(
                prefill_seconds=self._first - self._submitted,
                decode_seconds=self._last - self._first,
                native_seconds=self._native_after - self._native_before,
            ),
        )

    def take(self, scheduler: Scheduler, now: float, native_seconds: float) -> None:
        """Turns the token that the last step gave into a delta; a stop string ends the sequence.

        Called by the engine, at the time `now`, with the seconds spent in the backend so far.
        """
        sequence = self._sequence
        token = sequence.tokens[-1]
        # A token that ends the text is no part of it.
        text = "" if sequence.finish_reason == "stop" else self._decoder.push(token)
        if self._decoder.stopped is not None:
            scheduler.end(sequence, "stop")
        elif sequence.finish_reason is not None:
            text += self._decoder.finish()
        self._texts.append(text)
        if self._made == 0:
            self._first = now
        self._made += 1
        if self._made == sequence.request.sampling.min_tokens:
            self._decoder.watch(sequence.request.sampling.stop)
        self._last = now
        self._native_after = native_seconds
        logprobs = None if sequence.logprobs is None else (sequence.logprobs[-1],)
        self._ready.append(Delta(text, (token,), sequence.finish_reason, logprobs))
