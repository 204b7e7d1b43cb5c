"""One answer being made: the engine's thread writes it, and whoever holds its Stream reads it."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.engine.sequence import draw_seed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from farthing.core import FarthingError, Request
    from farthing.engine.constraints import Matcher
    from farthing.engine.scheduler import Scheduler
    from farthing.engine.sequence import FinishReason, Sequence
    from farthing.text.stream import StreamDecoder

    Waiter = Callable[[], object] | Future[None]
    """What a reader is woken by: a function that waits for nothing, or a future of asyncio."""


class Answer:
    """An answer from its submission to its end.

    Nothing here is locked. `show` publishes what came before it with two assignments: `made` tokens
    may be read, and with the last of them `end` is the same number. A reader appends its waiter and
    looks again; the writer publishes and then looks for waiters: so one of them sees the other.
    """

    def __init__(
        self,
        request: Request,
        decoder: StreamDecoder,
        *,
        fork_of: Answer | None = None,
        deadline: float = math.inf,
        matcher: Matcher | None = None,
    ) -> None:
        """`deadline` is in seconds of `time.monotonic`. Where no seed is given, one is drawn."""
        seed: int | None = request.sampling.seed
        if seed is None:
            seed = draw_seed() if fork_of is None else fork_of.seed
            request = replace(request, sampling=replace(request.sampling, seed=seed))
        self.request = request
        self.seed: int = seed
        self.fork_of = fork_of
        self.deadline = deadline
        self.matcher = matcher
        self.sequence: Sequence | None = None
        # Those of the prompt that nobody has computed yet; other choices share the first one's.
        self.queued_tokens = 0 if fork_of is not None else len(request.prompt)
        self.accepted = False
        self.pieces: list[str] = []
        self.tail = ""
        self.embedding: NDArray[np.float32] | None = None
        self.reason: FinishReason | None = None
        self.error: FarthingError | None = None
        self.made = 0
        self.end: int | None = None
        self.waiters: list[Waiter] = []
        self.patient_waiters: list[Waiter] = []
        self.submitted = self.first = self.last = perf_counter()
        self.native_before = self.native_after = 0.0
        self._decoder = decoder

    def take(self, scheduler: Scheduler, now: float, native_seconds: float) -> None:
        """Takes the tokens that its sequence has just gained; a stop string ends the sequence.

        There is none where only the prompt was to be read, and that is done.
        `now` is when the step ended, and `native_seconds` were spent in the backend up to then.
        """
        sequence = self.sequence
        if sequence is None:
            raise RuntimeError("an answer has a token before it has a sequence")
        at = len(self.request.prompt) + len(self.pieces)
        if at == len(sequence.tokens) and sequence.mean is not None:
            self.embedding = sequence.mean.vector()
        sampling = self.request.sampling
        while at < len(sequence.tokens):
            at += 1
            ends = sequence.ends_with_token and at == len(sequence.tokens)
            self.pieces.append("" if ends else self._decoder.push(sequence.tokens[at - 1]))
            if self._decoder.stopped is not None:
                scheduler.end(sequence, "stop", at)
            if len(self.pieces) == sampling.min_tokens:
                self._decoder.watch(sampling.stop)
        if self.made == 0:
            self.first = now
        self.last = now
        self.native_after = native_seconds
        if sequence.finish_reason is not None:
            self.finish(sequence.finish_reason, sequence.error)

    def finish(self, reason: FinishReason, error: FarthingError | None = None) -> None:
        """Notes the end, and the text that was held back until it."""
        if error is None:
            self.tail = self._decoder.finish()
        self.error = error
        self.reason = reason

    def show(self, waiters: list[Waiter]) -> None:
        """Lets readers see what came, and adds those that wait for it to `waiters`."""
        made = len(self.pieces)
        if self.reason is not None:
            self.end = made
        self.made = made
        self.release(waiters, ended=self.end is not None)

    def release(self, waiters: list[Waiter], *, ended: bool) -> None:
        """Moves those that wait for more to `waiters`; where `ended`, the patient ones too."""
        if self.waiters:
            _move(self.waiters, waiters)
        if ended and self.patient_waiters:
            _move(self.patient_waiters, waiters)


def _move(line: list[Waiter], waiters: list[Waiter]) -> None:
    """One by one, so that whoever appends or removes one meanwhile knows whether it was moved."""
    with suppress(IndexError):
        while True:
            waiters.append(line.pop())


_AT_ONCE = 8
"""Of a loop's readers, so many write before it looks for newcomers again."""


def wake(waiters: Iterable[Waiter]) -> None:
    """Wakes readers: each loop of asyncio once, however many of its futures there are."""
    futures: dict[AbstractEventLoop, list[Future[None]]] = {}
    for waiter in waiters:
        if callable(waiter):
            waiter()
        else:
            futures.setdefault(waiter.get_loop(), []).append(waiter)
    for loop, some in futures.items():
        # A loop that is closed has no reader any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, loop, some)


def _resolve(loop: AbstractEventLoop, futures: list[Future[None]]) -> None:
    for future in futures[:_AT_ONCE]:
        if not future.done():
            future.set_result(None)
    if rest := futures[_AT_ONCE:]:
        loop.call_soon(_resolve, loop, rest)
