from __future__ import annotations

import json
from typing import Any

import pytest

from engine.scripted import engine, rambling, saying
from serve.events import chunks, events
from serve.server import MODEL, Served, serving

Texts = list[str]


def texts(served: Served, prompt: Any = "Hello", **fields: Any) -> Texts:
    answer = served.complete(prompt, **fields)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_an_answer_has_every_field_of_the_api() -> None:
    with serving(engine(saying(" Paris"))) as served:
        answer = served.complete("The capital>").json()
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    assert answer["choices"] == [
        {"index": 0, "text": " Paris", "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"]["prompt_tokens"] == 13
    assert answer["usage"]["completion_tokens"] == 7


def test_without_a_limit_an_answer_has_sixteen_tokens_as_at_openai(server: Served) -> None:
    answer = server.complete().json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_prompt_may_be_a_text_or_its_token_ids(server: Served) -> None:
    ids = server.http.post("/tokenize", json={"prompt": "Hello"}).json()["tokens"]
    for prompt in (["Hello"], ids, [ids]):
        assert texts(server, prompt, seed=1) == texts(server, "Hello", seed=1)


def test_a_list_of_prompts_is_answered_in_its_order(server: Served) -> None:
    alone = [texts(server, prompt, seed=4)[0] for prompt in ("one", "two", "three")]
    assert texts(server, ["one", "two", "three"], seed=4) == alone
    ids = [[1, 2, 3], [4, 5], [6]]
    assert texts(server, ids, seed=4) == [texts(server, each, seed=4)[0] for each in ids]


def test_n_answers_to_each_prompt_stand_together(server: Served) -> None:
    answer = server.complete(["one", "two"], n=2, seed=4).json()
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3]
    found = [each["text"] for each in answer["choices"]]
    assert found == texts(server, "one", n=2, seed=4) + texts(server, "two", n=2, seed=4)
    assert answer["usage"]["prompt_tokens"] == 8
    assert answer["usage"]["completion_tokens"] == 64


def test_an_echo_puts_the_prompt_before_its_answers(server: Served) -> None:
    for prompt in ("Hello", list(b"Hello")):
        plain, echoed = (texts(server, prompt, seed=1, n=2, echo=echo) for echo in (False, True))
        assert echoed == ["Hello" + each for each in plain]


def test_a_stream_is_the_same_text_as_an_answer_in_one_piece(server: Served) -> None:
    fields: dict[str, Any] = {"n": 2, "seed": 3, "echo": True, "max_tokens": 20}
    parts = ["", "", "", ""]
    reasons: list[list[str | None]] = [[], [], [], []]
    for chunk in chunks(server.complete(["one", "two"], stream=True, **fields).text):
        assert chunk["object"] == "text_completion"
        [choice] = chunk["choices"]
        parts[choice["index"]] += choice["text"]
        reasons[choice["index"]].append(choice["finish_reason"])
    assert parts == texts(server, ["one", "two"], **fields)
    assert all(each == [None] * (len(each) - 1) + ["length"] for each in reasons)


def test_the_usage_of_a_stream_comes_last(server: Served) -> None:
    answer = server.complete(["one", "two"], stream=True, stream_options={"include_usage": True})
    *before, last, done = events(answer.text)
    assert done == "[DONE]"
    assert all(json.loads(each)["usage"] is None for each in before)
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1, "x"], ["x", [1]], [1.5], [True], {}, None, 7, [[["x"]]], ""]
)
def test_a_prompt_that_is_no_prompt_is_400(prompt: object) -> None:
    def nothing_added() -> Any:
        made = engine(rambling)
        made.tokenizer.adds_bos = False
        return made

    with serving(nothing_added()) as served:
        answer = served.complete(prompt)
        assert answer.status_code == 400
        assert "prompt" in answer.json()["error"]["param"]


def test_token_ids_outside_the_vocabulary_are_400(server: Served) -> None:
    for prompt in ([259], [-1], [10**20], [[1], [300]]):
        answer = server.complete(prompt)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_one_bad_prompt_of_a_list_ends_all_of_them(server: Served) -> None:
    assert server.complete([[1, 2], [999]]).status_code == 400
    server.wait_idle()


def test_the_counts_of_prompts_and_answers_are_bounded() -> None:
    with serving(most_prompts=3, most_answers=4, most_choices=2) as served:
        assert served.complete(["x"] * 3).status_code == 200
        assert served.complete(["x"] * 4).json()["error"]["param"] == "prompt"
        assert served.complete(["x"] * 3, n=2).json()["error"]["param"] == "n"
        assert served.complete("x", n=3).json()["error"]["param"] == "n"


def test_a_long_text_is_encoded_without_holding_up_the_others(server: Served) -> None:
    answer = server.complete("x" * 3000)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
