from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import engine, saying, tokenizer
from engine.threads import PATIENCE
from farthing.engine.sequence import TokenLogprob
from farthing.serve import completion_answers
from farthing.serve.logprobs import Aligner, completion_logprobs
from farthing.text.stream import StreamDecoder
from serve.events import choices
from serve.server import Served, serving


def test_a_chat_gets_them_token_by_token(server: Served) -> None:
    choice = server.chat(max_tokens=6, logprobs=True, top_logprobs=3).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert len(entries) == 6
    assert (
        bytes(b for each in entries for b in each["bytes"]).decode("utf-8", "replace")
        == choice["message"]["content"]
    )
    for each in entries:
        top = each["top_logprobs"]
        assert each.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(top) == 3
        assert [one["logprob"] for one in top] == sorted(
            (one["logprob"] for one in top), reverse=True
        )
        assert all(one["logprob"] <= 0 for one in [each, *top])


def test_they_are_the_engines_own(server: Served) -> None:
    from farthing.core import SamplingParams

    sampling = SamplingParams(max_tokens=6, logprobs=0)
    own = server.engine.generate("Hello", sampling).logprobs
    answer = server.complete("Hello", max_tokens=6, logprobs=0, temperature=0).json()
    assert own is not None
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [each.logprob for each in own]


def test_a_chat_that_asks_for_no_alternatives_gets_the_chosen_tokens(server: Served) -> None:
    choice = server.chat(max_tokens=2, logprobs=True).json()["choices"][0]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == [[], []]


def test_a_completion_gets_them_as_lists_of_one_length(server: Served) -> None:
    choice = server.complete(max_tokens=6, logprobs=2).json()["choices"][0]
    found = choice["logprobs"]
    assert found.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(each) for each in found.values()} == {6}
    assert all(len(each) == 2 for each in found["top_logprobs"])


def test_offsets_are_where_the_tokens_begin_in_the_text() -> None:
    with serving(engine(saying(" Grüße"))) as served:
        choice = served.complete("x>", logprobs=0, temperature=0).json()["choices"][0]
    found = choice["logprobs"]
    assert choice["text"] == " Grüße"
    assert found["tokens"][:3] == [" ", "G", "r"]
    assert found["tokens"][3:5] == ["bytes:\\xc3", "bytes:\\xbc"]
    assert found["text_offset"] == [0, 1, 2, 3, 3, 4, 4, 5]


def test_a_token_that_ends_the_text_has_none() -> None:
    with serving(engine(saying("ab"))) as served:
        choice = served.complete("x>", logprobs=0).json()["choices"][0]
    assert (choice["finish_reason"], choice["logprobs"]["tokens"]) == ("stop", ["a", "b"])


def test_a_stop_string_has_none() -> None:
    with serving(engine(saying("one<stop>two"))) as served:
        whole = served.complete("x>", logprobs=0, stop="<stop>").json()["choices"][0]
        text = served.complete("x>", logprobs=0, stop="<stop>", stream=True).text
    assert whole["logprobs"]["tokens"] == ["o", "n", "e"]
    streamed = [token for each in choices(text) for token in each["logprobs"]["tokens"]]
    assert streamed == ["o", "n", "e"]


def test_those_of_a_stream_are_those_of_an_answer_in_one_piece(server: Served) -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "logprobs": True, "top_logprobs": 1, "seed": 9}
    whole = server.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    parts = choices(server.chat(stream=True, **fields).text)
    streamed = [
        entry for each in parts if each["logprobs"] for entry in each["logprobs"]["content"]
    ]
    assert streamed == whole


@pytest.mark.parametrize("stream", [False, True])
def test_others_are_answered_while_those_of_a_long_text_are_written(
    server: Served, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, let_go = threading.Event(), threading.Event()
    own = completion_answers.prompt_logprobs

    def held(*arguments: Any) -> Any:
        begun.set()
        assert let_go.wait(PATIENCE)
        return own(*arguments)

    monkeypatch.setattr(completion_answers, "prompt_logprobs", held)
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "stream": stream}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, "x" * 100, **fields)
        assert begun.wait(PATIENCE)
        try:
            assert server.http.get("/health", timeout=2).status_code == 200
        finally:
            let_go.set()
        assert answer.result().status_code == 200


def test_only_the_chunk_that_has_a_long_prompts_is_written_by_another_thread(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, threads = completion_answers.completion_logprobs, []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return own(*arguments)

    monkeypatch.setattr(completion_answers, "completion_logprobs", noted)
    fields = {"echo": True, "logprobs": 1, "max_tokens": 12, "stream": True, "ignore_eos": True}
    assert server.complete("x" * 100, **fields).status_code == 200
    first, *others = threads
    assert others
    assert first not in others
    assert len(set(others)) == 1


def test_where_none_were_asked_for_there_are_none(server: Served) -> None:
    for choice in choices(server.chat(max_tokens=3, stream=True).text):
        assert choice["logprobs"] is None
    assert server.complete().json()["choices"][0]["logprobs"] is None


def test_what_minus_infinity_would_be_is_a_number(server: Served) -> None:
    entry = TokenLogprob(65, float("-inf"), ((66, float("-inf")),))
    words = tokenizer()
    placed = Aligner(words).push([entry], "A", "length")
    found = completion_logprobs(words, placed)
    assert found.token_logprobs == [-9999.0]
    assert found.top_logprobs == [{"B": -9999.0}]


def test_bad_counts_are_400(server: Served) -> None:
    for answer, param in (
        (server.chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (server.chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
        (server.chat(top_logprobs=3), "top_logprobs"),
        (server.complete(logprobs=21), "logprobs"),
        (server.complete(logprobs=-1), "logprobs"),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@given(st.binary(max_size=40), st.lists(st.text("ab<é", min_size=1, max_size=3), max_size=2))
def test_entries_are_never_ahead_of_the_text_and_none_is_lost(
    data: bytes, stops: list[str]
) -> None:
    words = tokenizer()
    decoder, aligner = StreamDecoder(words, stops), Aligner(words)
    text, given_out = "", 0
    for number, byte in enumerate(data):
        piece = decoder.push(byte)
        last = number == len(data) - 1 or decoder.stopped is not None
        reason = None
        if last:
            reason = "stop" if decoder.stopped is not None else "length"
            piece += decoder.finish()
        text += piece
        placed = aligner.push([TokenLogprob(byte, -1.0, ())], piece, reason)
        given_out += len(placed)
        assert all(each.start <= len(text) for each in placed)
        if reason is None:
            assert all(each.end <= len(text) for each in placed)
        if last:
            if reason == "length":
                assert given_out == number + 1
            break
