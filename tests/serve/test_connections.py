from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import Any

import pytest

from engine.scripted import engine, engine_over, rambling
from engine.threads import PATIENCE, Held, eventually
from farthing.serve.connection import Connection
from serve.server import Ended, Served, request_bytes, serving


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes the connection, which is a reset where it left bytes unread."""
    data = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def read_answer(connection: socket.socket) -> bytes:
    """One answer with a body in JSON."""
    data = b""
    while not data.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part, data
        data += part
    return data


CHAT = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}


def is_idle(served: Served) -> bool:
    return served.engine.idle and not served.engine.stats().held_blocks


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks_within_one_step(stream: bool) -> None:
    held, ended = Held(), Ended()
    with serving(engine_over(held), prepare=ended.watch) as served:
        with served.connect() as connection:
            connection.sendall(request_bytes("/v1/chat/completions", {**CHAT, "stream": stream}))
            held.allow(3)
            held.wait_entered(4)
            assert served.engine.stats().held_blocks
        # It has left, and the fourth step runs: when that is done, nothing is left of it.
        assert eventually(lambda: ended.statuses == [499])
        held.allow(1)
        assert eventually(lambda: is_idle(served))
        assert held.entered == 4


def test_a_client_that_leaves_while_it_waits_in_the_queue_is_forgotten() -> None:
    held, ended = Held(max_step_rows=1), Ended()
    with serving(engine_over(held), prepare=ended.watch) as served:
        with served.connect() as first:
            first.sendall(request_bytes("/v1/chat/completions", {**CHAT, "stream": True}))
            held.wait_entered(1)
            with served.connect() as second:
                second.sendall(request_bytes("/v1/chat/completions", CHAT))
                assert eventually(lambda: served.engine.stats().waiting == 1)
            assert eventually(lambda: ended.statuses == [499])
            held.allow(1)
            held.wait_entered(2)
            assert served.engine.stats().waiting == 0
        held.allow(10_000)
        served.wait_idle()


def test_a_client_that_is_killed_is_as_one_that_leaves() -> None:
    with serving() as served:
        connection = served.connect()
        # A connection that is closed with linger 0 is reset, as by a process that is killed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.sendall(request_bytes("/v1/chat/completions", {**CHAT, "stream": True}))
        connection.recv(100)
        connection.close()
        served.wait_idle()
        assert served.chat(max_tokens=1).status_code == 200


def test_a_client_that_reads_nothing_is_cut_off_and_the_others_are_served() -> None:
    """It holds up nobody, and its answer does not pile up: it ends."""
    with serving(
        engine(rambling, context_length=30_000, total_blocks=2000), stalled_seconds=0.3
    ) as served:
        connection = served.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {**CHAT, "n": 4, "stream": True, "logprobs": True, "top_logprobs": 20}
        connection.sendall(request_bytes("/v1/chat/completions", body))
        assert eventually(lambda: served.engine.stats().counters.generated_tokens >= 4)
        assert served.chat(max_tokens=3).status_code == 200
        served.wait_idle()
        made = served.engine.stats().counters.generated_tokens
        assert made < 4 * 20_000
        connection.close()


def test_a_client_that_reads_slowly_gets_everything() -> None:
    with serving(stalled_seconds=PATIENCE) as served, served.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        body = {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 200}
        connection.sendall(request_bytes("/v1/chat/completions", body, connection="close"))
        time.sleep(0.5)
        data = read_all(connection)
    assert data.count(b'"finish_reason":"length"') == 1
    assert data.count(b"data: [DONE]") == 1


def test_a_body_that_never_ends_is_408_and_the_connection_is_closed() -> None:
    with serving(body_seconds=0.2) as served, served.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", content_length="100"))
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in answer
        # A body of few bytes has as little time as any other.
        assert eventually(lambda: served.complete().status_code == 200)


def test_a_body_that_drips_is_no_better() -> None:
    with serving(body_seconds=0.3) as served, served.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", content_length="1000"))
        with suppress(OSError):  # it is closed meanwhile
            for _ in range(8):
                connection.sendall(b" ")
                time.sleep(0.05)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_never_ends_is_cut_off() -> None:
    with serving(head_seconds=0.2) as served:
        for start in (b"", b"POST /v1/completions HTTP/1.1\r\nHost:"):
            with served.connect() as connection:
                connection.sendall(start)
                assert connection.recv(100) == b""


def test_a_second_head_that_never_ends_is_cut_off() -> None:
    with serving(head_seconds=1) as served, served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\nHos")
        assert connection.recv(1000) == b""


def test_an_answer_that_takes_longer_than_a_head_may_is_given() -> None:
    held = Held()
    short = {"head_seconds": 0.5, "body_seconds": 0.5}
    with serving(engine_over(held), **short) as served, served.connect() as connection:
        body = {**CHAT, "max_tokens": 2}
        connection.sendall(request_bytes("/v1/chat/completions", body, connection="close"))
        held.wait_entered(1)
        time.sleep(0.7)
        held.allow(2)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /caf\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=range(7),
)
def test_what_is_not_http_is_400_in_json_and_closes_the_connection(data: bytes) -> None:
    with serving() as served, served.connect() as connection:
        connection.sendall(data)
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 400 ") or not answer
        assert b'"code":"invalid_http"' in answer or not answer
        assert served.http.get("/health").status_code == 200


def test_a_large_body_that_waits_to_be_asked_for_is_refused_before_it_is_sent() -> None:
    with serving(request_bytes=1000) as served, served.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")


def test_requests_one_after_another_share_a_connection(server: Served) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 1}))
            assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_an_answer_does_not_wait_for_the_client_to_acknowledge_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Head and body are written one after the other. Where the system holds the second back until
    # the first is acknowledged, a client that acknowledges late, as most do, has it 40 ms later.
    found = []
    made = Connection.connection_made

    def looked_at(self: Connection, transport: Any) -> None:
        made(self, transport)
        connected = transport.get_extra_info("socket")
        found.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", looked_at)
    with serving() as served:
        assert served.http.get("/v1/models").status_code == 200
    assert found
    assert all(found)


def test_one_connection_too_many_is_told_so_and_closed() -> None:
    with serving(connections=3) as served:
        several = [served.connect() for _ in range(5)]
        for each in several:
            each.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = [read_answer(each) for each in several]
        refused = [each for each in answers if each.startswith(b"HTTP/1.1 503 ")]
        assert len(refused) == 2
        for each in refused:
            assert b'"code":"too_many_connections"' in each
            assert b"retry-after: 1" in each.lower()
            assert b"connection: close" in each.lower()
        for connection in several:
            connection.close()
        assert eventually(lambda: served.http.get("/health").status_code == 200)


def test_a_flood_of_connections_is_cut_off_and_then_all_is_well() -> None:
    with serving(connections=3) as served:
        flood = [served.connect() for _ in range(40)]
        assert flood[-1].recv(1) == b""
        for each in flood:
            each.close()
        assert eventually(lambda: served.http.get("/health").status_code == 200)


def test_a_path_has_one_spelling(server: Served) -> None:
    assert server.http.get("/health/").status_code == 404
    assert server.http.post("/v1/completions/", json={"prompt": "x"}).status_code == 404


def test_bodies_that_never_end_cannot_fill_the_memory() -> None:
    """Each may be as long as a body may be; together they may not."""
    with serving(request_bytes=100_000, reading_bytes=150_000, body_seconds=20) as served:
        several = [served.connect() for _ in range(4)]
        for each in several:
            with suppress(OSError):  # it may be refused meanwhile
                each.sendall(request_bytes("/v1/completions", content_length="90000"))
                each.sendall(b" " * 80_000)
        refused, _, _ = select.select(several, [], [], PATIENCE)
        assert b'"code":"too_much_at_once"' in read_all(refused[0])
        for each in several:
            each.close()
        assert eventually(lambda: served.state.reading_bytes == 0)
        assert served.complete("x" * 900).status_code == 200
