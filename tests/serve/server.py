"""A real server in a thread, on a free port of the loopback, over whatever engine a test gives."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from engine.scripted import engine as scripted_engine
from engine.threads import PATIENCE, eventually
from farthing.serve.app import ServerState, build_app
from farthing.serve.connection import server_config
from farthing.serve.settings import Settings
from farthing.serve.state import card_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farthing.engine.engine import Engine
    from farthing.serve.state import RequestRecord

MODEL = "scripted"
"""The id of a model without a load report."""


@dataclass
class Served:
    """A server that runs: where it is, and its insides for tests to look at."""

    port: int
    state: ServerState
    http: httpx.Client = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> Engine:
        assert self.state.engine is not None
        return self.state.engine

    def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        """A chat of one message."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        """A plain completion."""
        return self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    def connect(self) -> socket.socket:
        """A bare connection, for what a proper client would not send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def wait_idle(self) -> None:
        """Returns when no answer is running, waiting or holding a block."""
        assert eventually(lambda: self.engine.idle and not self.engine.stats().held_blocks)


class Ended:
    """Notes the status of every request that has ended."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def finished(self, record: RequestRecord) -> None:
        self.statuses.append(record.status)

    def watch(self, state: ServerState) -> None:
        state.log = self


def request_bytes(path: str, body: dict[str, Any] | None = None, **headers: str) -> bytes:
    """A POST as it is sent."""
    data = json.dumps(body or {}).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "content_length" not in headers:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@contextmanager
def serving(
    engine: Engine | None = None,
    *,
    prepare: Callable[[ServerState], object] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """A server over `engine`, or over one that rambles; it is closed with its server.

    `settings` are fields of `Settings`. `prepare` may change the state before the server starts:
    give it keys or admission, or take its engine away as if it were still loading.
    """
    engine = engine or scripted_engine()
    state = ServerState(replace(Settings(), port=0, **settings))
    state.serve(engine, card_of(engine, state.settings.model_name))
    if prepare is not None:
        prepare(state)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(server_config(build_app(state), state.settings))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            assert eventually(lambda: server.started or not thread.is_alive())
            assert thread.is_alive(), "the server did not start"
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                yield Served(port, state, http)
        finally:
            server.should_exit = server.force_exit = True
            engine.close()
            thread.join(PATIENCE)
            assert not thread.is_alive()
