from __future__ import annotations

from typing import Any

import pytest

from engine.scripted import engine, rambling, saying
from serve.server import MODEL, Served, serving


def answering(answer: str | bytes) -> Any:
    return engine(saying(answer, after=":"))


def test_an_answer_has_every_field_of_the_api() -> None:
    with serving(answering(" Hello.")) as served:
        answer = served.chat("Hi").json()
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["created"] > 1_700_000_000
    assert answer["model"] == MODEL
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len("user: Hi") + len("assistant: ") + 2  # the first token, and the turn's
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 7,
        "total_tokens": prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_prompt_that_was_seen_before_is_counted_as_cached() -> None:
    with serving(answering(" Hello.")) as served:
        first, second = (served.chat("Hi " * 40).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= second["prompt_tokens"] - 32


def test_the_beginning_of_sequence_token_is_not_doubled(server: Served) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    ids = server.http.post("/tokenize", json={"messages": chat}).json()["tokens"]
    assert ids.count(256) == 1
    assert server.chat("Hi", max_tokens=1).json()["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_is_cut_off_says_length(server: Served, field: str) -> None:
    answer = server.chat(**{field: 5}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


def test_the_two_names_of_one_limit_must_agree(server: Served) -> None:
    assert server.chat(max_tokens=5, max_completion_tokens=5).status_code == 200
    answer = server.chat(max_tokens=5, max_completion_tokens=6)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_of_no_tokens_is_none(server: Served, field: str) -> None:
    assert server.chat(**{field: 0}).status_code == 400


def test_text_parts_are_one_text(server: Served) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    texts = [
        server.http.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 8,
                "temperature": 0,
            },
        ).json()["choices"][0]["message"]["content"]
        for content in (parts, "one\ntwo")
    ]
    assert texts[0] == texts[1]


def test_parts_that_are_not_text_are_refused(server: Served) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    body = {"messages": [{"role": "user", "content": [picture]}]}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "text" in answer.json()["error"]["message"]


def test_a_developers_message_is_a_system_message(server: Served) -> None:
    ids = [
        server.http.post("/tokenize", json={"messages": [{"role": role, "content": "x"}]}).json()
        for role in ("developer", "system")
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": "x", "function_call": {"name": "f"}},
        "x",
        None,
    ],
)
def test_a_message_that_cannot_be_read_is_400(server: Served, message: object) -> None:
    answer = server.http.post("/v1/chat/completions", json={"messages": [message]})
    assert answer.status_code == 400
    assert "messages" in answer.json()["error"]["param"]


def test_n_answers_are_numbered_and_differ(server: Served) -> None:
    answer = server.chat(n=3, max_tokens=12, seed=7).json()
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
    assert len({each["message"]["content"] for each in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 36


def test_each_of_n_answers_is_what_it_is_in_any_number_of_them(server: Served) -> None:
    one, three = (server.chat(n=n, max_tokens=12, seed=7).json()["choices"] for n in (1, 3))
    assert one == three[:1]


def test_a_seed_repeats_an_answer_and_another_does_not(server: Served) -> None:
    texts = [
        server.chat(max_tokens=12, seed=seed).json()["choices"][0]["message"]["content"]
        for seed in (1, 1, 2, -1, -1)
    ]
    assert texts[0] == texts[1]
    assert texts[3] == texts[4]
    assert len(set(texts)) == 3


def test_without_a_temperature_answers_are_sampled_as_by_openai(server: Served) -> None:
    default, one = (
        server.chat(max_tokens=12, seed=3, **more).json()["choices"]
        for more in ({}, {"temperature": 1, "top_p": 1})
    )
    assert default == one


def test_a_stop_string_ends_the_text_before_it() -> None:
    with serving(answering(" one, two, three")) as served:
        for stop in (", t", ["zzz", ", t"]):
            choice = served.chat(stop=stop).json()["choices"][0]
            assert choice["message"]["content"] == "one"
            assert choice["finish_reason"] == "stop"


def test_a_stop_token_ends_the_text_before_it() -> None:
    with serving(answering(" one, two")) as served:
        choice = served.chat(stop_token_ids=[ord(",")]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")


def test_logit_bias_has_token_ids_as_strings(server: Served) -> None:
    choice = server.chat(max_tokens=4, logit_bias={"65": 100}).json()["choices"][0]
    assert choice["message"]["content"] == "AAAA"


def test_ignore_eos_and_min_tokens_write_on() -> None:
    with serving(answering(" A")) as served:
        ignored = served.chat(ignore_eos=True, max_tokens=5, temperature=0).json()
        least = served.chat(min_tokens=3, max_tokens=5, temperature=0).json()
    assert ignored["usage"]["completion_tokens"] == 5
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert least["usage"]["completion_tokens"] >= 3


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 3},
        {"min_p": 0.2},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 2, "frequency_penalty": -2},
        {"logit_bias": {"65": 5, "66": -5}},
    ],
)
def test_sampling_fields_reach_the_engine(server: Served, fields: dict[str, Any]) -> None:
    """The text is what the engine itself writes with these parameters."""
    from farthing.core import SamplingParams

    given = dict(fields)
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 24, "seed": 5, **given})
    expected = server.engine.generate([{"role": "user", "content": "Hello"}], sampling).text
    answer = server.chat(max_tokens=24, seed=5, **fields).json()
    assert answer["choices"][0]["message"]["content"] == expected


def test_no_top_k_can_be_said_in_the_ways_of_both_vllm_and_llama_cpp(server: Served) -> None:
    texts = [
        server.chat(max_tokens=12, seed=3, **fields).json()["choices"]
        for fields in ({}, {"top_k": -1}, {"top_k": 0})
    ]
    assert texts[0] == texts[1] == texts[2]


def test_a_prompt_longer_than_the_context_is_refused_at_once_and_never_cut() -> None:
    with serving(engine(rambling, context_length=64)) as served:
        for answer in (
            served.chat("x" * 64),
            served.chat("x" * 100_000),
            served.chat("x", max_tokens=64),
            served.complete("x" * 64),
            served.complete([1] * 64),
        ):
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert error["code"] == "context_length_exceeded"
            assert error["type"] == "invalid_request_error"
        assert served.engine.stats().counters.prompt_tokens == 0


def test_a_prompt_that_can_never_fit_in_the_cache_is_400_and_does_not_hang() -> None:
    with serving(engine(rambling, total_blocks=2, context_length=1024)) as served:
        answer = served.chat("x" * 100)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert served.chat("x", max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("guided_regex", "a+"),
        ("guided_choice", ["a", "b"]),
    ],
)
def test_what_this_server_cannot_do_is_refused_not_ignored(
    server: Served, field: str, value: object
) -> None:
    answer = server.chat(**{field: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)


def test_asking_for_plain_text_is_no_form(server: Served) -> None:
    assert server.chat(max_tokens=1, response_format={"type": "text"}, tools=[]).status_code == 200


def test_an_answer_that_takes_too_long_is_408_and_clients_are_told_not_to_retry() -> None:
    with serving(engine(rambling), request_seconds=1000) as served:
        answer = served.chat(timeout=0.001, ignore_eos=True)
        assert answer.status_code == 408
        assert answer.json()["error"]["code"] == "timeout"
        assert answer.headers["x-should-retry"] == "false"
        served.wait_idle()


def test_a_model_without_a_template_refuses_chats_and_says_what_to_do() -> None:
    with serving() as served:
        served.engine.chat_template = None
        answer = served.chat()
        assert answer.status_code == 400
        assert "/v1/completions" in answer.json()["error"]["message"]
