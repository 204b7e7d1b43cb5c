"""A client of HTTP servers that times what it asks for, many requests at once in one thread.

It must take little of the machine, and run as soon as it wants to, or the times it takes are wrong.
So servers run a step of niceness behind it (see `process.py`), and it takes the time of its own
waking up: `Lateness`.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, Any, TypeVar

from serving.response import BrokenResponseError, Events, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

Result = TypeVar("Result")

HOST = "127.0.0.1"
NAP_SECONDS = 0.005
GATHER_SECONDS = 0.001
DONE = b"[DONE]"


@dataclass
class Answer:
    """What came of a request, and when: seconds on `time.perf_counter`'s clock.

    `first_event` is when the first event with content was there, `ended` when all was.
    """

    sent: float
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    first_event: float | None = None
    ended: float = 0.0
    body: bytes = b""
    events: list[bytes] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the request's first byte to the answer's last."""
        return self.ended - self.sent


class Connection(asyncio.Protocol):
    """One connection, kept for one request after another."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._response = Response()
        self._events = Events()
        self._has_content: Callable[[bytes], bool] = bool
        self._waiter: asyncio.Future[Answer] | None = None

    @classmethod
    async def to(cls, port: int) -> Connection:
        """A connection to a server on this machine; raises `OSError`."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return connection

    async def ask(self, request: bytes, has_content: Callable[[bytes], bool] = bool) -> Answer:
        """Sends a whole request, and gives all that came of it.

        An event of a stream with content is one for whose data `has_content`; it is asked of each
        until it says so. Raises `BrokenResponseError` where the answer breaks off.
        """
        if self._transport is None or not self.open:
            raise BrokenResponseError("the server has closed the connection")
        self._response, self._events, self._has_content = Response(), Events(), has_content
        self._waiter = asyncio.get_running_loop().create_future()
        self._answer = Answer(sent=time.perf_counter())
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        """Ends it."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        answer, waiter, response = self._answer, self._waiter, self._response
        if answer is None or waiter is None or waiter.done():
            self.close()
            return
        now = time.perf_counter()
        try:
            text = response.feed(data)
        except BrokenResponseError as error:
            self.close()
            waiter.set_exception(error)
            return
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            events = self._events.feed(text)
            if answer.first_event is None and any(map(self._has_content, events)):
                answer.first_event = now
            answer.events += events
        else:
            answer.body += text
        if response.finished:
            answer.status, answer.headers, answer.ended = response.status, response.headers, now
            if response.headers.get("connection", "").lower() == "close":
                self.close()
            waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._waiter is not None and not self._waiter.done():
            why = f" ({exc})" if exc is not None else ""
            self._waiter.set_exception(BrokenResponseError(f"the answer breaks off{why}"))


class Connections:
    """Connections to one server, kept while nobody needs them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def ask(self, request: bytes, has_content: Callable[[bytes], bool] = bool) -> Answer:
        """As `Connection.ask`, over one that is free, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                break
        else:
            connection = await Connection.to(self._port)
        answer = await connection.ask(request, has_content)
        if connection.open:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Ends those that are free."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def post(path: str, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request with a body in JSON."""
    text = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


def get(path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request without a body."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def has_text(event: bytes) -> bool:
    """Whether an event of a completion, of either kind, has some text of the answer."""
    if event == DONE:
        return False
    return any(
        choice.get("text") or choice.get("delta", {}).get("content")
        for choice in json.loads(event).get("choices", ())
    )


def completed(answer: Answer, tokens: int) -> str | None:
    """What is wrong with an answer that should be a whole stream of so many tokens; None: nothing.

    It needs `stream_options.include_usage`.
    """
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not answer.events or answer.events[-1] != DONE:
        last = answer.events[-1][:300] if answer.events else b"nothing"
        return f"the stream ends with {last!r}"
    if answer.first_event is None:
        return "there was no text"
    usage: dict[str, Any] = next(
        (found for each in answer.events[-2:-4:-1] if (found := json.loads(each).get("usage"))), {}
    )
    if usage.get("completion_tokens") != tokens:
        return f"{usage.get('completion_tokens')} tokens came where {tokens} were wanted"
    return None


class _Gathering(selectors.DefaultSelector):
    """Waits a little for more when something has come."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if ready:
            time.sleep(GATHER_SECONDS)
            ready = super().select(0)
        return ready


def run_gathering(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a client that takes what comes within a millisecond together.

    A step of a server gives many streams something, one shortly after the other: a client that woke
    for each would interrupt the server as often.
    """

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Gathering())

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


class Lateness:
    """How late the event loop runs what wants to run, while the context is open."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def __aenter__(self) -> Lateness:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    @property
    def seconds(self) -> dict[str, float]:
        """The median, the 95th and 99th percentile and the largest."""
        if len(self._late) < 2:
            return {}
        cuts = quantiles(self._late, n=100)
        largest = max(self._late)
        return {"median": cuts[49], "p95": cuts[94], "p99": cuts[98], "largest": largest}

    async def _watch(self) -> None:
        while True:
            wanted = time.perf_counter() + NAP_SECONDS
            await asyncio.sleep(NAP_SECONDS)
            self._late.append(time.perf_counter() - wanted)
