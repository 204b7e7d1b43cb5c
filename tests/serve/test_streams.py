from __future__ import annotations

import json
from typing import Any

import pytest

from engine.scripted import engine, engine_over, rambling, saying
from engine.threads import Held, close_in_a_step
from farthing.engine.stream import Stream
from serve.events import choices, chunks, events
from serve.server import Served, serving


def stream_chat(served: Served, **fields: Any) -> str:
    answer = served.chat(stream=True, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-request-id"]
    return answer.text


def content(text: str) -> str:
    return "".join(choice["delta"].get("content", "") for choice in choices(text))


def test_a_stream_is_the_same_text_as_an_answer_in_one_piece(server: Served) -> None:
    whole = server.chat(max_tokens=40, seed=1).json()["choices"][0]["message"]["content"]
    assert content(stream_chat(server, max_tokens=40, seed=1)) == whole


def test_the_chunks_of_a_stream_have_every_field_of_the_api(server: Served) -> None:
    found = chunks(stream_chat(server, max_tokens=5))
    assert len({(each["id"], each["created"], each["model"]) for each in found}) == 1
    for each in found:
        assert each.keys() == {"id", "object", "created", "model", "choices"}
        assert each["object"] == "chat.completion.chunk"
        [choice] = each["choices"]
        assert choice.keys() == {"index", "delta", "logprobs", "finish_reason"}


def test_the_first_chunk_alone_carries_the_role(server: Served) -> None:
    deltas = [choice["delta"] for choice in choices(stream_chat(server, max_tokens=5))]
    assert deltas[0]["role"] == "assistant"
    assert "content" in deltas[0]
    assert not any("role" in delta for delta in deltas[1:])


def test_the_finish_reason_is_null_until_the_last_chunk(server: Served) -> None:
    reasons = [each["finish_reason"] for each in choices(stream_chat(server, max_tokens=9))]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_the_usage_comes_last_with_no_choices_where_it_was_asked_for(server: Served) -> None:
    text = stream_chat(server, max_tokens=5, stream_options={"include_usage": True})
    *before, last = chunks(text)
    assert all(each["usage"] is None and each["choices"] for each in before)
    assert last["choices"] == []
    whole = server.chat(max_tokens=5).json()["usage"]
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens"] == whole["prompt_tokens"]
    assert last["usage"]["total_tokens"] == whole["total_tokens"]
    assert "usage" not in text.replace('"usage":', "", text.count('"usage":'))


def test_without_being_asked_for_there_is_no_usage(server: Served) -> None:
    assert '"usage"' not in stream_chat(server, max_tokens=5)


def test_the_usage_in_each_chunk_takes_no_longer_as_the_text_grows(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = vars(Stream)["completion"]
    looks: list[Stream] = []

    def looked(stream: Stream) -> Any:
        looks.append(stream)
        return whole.fget(stream)

    monkeypatch.setattr(Stream, "completion", property(looked))
    options = {"include_usage": True, "continuous_usage_stats": True}
    server.complete(max_tokens=60, n=3, stream=True, stream_options=options)
    assert len(looks) <= 3 * 2  # when it ends


def test_continuous_usage_grows_with_the_text(server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(stream_chat(server, max_tokens=6, stream_options=options, n=2))
    counts = [each["usage"]["completion_tokens"] for each in found]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert found[-1]["choices"] == []


def test_options_of_a_stream_without_a_stream_are_refused(server: Served) -> None:
    answer = server.chat(stream_options={"include_usage": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")


def test_several_answers_are_told_apart_by_their_index(server: Served) -> None:
    whole = server.chat(max_tokens=20, n=3, seed=2).json()["choices"]
    parts = choices(stream_chat(server, max_tokens=20, n=3, seed=2))
    for index, expected in enumerate(whole):
        own = [each for each in parts if each["index"] == index]
        text = "".join(each["delta"].get("content", "") for each in own)
        assert text == expected["message"]["content"]
        assert own[0]["delta"]["role"] == "assistant"
        assert [each["finish_reason"] for each in own][-1] == "length"


def test_no_event_holds_half_a_character() -> None:
    said = " Grüße, 世界 🦊!"
    with serving(engine(saying(said, after=":"))) as served:
        answer = served.chat(stream=True)
    assert "�" not in answer.text
    pieces = [each["delta"].get("content", "") for each in choices(answer.text)]
    assert "".join(pieces) == said.removeprefix(" ")


def test_nothing_is_sent_while_there_is_nothing_to_see() -> None:
    """But for the last, no chunk is without text."""
    with serving(engine(saying(" 世界🦊", after=":"))) as served:
        whole = choices(served.chat(stream=True).text)
        plain = [
            choice["text"]
            for chunk in chunks(served.complete("x:", stream=True).text)
            for choice in chunk["choices"]
        ]
    assert all(each["delta"]["content"] for each in whole[:-1])
    assert all(plain[:-1])


def test_no_event_holds_half_a_stop_string() -> None:
    with serving(engine(saying(" one<sto two<stop>three", after=":"))) as served:
        text = served.chat(stream=True, stop="<stop>").text
    pieces = [each["delta"].get("content", "") for each in choices(text)]
    assert "".join(pieces) == "one<sto two"
    assert not any(piece.endswith("<") for piece in pieces)
    assert choices(text)[-1]["finish_reason"] == "stop"


def test_what_comes_together_is_written_together(server: Served) -> None:
    """All choices of one step are in one write, so in one chunk of the transfer."""
    body = {"messages": [{"role": "user", "content": "x"}], "n": 4, "max_tokens": 3, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        writes = list(answer.iter_raw())
    assert len(b"".join(writes).split(b"\n\n")) > len(writes)


def test_a_silent_line_gets_comments_and_then_the_text() -> None:
    held = Held()
    with serving(engine_over(held), ping_seconds=0.02) as served:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert answer.status_code == 200
            assert [next(lines), next(lines), next(lines)] == [": ping", "", ": ping"]
            held.allow(1000)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        [*_, last, _done] = [line for line in rest if line.startswith("data: ")]
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_failure_before_the_first_token_has_a_status_of_its_own() -> None:
    def script(prefix: object) -> int:
        raise RuntimeError("out of luck")

    with serving(engine(script)) as served:
        answer = served.chat(stream=True)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_error"


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_a_failure_in_mid_stream_is_an_event_and_ends_the_stream(path: str) -> None:
    def script(prefix: Any) -> Any:
        if len(prefix) > 30:
            raise RuntimeError("out of luck")
        return rambling(prefix)

    with serving(engine(script)) as served:
        answer = getattr(served, path)("x", stream=True, max_tokens=100)
        *before, error, done = events(answer.text)
        assert answer.status_code == 200
        assert done == "[DONE]"
        failure = json.loads(error)["error"]
        assert failure["code"] == "engine_error"
        assert "out of luck" in failure["message"]
        assert all(json.loads(each)["choices"] for each in before)
        served.wait_idle()


def test_a_stream_that_takes_too_long_ends_with_an_error_not_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    for module in ("engine", "loop"):
        monkeypatch.setattr(f"farthing.engine.{module}.monotonic", lambda: now)

    def script(prefix: Any) -> Any:
        nonlocal now
        now += 0.01
        return rambling(prefix)

    with serving(engine(script)) as served:
        answer = served.chat(stream=True, timeout=0.2)
        *_, error, done = events(answer.text)
        assert done == "[DONE]"
        assert json.loads(error)["error"]["code"] == "timeout"
        assert '"finish_reason":"' not in answer.text


def test_an_engine_that_is_closed_in_mid_stream_says_so() -> None:
    held = Held()
    with serving(engine_over(held)) as served:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        held.allow(20)  # the first may be half a character
        with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.state.draining = True
            held.wait_entered(21)
            close_in_a_step(served.engine, held)
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
