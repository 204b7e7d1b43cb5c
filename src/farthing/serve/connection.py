"""One connection: what uvicorn's own protocol lets clients do for ever has an end here."""

from __future__ import annotations

import socket
from asyncio import TimerHandle, Transport
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from farthing.serve.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from farthing.serve.settings import Settings


CROWDED = "crowded"
"""In the scope's state where the connection is one too many."""

_MOST_REFUSED = 2
"""Times `connections`: those above them are refused in words up to here, and cut off beyond."""

_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep an idle connection: else one closes as a request is on its way."""

_PROBES = 3


class Connection(H11Protocol):
    """A connection whose request heads must arrive in time, and whose client must read.

    A client that takes nothing for `stalled_seconds`, though there is something, is cut off: its
    request then sees a disconnect, like any other.
    """

    def __init__(self, settings: Settings, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._settings = settings
        self._head_timer: TimerHandle | None = None
        self._stall_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Starts the clock for the first request's head."""
        super().connection_made(transport)
        _configure(transport.get_extra_info("socket"), self._settings.stalled_seconds)
        if len(self.connections) > _MOST_REFUSED * self._settings.connections:
            transport.abort()
        elif len(self.connections) > self._settings.connections:
            self.app_state = {**self.app_state, CROWDED: True}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Takes bytes, and stops the clock once a head is complete."""
        try:
            super().data_received(data)
        except UnicodeDecodeError:  # a path with bytes that no path may have
            self.send_400_response("Invalid HTTP request received.")
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            if self.timeout_keep_alive_task is None and self._head_timer is None:
                self._expect_head()
        else:
            self._cancel_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all clocks."""
        self._cancel_head()
        self._cancel_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered: it has so long to catch up."""
        super().pause_writing()
        self._cancel_stall()
        self._stall_timer = self.loop.call_later(
            self._settings.stalled_seconds, self.transport.abort
        )

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._cancel_stall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP with an error like all others."""
        error = ApiError(400, f"{msg} Send HTTP/1.1.", code="invalid_http")
        body = msgspec.json.encode(error.body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event=event))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Goes on in HTTP/1.1, as the protocol allows; uvicorn would advise to install things."""

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._settings.head_seconds, self.transport.abort)

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def _configure(connected: socket.socket | None, seconds: float) -> None:
    """Has the system send what is written at once, and notice when the other machine has gone.

    That takes it about `seconds`.
    """
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio does so itself only where the listening socket names its protocol.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    each = max(1, int(seconds / _PROBES))
    for name, value in (  # Linux has all of them
        ("TCP_USER_TIMEOUT", int(seconds * 1000)),
        ("TCP_KEEPIDLE", each),
        ("TCP_KEEPINTVL", each),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def server_config(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """How uvicorn is to serve `app`; `options` are further ones of its own."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=partial(Connection, settings),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **options,
    )
