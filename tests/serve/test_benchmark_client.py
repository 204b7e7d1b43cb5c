"""The client of the benchmarks over HTTP: what it reads, whom it waits for, and what it counts."""

from __future__ import annotations

import asyncio
import json
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import engine, saying
from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.metrics import Metrics as ServerMetrics
from serve.server import serving
from serving.client import Connections, completed, has_text, post, run_gathering
from serving.crowd import Crowd
from serving.engine import at_once, streamed
from serving.metrics import Metrics, scrape
from serving.process import MODEL_NAME
from serving.response import BrokenResponseError, Events, Response

if TYPE_CHECKING:
    from farthing.serve.state import ServerState

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'{"a": 1}', '{"text": "Grüße"}'.encode(), b"[DONE]"]


def stream_of(events: list[bytes], chunk: int) -> bytes:
    """A whole response with these events, in chunks of so many bytes."""
    text = b": ping\n\n" + b"".join(b"data: " + each + b"\n\n" for each in events)
    parts = [text[at : at + chunk] for at in range(0, len(text), chunk)]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


@given(chunk=st.integers(1, 40), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_events_are_the_same_however_the_bytes_are_cut(chunk: int, cuts: list[int]) -> None:
    data = stream_of(EVENTS, chunk)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    response, events, found = Response(), Events(), []
    for first, last in pairwise(places):
        found += events.feed(response.feed(data[first:last]))
    assert found == EVENTS
    assert response.finished
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")


def test_a_body_of_a_known_length_ends_with_it() -> None:
    response = Response()
    assert response.feed(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nab") == b"ab"
    assert (response.status, response.finished) == (429, False)
    assert response.feed(b"cd") == b"cd"
    assert response.finished


@given(st.binary(max_size=80))
def test_whatever_a_server_sends_is_read_or_refused(data: bytes) -> None:
    response = Response()
    try:
        for at in range(len(data)):
            response.feed(data[at : at + 1])
    except BrokenResponseError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        HEAD + b"zz\r\nabc\r\n",
        HEAD + b"2\r\nabc\r\n",
    ],
)
def test_what_is_no_response_of_a_known_length_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenResponseError):
        Response().feed(data)


def requests(count: int, tokens: int) -> list[bytes]:
    return [
        post("/v1/completions", {"prompt": f"{number}:", **streamed(tokens)})
        for number in range(count)
    ]


def test_many_streams_at_once_are_read_to_their_last_token() -> None:
    with serving(model_name=MODEL_NAME) as served:
        began, answers, _ = run_gathering(at_once(served.port, requests(20, 7)))
    for answer in answers:
        assert completed(answer, 7) is None
        assert answer.first_event is not None
        assert began < answer.sent < answer.first_event <= answer.ended
    assert completed(answers[0], 8) == "7 tokens came where 8 were wanted"


def test_an_answer_that_breaks_off_is_an_error_and_one_that_is_refused_is_told() -> None:
    with serving(engine(saying("x", after=":")), model_name="other") as served:
        _, answers, _ = asyncio.run(at_once(served.port, requests(1, 3)))
    assert "status 404" in str(completed(answers[0], 3))

    async def cut_off() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(HEAD + b"5\r\ndata:")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            await Connections(server.sockets[0].getsockname()[1]).ask(requests(1, 3)[0])

    with pytest.raises(BrokenResponseError, match="breaks off"):
        asyncio.run(cut_off())


def test_only_an_event_with_text_counts_as_the_first() -> None:
    assert has_text(b'{"choices": [{"text": "a"}]}')
    assert has_text(b'{"choices": [{"delta": {"content": "a"}}]}')
    assert not has_text(b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
    assert not has_text(b'{"choices": [], "usage": {}}')
    assert not has_text(b"[DONE]")


class Refusing:
    """Refuses each request so often, and then lets it in."""

    def __init__(self, times: int) -> None:
        self._times = times
        self.asked: dict[bytes, list[float]] = {}

    def admit(self, key: Any, *, body_digest: bytes, **asked: Any) -> Refusing:
        seen = self.asked.setdefault(body_digest, [])
        seen.append(time.perf_counter())
        if len(seen) <= self._times:
            headers = retry_headers(0.1)
            raise ApiError(429, "too much waits", code="overloaded", headers=headers)
        return self

    def settle(self, prompt_tokens: int) -> None: ...

    def follow(self, answers: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("obeys", [True, False])
def test_a_crowd_comes_back_when_it_was_told_to_or_never(obeys: bool) -> None:
    gate = Refusing(times=2)

    def prepare(state: ServerState) -> None:
        state.admission = gate

    async def run(port: int) -> Crowd:
        numbers = iter(range(1000))
        crowd = Crowd(
            "some",
            "secret",
            Connections(port),
            lambda tokens: f"{next(numbers)} {tokens}",
            [3, 5],
            random.Random(0),
            obeys=obeys,
        )
        await crowd.arrive("phase", rate=100.0, seconds=0.1)
        assert await crowd.leave(10.0) == 0
        return crowd

    with serving(model_name=MODEL_NAME, prepare=prepare) as served:
        outcomes = asyncio.run(run(served.port)).of("phase")
    assert outcomes
    for outcome in outcomes:
        assert outcome.fault is None
        assert outcome.told == [0.1] * (2 if obeys else 1)
        assert len(outcome.refusals) == len(outcome.refused) == len(outcome.told)
        assert (outcome.id is not None) == obeys
        assert outcome.tokens in (3, 5)
    for times in gate.asked.values():
        assert all(later - earlier >= 0.1 for earlier, later in pairwise(times))


def test_a_scrape_adds_up_what_has_a_name_and_such_labels() -> None:
    def prepare(state: ServerState) -> None:
        state.metrics = ServerMetrics()

    async def look(port: int) -> tuple[Metrics, Metrics]:
        connections = Connections(port)
        before = await scrape(connections)
        for request in requests(3, 4):
            assert completed(await connections.ask(request, has_text), 4) is None
        return before, await scrape(connections)

    with serving(model_name=MODEL_NAME, prepare=prepare) as served:
        before, after = asyncio.run(look(served.port))
    name = "farthing:requests_total"
    assert before.total(name) == 0
    assert after.total(name) == after.total(name, 'status="200"') == 3
    assert after.total(name, 'status="429"') == 0
    assert after.total("vllm:generation_tokens_total") == 12
    assert json.dumps(after.total("farthing:cache_blocks")) != "0"
