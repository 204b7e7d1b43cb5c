from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from serve.server import Served


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
