"""A server as an engine of engines.py: loads that arrive at once, over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from engines import TURN_SECONDS, CannotError
from points import Load
from serving.client import Connection, Lateness, completed, has_text, post, run_gathering
from serving.process import MODEL_NAME
from serving.response import BrokenResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from points import Point
    from serving.client import Answer
    from serving.process import ServerProcess

WARM_UP = [(1000, 2000, 3000, 4000)] * 2
WARM_UP_LENGTH = 4
"""Prompts and length of a short exchange before the clock starts."""


class HttpEngine:
    """An engine that is asked over HTTP, every engine in the same way: streamed completions."""

    def __init__(
        self, name: str, start: Callable[[Path], ServerProcess], extra: dict[str, Any] | None = None
    ) -> None:
        """`start` starts the server of a model; `extra` goes into the body of each request."""
        self.name = name
        self._start = start
        self._extra = extra or {}
        self._server: ServerProcess | None = None
        self._model: Path | None = None

    @property
    def group(self) -> int | None:
        return None if self._server is None else self._server.pid

    def start(self, model: Path) -> None:
        self._model = model
        self._server = self._start(model)
        self._ask([self.completion(each, WARM_UP_LENGTH) for each in WARM_UP], WARM_UP_LENGTH)
        self._server.halt()

    def measure(self, point: Point, seed: int) -> dict[str, Any]:
        del seed  # the point has its prompts
        assert isinstance(point, Load)
        requests = [
            self.completion(prompt, length)
            for prompt, length in zip(point.prompts, point.lengths, strict=True)
        ]
        return self.measure_requests(requests, point.lengths)

    def measure_requests(self, requests: list[bytes], lengths: Sequence[int]) -> dict[str, Any]:
        """One turn of whole requests, each of which must get so many tokens as its length says."""
        if self._server is None:
            assert self._model is not None
            self.start(self._model)
        assert self._server is not None
        self._server.go_on()
        self._ask([self.completion(each, WARM_UP_LENGTH) for each in WARM_UP], WARM_UP_LENGTH)
        cpu = time.process_time()
        began, answers, lateness = self._ask(requests, lengths)
        cpu = time.process_time() - cpu
        self._server.halt()
        wall = max(each.ended for each in answers) - began
        first = [each.first_event for each in answers if each.first_event is not None]
        return {
            "rates": {self.name: sum(lengths) / wall},
            "wall_seconds": wall,
            "first_token_seconds": [each - began for each in first],
            "latency_seconds": [each.ended - began for each in answers],
            "client_late_seconds": lateness,
            "client_cpu_seconds": cpu,
        }

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def completion(self, prompt: Sequence[int] | str, length: int) -> bytes:
        """A request for so many tokens after a prompt."""
        return post(
            "/v1/completions",
            {"prompt": prompt, **streamed(length), **self._extra},
        )

    def _ask(
        self, requests: list[bytes], lengths: Sequence[int] | int
    ) -> tuple[float, list[Answer], dict[str, float]]:
        """All at once: when they were sent, their answers, and how late the client was."""
        assert self._server is not None
        if isinstance(lengths, int):
            lengths = [lengths] * len(requests)
        try:
            began, answers, lateness = run_gathering(
                asyncio.wait_for(at_once(self._server.port, requests), TURN_SECONDS)
            )
        except (OSError, TimeoutError, BrokenResponseError) as error:
            raise self._failure(f"failed a request ({error!r})") from error
        for answer, length in zip(answers, lengths, strict=True):
            if (wrong := completed(answer, length)) is not None:
                raise self._failure(f"failed a request: {wrong}")
        return began, answers, lateness

    def _failure(self, what: str) -> CannotError:
        assert self._server is not None
        server, self._server = self._server, None
        return server.failure(what)


def streamed(length: int) -> dict[str, Any]:
    """The fields of a request for a stream of exactly so many greedy tokens."""
    return {
        "model": MODEL_NAME,
        "max_tokens": length,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def at_once(port: int, requests: list[bytes]) -> tuple[float, list[Answer], dict[str, float]]:
    """Sends all requests together, each over a connection that is there before.

    Gives the moment before the first was sent, the answers, and how late the client was.
    """
    connections = [await Connection.to(port) for _ in requests]
    try:
        async with Lateness() as lateness:
            began = time.perf_counter()
            answers = await asyncio.gather(
                *(
                    connection.ask(request, has_text)
                    for connection, request in zip(connections, requests, strict=True)
                )
            )
        return began, answers, lateness.seconds
    finally:
        for connection in connections:
            connection.close()
