"""Server-Sent Events: a generation as a stream of chunks, one write for all that came together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from starlette.responses import Response

from farthing.serve.errors import ApiError, ClientGoneError, api_error
from farthing.serve.wire.common import json_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from farthing.engine.completion import Completion, Delta
    from farthing.serve.generation import Generation
    from farthing.serve.state import ServerState

_DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_QUICK_SCORES = 64
"""So many tokens with log-probabilities, of 20 others each, are written in a few milliseconds."""

_encode = msgspec.json.Encoder().encode
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathered chunks would undo the streaming
]


Written = TypeVar("Written")


class Chunks(Protocol):
    """How an endpoint writes its stream."""

    def of(self, deltas: Iterable[tuple[int, Delta]]) -> list[msgspec.Struct]:
        """The chunks for what came."""

    def last(self) -> list[msgspec.Struct]:
        """The chunks after the last delta: the usage, where it is wanted."""


class Answers(Protocol):
    """How an endpoint writes its answers in one piece."""

    @property
    def generation(self) -> Generation:
        """Where they come from."""

    def whole(self, completions: Sequence[Completion], /) -> msgspec.Struct:
        """All of them."""


async def respond(
    answers: Answers,
    chunks: Chunks | None,
    state: ServerState,
    request: Request,
    kind: type[EventStream] | None = None,
) -> Response:
    """The response with a generation's answers: a stream, of that kind, where there are `chunks`.

    The generation is closed when all is sent, or nothing can be.
    """
    generation = answers.generation
    if chunks is not None:
        request.state.record.streamed = True
        return (kind or EventStream)(generation, chunks, state.settings.ping_seconds)
    try:
        completions = await generation.completions(request.receive)
        scores = generation.scores(enumerate(completions))
        return await _soon(scores, lambda: json_response(answers.whole(completions)))
    finally:
        generation.close()


async def _soon(scores: int, write: Callable[[], Written]) -> Written:
    """What `write` gives; another thread writes the log-probabilities of many tokens."""
    return write() if scores <= _QUICK_SCORES else await asyncio.to_thread(write)


class EventStream(Response):
    """Sends a generation's chunks, and closes it.

    The head of the response goes out with the first chunk or ping: what fails before has a status
    of its own, and what fails after is an event. A client that leaves, or reads too slowly (see
    `connection.py`), ends the generation.
    """

    end = _DONE
    """What is sent after the last event."""

    def __init__(self, generation: Generation, chunks: Chunks, ping_seconds: float) -> None:
        super().__init__()
        self._generation = generation
        self.chunks = chunks
        self._ping_seconds = ping_seconds
        self._begun = False
        self._written = 0.0
        self._silent = False
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends everything."""
        generation = self._generation
        self._note_write()
        self._schedule(self._ping_seconds)
        try:
            generation.watch(receive)
            await self._send_all(send)
        except ClientGoneError:
            raise
        except Exception as error:
            if not self._begun or generation.gone:
                raise
            scope["state"]["record"].error_code = api_error(error).code
            await self._write(send, self.written_error(api_error(error)) + self.end, more=False)
            if not isinstance(error, ApiError):
                raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            generation.close()

    def written(self, chunk: object) -> bytes:
        """One event, as it is sent."""
        return b"data: " + _encode(chunk) + b"\n\n"

    def written_error(self, error: ApiError) -> bytes:
        """The last event where the answers fail."""
        return self.written(error.body())

    async def _send_all(self, send: Send) -> None:
        generation, chunks = self._generation, self.chunks
        while generation.unfinished:
            deltas = await generation.more()
            data = await _soon(generation.scores(deltas), partial(self._events, deltas))
            if not generation.unfinished:
                data += b"".join(map(self.written, chunks.last())) + self.end
                await self._write(send, data, more=False)
            elif data:
                await self._write(send, data, more=True)
            elif self._silent:
                await self._write(send, _PING, more=True)

    def _events(self, deltas: Iterable[tuple[int, Delta]]) -> bytes:
        return b"".join(map(self.written, self.chunks.of(deltas)))

    async def _write(self, send: Send, data: bytes, *, more: bool) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._note_write()

    def _note_write(self) -> None:
        self._written = asyncio.get_running_loop().time()
        self._silent = False

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Whether the line has been silent for long enough."""
        left = self._written + self._ping_seconds - asyncio.get_running_loop().time()
        if left > 0:
            self._schedule(left)
            return
        self._silent = True
        self._generation.ring()
        self._schedule(self._ping_seconds)
