from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.threads import PATIENCE, eventually
from serve.server import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_text_becomes_the_ids_that_a_completion_reads(server: Served) -> None:
    answer = server.http.post("/tokenize", json={"prompt": "Hé"}).json()
    assert answer == {
        "count": 4,
        "max_model_len": server.engine.most_tokens,
        "tokens": [256, ord("H"), 0xC3, 0xA9],
    }


def test_the_first_token_can_be_left_out(server: Served) -> None:
    body = {"prompt": "H", "add_special_tokens": False}
    assert server.http.post("/tokenize", json=body).json()["tokens"] == [ord("H")]


def test_the_texts_of_tokens_are_given_on_request(server: Served) -> None:
    body = {"prompt": "Hi", "return_token_strs": True}
    assert server.http.post("/tokenize", json=body).json()["token_strs"] == ["<bos>", "H", "i"]


def test_a_chat_can_leave_out_the_beginning_of_an_answer(server: Served) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    whole = server.http.post("/tokenize", json=chat).json()["tokens"]
    part = server.http.post("/tokenize", json={**chat, "add_generation_prompt": False}).json()
    assert whole[: part["count"]] == part["tokens"]
    assert bytes(whole[part["count"] :]) == b"assistant: "


def test_a_text_longer_than_the_context_is_counted_all_the_same(server: Served) -> None:
    answer = server.http.post("/tokenize", json={"prompt": "x" * 5000}).json()
    assert answer["count"] == 5001


def test_either_a_prompt_or_messages_must_be_given(server: Served) -> None:
    both = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for body in ({}, both):
        assert server.http.post("/tokenize", json=body).status_code == 400


def test_ids_outside_the_vocabulary_are_400(server: Served) -> None:
    for tokens in ([259], [-1], [10**30], ["x"]):
        answer = server.http.post("/detokenize", json={"tokens": tokens})
        assert answer.status_code == 400
        assert "tokens" in answer.json()["error"]["param"]


def test_no_ids_are_no_text(server: Served) -> None:
    assert server.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_tokens_become_the_text_again(server: Served, text: str) -> None:
    body = {"prompt": text, "add_special_tokens": False}
    ids = server.http.post("/tokenize", json=body).json()["tokens"]
    assert server.http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": text}


LONG = 5000
"""More characters than are tokenized beside everything else."""


class Held:
    """A server whose tokenizer works on long texts until it is let go."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.served = served
        self.begun = 0
        self.let_go = threading.Event()
        tokenizer = served.engine.tokenizer
        own = getattr(tokenizer, method)

        def held(given: Any, *more: Any, **named: Any) -> Any:
            # Chats ask for the bytes of their tokens, too: only the first call is held.
            if not self.begun if method == "token_bytes" else len(given) >= LONG:
                self.begun += 1
                assert self.let_go.wait(PATIENCE)
            return own(given, *more, **named)

        monkeypatch.setattr(tokenizer, method, held)


@contextmanager
def holding(monkeypatch: pytest.MonkeyPatch, method: str, **limits: int) -> Iterator[Held]:
    with serving(**limits) as served:
        held = Held(served, monkeypatch, method)
        try:
            yield held
        finally:
            held.let_go.set()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("encode", "/tokenize", {"prompt": "x" * LONG}),
        ("token_bytes", "/tokenize", {"prompt": "x" * LONG, "return_token_strs": True}),
        ("decode", "/detokenize", {"tokens": [65] * LONG}),
    ],
)
def test_however_many_texts_are_tokenized_chats_are_answered(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any]
) -> None:
    with holding(monkeypatch, method) as held, ThreadPoolExecutor(40) as pool:
        texts = [pool.submit(held.served.http.post, path, json=body) for _ in range(40)]
        assert eventually(lambda: held.begun == 1)
        assert held.served.chat("Hi", max_tokens=2).status_code == 200
        assert held.served.http.get("/health").status_code == 200
        assert held.served.http.post("/tokenize", json={"prompt": "H"}).json()["count"] == 2
        held.let_go.set()
        assert {each.result().status_code for each in texts} == {200}


def test_texts_that_wait_for_the_tokenizer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        holding(monkeypatch, "encode", reading_bytes=3 * LONG) as held,
        ThreadPoolExecutor() as pool,
    ):
        body = {"prompt": "x" * LONG}
        first = pool.submit(held.served.http.post, "/tokenize", json=body)
        assert eventually(lambda: held.begun == 1)
        second = pool.submit(held.served.http.post, "/tokenize", json=body)
        assert eventually(lambda: held.served.state.tokenizing.waiting_bytes > 2 * LONG)
        third = held.served.http.post("/tokenize", json=body)
        assert (third.status_code, third.json()["error"]["code"]) == (503, "too_much_at_once")
        assert int(third.headers["retry-after"]) >= 1
        held.let_go.set()
        assert [each.result().status_code for each in (first, second)] == [200, 200]
        assert held.served.http.post("/tokenize", json=body).status_code == 200
        assert held.served.state.tokenizing.waiting_bytes == 0


def test_a_text_whose_client_has_left_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(monkeypatch, "encode") as held, ThreadPoolExecutor() as pool:
        body = {"prompt": "x" * LONG}
        first = pool.submit(held.served.http.post, "/tokenize", json=body)
        assert eventually(lambda: held.begun == 1)
        with held.served.connect() as leaving:
            written = b'{"prompt": "' + b"x" * LONG + b'"}'
            head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(written)}\r\n\r\n"
            leaving.sendall(head.encode() + written)
            assert eventually(lambda: held.served.state.tokenizing.waiting_bytes > 2 * LONG)
        held.let_go.set()
        assert first.result().status_code == 200
        assert eventually(lambda: held.served.state.tokenizing.waiting_bytes == 0)
        assert held.begun == 1
