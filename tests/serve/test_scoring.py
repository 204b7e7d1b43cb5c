"""Completions that score their prompt: `echo` with `logprobs`, with an answer and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import BOS, tokenizer
from farthing.core import SamplingParams
from serve.events import chunks
from serve.server import Served, serving

if TYPE_CHECKING:
    import httpx


def choice(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def test_a_prompt_alone_is_scored_as_evaluation_harnesses_ask(server: Served) -> None:
    answer = server.complete("Grüße", echo=True, logprobs=2, max_tokens=0)
    found = choice(answer)
    assert (found["text"], found["finish_reason"]) == ("Grüße", "length")
    logprobs = found["logprobs"]
    assert logprobs["tokens"][:4] == ["<bos>", "G", "r", "bytes:\\xc3"]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 2, 3, 3, 4]
    scores = server.engine.score("Grüße", top=2)
    assert logprobs["token_logprobs"] == [None, *(each.logprob for each in scores if each)]
    assert logprobs["top_logprobs"][0] is None
    assert all(len(each) == 2 for each in logprobs["top_logprobs"][1:])
    usage = answer.json()["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (0, 8)


def test_token_ids_keep_their_places(server: Served) -> None:
    """Harnesses cut the context off by counting the tokens that they sent."""
    ids = [65, 66, BOS, 67]
    found = choice(server.complete(ids, echo=True, logprobs=1, max_tokens=1))
    logprobs = found["logprobs"]
    assert found["text"].startswith("ABC")
    assert logprobs["tokens"][:4] == ["A", "B", "<bos>", "C"]
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3]
    assert {len(each) for each in logprobs.values()} == {5}


def test_a_prompt_and_its_answer_are_one_list(server: Served) -> None:
    fields: dict[str, Any] = {"logprobs": 1, "max_tokens": 6, "seed": 4}
    plain = choice(server.complete("Hello", **fields))
    both = choice(server.complete("Hello", echo=True, **fields))
    assert both["text"] == "Hello" + plain["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert both["logprobs"][name][6:] == plain["logprobs"][name]
    assert both["logprobs"]["text_offset"][6:] == [
        5 + each for each in plain["logprobs"]["text_offset"]
    ]


def test_several_prompts_and_answers_have_each_their_own(server: Served) -> None:
    prompts = ["one", "another"]
    answer = server.complete(prompts, echo=True, logprobs=0, max_tokens=2, n=2)
    for number, each in enumerate(answer.json()["choices"]):
        prompt = prompts[number // 2]
        scores = [score.logprob for score in server.engine.score(prompt) if score]
        assert each["text"].startswith(prompt)
        assert each["logprobs"]["token_logprobs"][: len(scores) + 1] == [None, *scores]
        assert len(each["logprobs"]["tokens"]) == len(scores) + 3


@pytest.mark.parametrize("most", [0, 5])
def test_a_stream_gives_what_one_piece_does(server: Served, most: int) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": most, "seed": 4}
    whole = choice(server.complete("Hello", **fields))
    parts = [
        each["choices"][0] for each in chunks(server.complete("Hello", stream=True, **fields).text)
    ]
    assert "".join(each["text"] for each in parts) == whole["text"]
    assert parts[-1]["finish_reason"] == "length"
    for name, wanted in whole["logprobs"].items():
        assert [entry for each in parts for entry in each["logprobs"][name]] == wanted


def test_without_logprobs_the_prompt_is_echoed_and_nothing_else(server: Served) -> None:
    found = choice(server.complete("Hello", echo=True, max_tokens=0))
    assert (found["text"], found["logprobs"]) == ("Hello", None)


def test_a_prompt_as_long_as_the_context_can_be_scored() -> None:
    from engine.scripted import engine

    with serving(engine(context_length=64)) as served:
        ids = [65] * 64
        found = choice(served.complete(ids, echo=True, logprobs=0, max_tokens=0))
        assert len(found["logprobs"]["tokens"]) == 64
        answer = served.complete([65] * 65, echo=True, logprobs=0, max_tokens=0)
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_nothing_to_write_and_nothing_to_echo_is_400(server: Served) -> None:
    answer = server.complete("Hello", max_tokens=0)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_a_scored_stream_of_several_answers_is_400(server: Served) -> None:
    answer = server.complete("Hello", echo=True, logprobs=1, n=2, stream=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert server.complete("Hello", echo=True, n=2, stream=True, max_tokens=1).status_code == 200


def test_the_scores_of_the_default_model_are_the_engines(real_server: Served) -> None:
    text = "The capital of France is Paris."
    body = {"model": "smollm2-135m", "prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0}
    logprobs = choice(real_server.http.post("/v1/completions", json=body))["logprobs"]
    assert "".join(logprobs["tokens"]) == text
    scores = real_server.engine.score(text)
    assert logprobs["token_logprobs"][1:] == [each.logprob for each in scores if each]
    assert text[logprobs["text_offset"][5] :] == " Paris."
    # What is likely after the capital of France: the model knows.
    assert logprobs["token_logprobs"][5] > -1
    done = real_server.engine.generate("The capital of France is", SamplingParams(max_tokens=1))
    assert done.text == " Paris"


def test_offsets_leave_out_the_space_that_a_vocabulary_puts_first() -> None:
    from farthing.serve.logprobs import prompt_logprobs

    words = tokenizer()
    words.strips_leading_space = True
    found = prompt_logprobs(words, [BOS, 32, 65, 66], [None] * 4)
    assert found.text_offset == [0, 0, 0, 1]
    assert prompt_logprobs(words, [65, 32], [None] * 2).text_offset == [0, 1]
