"""What a request was made of is given back when it ends, and not when garbage is collected.

A cycle keeps the whole request, its body too, and a collection of many holds up everybody.
"""

from __future__ import annotations

import gc
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from farthing.core import BusyError
from farthing.engine.stream import Stream
from farthing.serve.asking import Asked
from farthing.serve.errors import ApiError, api_error
from farthing.serve.generation import Generation
from farthing.serve.state import RequestRecord
from serve.server import Served, request_bytes, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farthing.serve.state import ServerState


OF_A_REQUEST = (ApiError, Asked, Generation, RequestRecord, Stream)


class RefusingAll:
    """Stands for an admission that has no room."""

    def admit(self, *_: object, **__: object) -> None:
        raise api_error(BusyError("too much to do: ask again in 3 seconds", 3.0))


def leave(server: Served) -> None:
    with server.connect() as connection:
        body = {"prompt": "a", "max_tokens": 100, "stream": True, "ignore_eos": True}
        connection.sendall(request_bytes("/v1/completions", body))
        assert connection.recv(100)


REQUESTS: dict[str, Callable[[Served], object]] = {
    "answered": lambda server: server.chat(max_tokens=2),
    "streamed": lambda server: server.chat(max_tokens=2, stream=True),
    "several": lambda server: server.complete(["a", "b"], n=2, max_tokens=2),
    "embedded": lambda server: server.http.post("/v1/embeddings", json={"input": "a"}),
    "responses": lambda server: server.http.post("/v1/responses", json={"input": "a"}),
    "no JSON": lambda server: server.http.post("/v1/completions", content=b"{"),
    "a wrong value": lambda server: server.complete("a", max_tokens=-1),
    "too long for the context": lambda server: server.chat("a" * 3000),
    "too long to be read": lambda server: server.complete("a" * 20_000),
    "not there": lambda server: server.http.get("/nowhere"),
    "out of time": lambda server: server.complete("a", max_tokens=30, timeout=1e-9),
    "out of time, streamed": lambda server: server.complete("a", timeout=1e-9, stream=True),
    "left": leave,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(request_bytes=10_000) as served:
        yield served


def named(garbage: object) -> str:
    """Empty for what is no part of a request to farthing: an earlier test's server may end now."""
    if isinstance(garbage, types.FrameType):
        name = str(garbage.f_globals.get("__name__"))
        return f"a frame of {name}.{garbage.f_code.co_name}" if name.startswith("farthing") else ""
    return type(garbage).__name__ if isinstance(garbage, OF_A_REQUEST) else ""


@contextmanager
def uncollected(found: set[str]) -> Iterator[None]:
    """Finds what of farthing's the block leaves to the collector."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(filter(None, map(named, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_leaves_nothing_to_the_collector(
    server: Served, request_: Callable[[Served], object]
) -> None:
    request_(server)  # what the first of its kind imports is no part of it
    found: set[str] = set()
    with uncollected(found):
        for _ in range(3):
            request_(server)
        server.wait_idle()
        server.http.get("/health")
    assert not found


def test_a_refusal_leaves_nothing_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(state: ServerState) -> None:
        monkeypatch.setattr(state, "admission", RefusingAll())

    found: set[str] = set()
    with serving(prepare=refuse) as served:
        assert served.chat().status_code == 429
        with uncollected(found):
            for _ in range(3):
                served.chat()
            served.http.get("/health")
    assert not found
