"""What the endpoints promise to keys, admission, and whoever counts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.scripted import engine, engine_over, rambling, saying
from engine.threads import Held, eventually
from farthing.serve import generation
from farthing.serve.errors import ApiError, retry_headers
from farthing.serve.state import Anonymous, RequestRecord, ServerState
from serve.server import request_bytes, serving


class Counted:
    """An observer."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def came(self, tokens: int, seconds: float) -> None: ...

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)


class Gate:
    """Admission that notes what it is asked, and refuses where it is told to."""

    def __init__(self, refusal: ApiError | None = None) -> None:
        self.refusal = refusal
        self.asked: list[dict[str, Any]] = []
        self.told: list[Any] = []

    def admit(self, key: Any, **asked: Any) -> Gate:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append({"key": key.name, **asked})
        return self

    def settle(self, prompt_tokens: int) -> None:
        self.told.append(("settle", prompt_tokens))

    def follow(self, answers: Any) -> None:
        self.told.append(("follow", answers))

    def close(self) -> None:
        self.told.append("close")


class Ring:
    """Keys: one, whose secret is its name."""

    def authenticate(self, authorization: str | None) -> Anonymous:
        if authorization != "Bearer ada":
            raise ApiError(401, "send a key", code="invalid_api_key")
        return Anonymous("ada")


def watched(state: ServerState) -> None:
    state.metrics = Counted()
    state.usage = Counted()


def records(state: ServerState) -> list[RequestRecord]:
    assert isinstance(state.metrics, Counted)
    return state.metrics.records


def test_a_request_is_counted_once_with_what_it_took() -> None:
    with serving(engine(saying("Hello")), prepare=watched) as served:
        answer = served.complete("x>", max_tokens=9, n=2)
        assert answer.status_code == 200
        assert eventually(lambda: records(served.state))
        [record] = records(served.state)
        assert isinstance(served.state.usage, Counted)
        assert served.state.usage.records == [record]
    assert record.id == answer.headers["x-request-id"]
    assert (record.endpoint, record.status, record.key) == ("/v1/completions", 200, "")
    assert (record.prompt_tokens, record.completion_tokens) == (3, 12)
    assert (record.answers, record.max_tokens, record.streamed) == (2, 9, False)
    assert record.finish_reasons == ("stop", "stop")
    assert record.first_token_seconds is not None
    assert 0 < record.first_token_seconds <= record.seconds


def test_what_the_engine_computes_before_it_is_left_alone_is_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = generation.submit

    async def slow_submit(*arguments: Any) -> None:
        await submit(*arguments)
        # As if the engine's thread had taken the interpreter's lock.
        assert eventually(lambda: served.engine.idle)
        time.sleep(0.2)

    monkeypatch.setattr(generation, "submit", slow_submit)
    with serving(engine(saying("Hello")), prepare=watched) as served:
        served.complete("x>", max_tokens=9)
        assert eventually(lambda: records(served.state))
        [record] = records(served.state)
    assert record.first_token_seconds is not None
    assert record.first_token_seconds <= record.seconds - 0.1


def test_a_stream_is_counted_when_it_has_ended() -> None:
    with serving(prepare=watched) as served:
        served.chat(max_tokens=5, stream=True)
        assert eventually(lambda: records(served.state))
        [record] = records(served.state)
    assert (record.status, record.streamed, record.completion_tokens) == (200, True, 5)
    assert record.finish_reasons == ("length",)


def test_a_refused_request_is_counted_with_its_code() -> None:
    with serving(prepare=watched) as served:
        served.chat("x" * 2000)
        served.chat(n=0)
        served.chat(model="gpt-5")
        assert eventually(lambda: len(records(served.state)) == 3)
        assert [(each.status, each.error_code) for each in records(served.state)] == [
            (400, "context_length_exceeded"),
            (400, "invalid_value"),
            (404, "model_not_found"),
        ]


def test_a_path_at_which_nothing_is_is_told_by_its_beginning_with_the_reason() -> None:
    with serving(prepare=watched) as served:
        served.http.post("/v1/" + "x" * 1000)
        served.http.post("/v1/models")
        assert eventually(lambda: len(records(served.state)) == 2)
        first, second = records(served.state)
    assert (first.status, first.error_code, first.known) == (404, "not_found", False)
    assert first.endpoint == "/v1/" + "x" * 196
    assert (second.status, second.error_code, second.known) == (405, "method_not_allowed", True)


def test_of_a_request_whose_client_left_only_the_prompts_that_were_read_are_counted() -> None:
    held = Held(max_step_rows=1)
    with serving(engine_over(held), prepare=watched) as served:
        with served.connect() as connection:
            body = {"prompt": [[1, 2, 3], [4, 5, 6, 7]], "max_tokens": 100}
            connection.sendall(request_bytes("/v1/completions", body))
            held.allow(1)
            held.wait_entered(2)
        assert eventually(lambda: records(served.state))
        held.allow(100)
        [record] = records(served.state)
    assert (record.status, record.prompt_tokens, record.completion_tokens) == (499, 3, 1)


def test_a_request_whose_client_left_is_counted_as_left() -> None:
    held = Held()
    with serving(engine_over(held), prepare=watched) as served:
        body = b'{"prompt": "x", "max_tokens": 100}'
        with served.connect() as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            held.allow(1)
            held.wait_entered(2)
        assert eventually(lambda: records(served.state))
        held.allow(100)
        [record] = records(served.state)
    assert record.status == 499
    assert record.finish_reasons == ("cancelled",)
    assert record.completion_tokens == 1


def test_looking_at_the_server_is_not_counted() -> None:
    with serving(prepare=watched) as served:
        served.http.get("/health")
        served.http.get("/v1/models")
        assert not records(served.state)


def test_a_request_is_admitted_before_it_is_encoded_and_settled_after() -> None:
    gate = Gate()

    def gated(state: ServerState) -> None:
        state.admission = gate

    with serving(prepare=gated) as served:
        served.complete("Hello", max_tokens=4, n=2, priority=3)
        served.complete([[1, 2, 3], [4]], max_tokens=4)
        served.chat("Hello", max_tokens=3, stream=True)
        assert eventually(lambda: gate.told.count("close") == 3)
    assert all(len(each.pop("body_digest")) == 16 for each in gate.asked)
    first, second, third = gate.asked
    assert first == {
        "key": "",
        "prompt_bytes": 5,
        "prompt_tokens": None,
        "max_tokens": 4,
        "n": 2,
        "priority": 3,
    }
    assert (second["prompt_bytes"], second["prompt_tokens"], second["n"]) == (0, 4, 2)
    assert third["prompt_bytes"] > 5
    assert gate.told[0] == ("settle", 6)
    followed = [told[1] for told in gate.told if told[0] == "follow"]
    assert [[stream.made for stream in each] for each in followed] == [[4, 4], [4, 4], [3]]


def test_a_refusal_costs_no_encoding_and_says_when_to_come_back() -> None:
    refusal = ApiError(429, "too much waits", code="queue_full", headers=retry_headers(2.5))

    def gated(state: ServerState) -> None:
        state.admission = Gate(refusal)
        assert state.engine is not None
        state.engine.tokenizer.encode = None  # type: ignore[method-assign,assignment]

    with serving(prepare=gated) as served:
        for stream in (False, True):
            answer = served.chat(stream=stream)
            assert answer.status_code == 429
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert answer.headers["retry-after"] == "3"
            assert answer.headers["retry-after-ms"] == "2500"


def test_a_ticket_is_closed_however_the_request_ends() -> None:
    gate = Gate()

    def gated(state: ServerState) -> None:
        state.admission = gate

    def script(prefix: Any) -> Any:
        if prefix[-1] == ord("!"):
            raise RuntimeError("out of luck")
        return rambling(prefix)

    with serving(engine(script), prepare=gated) as served:
        served.complete("x" * 2000)
        served.complete("x!")
        served.complete("x!", stream=True)
        served.complete("x", timeout=0.001, max_tokens=500)
        served.complete([[1], [999]])
        served.wait_idle()
        assert eventually(lambda: gate.told.count("close") == 5)
    assert len(gate.asked) == 5


def test_an_engine_whose_queue_is_full_says_when_to_come_back() -> None:
    held = Held(max_step_rows=1)
    with serving(engine_over(held, queue_tokens=10), prepare=watched) as served:
        body = {"prompt": "x" * 9, "max_tokens": 3}
        with served.connect() as connection:
            data = b'{"prompt": "xxxxxxxxx", "max_tokens": 3}'
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (len(data), data)
            )
            held.wait_entered(1)
            answer = served.http.post("/v1/completions", json=body)
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "queue_full"
            assert int(answer.headers["retry-after-ms"]) >= 100
            held.allow(100)


def test_a_key_is_asked_for_everywhere_but_where_all_may_look() -> None:
    def locked(state: ServerState) -> None:
        state.keys = Ring()
        watched(state)

    with serving(prepare=locked) as served:
        for answer in (
            served.chat(),
            served.complete(),
            served.http.get("/v1/models"),
            served.http.post("/tokenize", json={"prompt": "x"}),
            served.http.get("/nowhere"),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert served.http.get("/health").status_code == 200
        assert served.http.get("/openapi.json").status_code == 200
        served.http.headers["authorization"] = "Bearer ada"
        assert served.chat(max_tokens=1).status_code == 200
        assert eventually(lambda: records(served.state)[-1].key == "ada")


def test_a_prompt_of_one_key_is_not_in_the_cache_of_another() -> None:
    class Names:
        def authenticate(self, authorization: str | None) -> Anonymous:
            return Anonymous((authorization or "").removeprefix("Bearer "))

    def named(state: ServerState) -> None:
        state.keys = Names()

    with serving(prepare=named) as served:
        cached = []
        for name in ("ada", "ada", "bob"):
            answer = served.http.post(
                "/v1/completions",
                json={"prompt": "x" * 200, "max_tokens": 1},
                headers={"authorization": f"Bearer {name}"},
            )
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 150
