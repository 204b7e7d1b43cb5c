"""Which answers an engine accepts, and how many tokens of prompts it lets wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from farthing.core import BusyError, RequestError

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from farthing.engine.answer import Answer

_SOONEST_RETRY = 0.1
"""Seconds: whoever is refused is not told to come back at once."""


class Entrance:
    """Counts the tokens of accepted prompts whose answers have not begun: `queued_tokens`.

    More than `limit` do not wait, except for those of one prompt that finds none waiting. Accepted
    answers go to `accept`, in order; `seconds` estimates how long so many tokens take. Any thread
    may call; nobody keeps another waiting longer than a moment, but in `feed` where it says so.
    """

    def __init__(
        self,
        limit: int | None,
        accept: Callable[[list[Answer]], None],
        seconds: Callable[[int], float],
    ) -> None:
        self.queued_tokens = 0
        self.accepted = 0
        self._limit = limit
        self._accept = accept
        self._seconds = seconds
        self._refusal: str | None = None
        # Signalled when there is more room, or never will be.
        self._changed = threading.Condition()

    def admit(self, answers: list[Answer]) -> None:
        """Accepts all, or raises `BusyError`; `RequestError` where the engine is closed."""
        with self._changed:
            self._refuse_closed()
            tokens = sum(answer.queued_tokens for answer in answers)
            if not self._has_room(tokens, self.queued_tokens):
                raise self._busy(tokens)
            self._take(answers)

    def feed(self, answers: deque[Answer], *, wait: bool) -> None:
        """Accepts, and takes out, as many from the front as there is room for.

        Where `wait`, one at least, whenever there is room for it. Raises `RequestError` where the
        engine is closed.
        """
        with self._changed:
            while wait and self._refusal is None and not self._fits(answers[0], 0):
                self._changed.wait()
            self._refuse_closed()
            some: list[Answer] = []
            tokens = 0
            while answers and self._fits(answers[0], tokens):
                some.append(answers.popleft())
                tokens += some[-1].queued_tokens
            self._take(some)

    def leave(self, tokens: int) -> None:
        """So many tokens wait no longer."""
        with self._changed:
            self.queued_tokens -= tokens
            self._changed.notify_all()

    def shut(self, refusal: str) -> None:
        """Refuses all from now on; the first reason stays."""
        with self._changed:
            self._refusal = self._refusal or refusal
            self._changed.notify_all()

    def while_open(self, action: Callable[[], None]) -> None:
        """Calls `action` before `shut` is called, or raises `RequestError`."""
        with self._changed:
            self._refuse_closed()
            action()

    def _refuse_closed(self) -> None:
        if self._refusal is not None:
            raise RequestError(self._refusal)

    def _fits(self, answer: Answer, before: int) -> bool:
        return self._has_room(answer.queued_tokens, self.queued_tokens + before)

    def _has_room(self, tokens: int, waiting: int) -> bool:
        return self._limit is None or waiting == 0 or waiting + tokens <= self._limit

    def _take(self, answers: list[Answer]) -> None:
        for answer in answers:
            answer.accepted = True
            self.queued_tokens += answer.queued_tokens
        self.accepted += len(answers)
        self._accept(answers)

    def _busy(self, tokens: int) -> BusyError:
        limit = self._limit or 0
        seconds = max(_SOONEST_RETRY, self._seconds(self.queued_tokens + tokens - limit))
        return BusyError(
            f"{self.queued_tokens} tokens of prompts wait already, and with {tokens} more they "
            f"would be above queue_tokens, which is {limit}: ask again in {seconds:.1f} seconds, "
            "or load with a longer queue",
            seconds,
        )
