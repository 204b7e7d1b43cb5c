from __future__ import annotations

import gc
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import engine
from farthing.serve.admission import OBJECTIVES, Admission
from farthing.serve.errors import ApiError
from farthing.serve.reading import parse
from farthing.serve.wire import fields as fields_module
from farthing.serve.wire.chat import ChatRequest
from farthing.serve.wire.completions import CompletionRequest
from farthing.serve.wire.fields import CHANGING
from farthing.serve.wire.responses import ResponseRequest
from serve.server import Served, serving

if TYPE_CHECKING:
    from farthing.serve.state import ServerState

POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
)


def post(served: Served, path: str, body: bytes) -> Any:
    return served.http.post(path, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{'a': 1}",
        b"NaN",
        b'{"prompt": "\xff\xfe"}',
        b"\xff\xfe{\x00}\x00",
        b'{"prompt": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b"[" * 40_000,
        b'{"a":' * 20_000,
        b'{"max_tokens": 1e999}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"\x00" * 100,
    ],
    ids=range(16),
)
def test_what_is_not_json_is_400(server: Served, path: str, body: bytes) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", 1e308),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 10**30),
        ("min_p", 2),
        ("n", 0),
        ("n", -1),
        ("n", 10**9),
        ("n", 1.5),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [1]),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1001),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [999]),
        ("stop_token_ids", ["x"]),
        ("stop_token_ids", [1] * 2000),
        ("seed", 2**64),
        ("seed", -(2**64)),
        ("seed", 0.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1.5": 1}),
        ("logit_bias", {"999": 1}),
        ("logit_bias", {"99999999999": 1}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", [1]),
        ("logit_bias", {str(token): 1 for token in range(2000)}),
        ("min_tokens", -1),
        ("min_tokens", 10**6),
        ("ignore_eos", 1),
        ("priority", 10**6),
        ("priority", "high"),
        ("timeout", 0),
        ("timeout", -1),
        ("stream", "yes"),
        ("stream_options", []),
        ("user", 5),
    ],
)
@pytest.mark.parametrize("path", ["chat", "complete"])
def test_an_absurd_parameter_is_400_and_names_its_field(
    server: Served, path: str, field: str, value: object
) -> None:
    answer = getattr(server, path)(**{"max_tokens": 5, field: value})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(field) or field in error["message"]
    server.wait_idle()


TWO = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


@pytest.mark.parametrize(
    ("flag", "path", "fields"),
    [
        ("--request-bytes", "/v1/completions", {"prompt": "x" * 5000}),
        ("--most-choices", "/v1/completions", {"prompt": "x", "n": 2}),
        ("--most-prompts", "/v1/completions", {"prompt": ["x", "y"]}),
        ("--most-inputs", "/v1/embeddings", {"input": ["x", "y"]}),
        ("--most-messages", "/v1/chat/completions", {"messages": TWO}),
        ("--most-messages", "/v1/responses", {"input": TWO}),
        ("--most-messages", "/tokenize", {"messages": TWO}),
        ("--most-stops", "/v1/completions", {"prompt": "x", "stop": ["a", "b"]}),
        ("--stop-characters", "/v1/completions", {"prompt": "x", "stop": "ab"}),
        ("--most-biases", "/v1/completions", {"prompt": "x", "logit_bias": {"1": 1, "2": 2}}),
        ("--request-seconds", "/v1/completions", {"prompt": "x", "max_tokens": 4000}),
        ("--context", "/v1/completions", {"prompt": "x", "max_tokens": 10**6}),
    ],
)
def test_who_meets_a_limit_is_told_which_flag_raises_it(
    flag: str, path: str, fields: dict[str, object]
) -> None:
    names = ("most_choices", "most_prompts", "most_inputs", "most_messages", "most_stops")
    limits = dict.fromkeys((*names, "stop_characters", "most_biases"), 1)

    def admitting(state: ServerState) -> None:
        own, _ = state.ready()
        state.admission = Admission(own, (), OBJECTIVES["patient"], 1 << 18)

    slow = engine(context_length=8192, total_blocks=512)
    with serving(
        slow, request_bytes=1000, request_seconds=0.05, prepare=admitting, **limits
    ) as served:
        answer = served.http.post(path, json=fields)
        assert answer.status_code in (400, 408, 413), answer.text
        assert f"can allow more with {flag}" in answer.json()["error"]["message"]


def test_a_null_is_as_if_the_field_were_not_there(server: Served) -> None:
    names = [
        "temperature", "top_p", "top_k", "n", "stop", "seed", "logit_bias", "stream", "user",
        "stream_options", "response_format", "tools", "tool_choice", "logprobs", "top_logprobs",
    ]  # fmt: skip
    answer = server.chat(max_tokens=2, **dict.fromkeys(names))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field", sorted(CHANGING))
def test_a_field_that_would_change_the_answer_and_is_not_supported_is_400(
    server: Served, field: str
) -> None:
    answers = [server.complete(**{field: "something"})]
    if field not in ChatRequest.__struct_fields__:
        answers.append(server.chat(**{field: "something"}))
    for answer in answers:
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", field)


@pytest.mark.parametrize("field", sorted(CHANGING))
def test_the_same_field_is_accepted_where_it_asks_for_what_happens_anyway(
    server: Served, field: str
) -> None:
    for value in (None, *CHANGING[field]):
        answer = server.complete(**{field: value}, max_tokens=1)
        assert answer.status_code == 200, answer.text


ASKING = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "x"}]}, ChatRequest),
    "/v1/completions": ({"prompt": "x"}, CompletionRequest),
    "/v1/responses": ({"input": "x"}, ResponseRequest),
}
MOST = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
HARMLESS = {"max_draft_tokens", "metadata", "store", "parallel_tool_calls"}
"""They say what a request is kept for, and how to use what it has not."""


@pytest.mark.parametrize("path", ASKING)
def test_no_way_to_ask_ignores_what_another_one_does(server: Served, path: str) -> None:
    usual, kind = ASKING[path]
    fields = {*CHANGING, *(name for _, each in ASKING.values() for name in each.__struct_fields__)}
    for name in sorted(fields - HARMLESS - {*kind.__struct_fields__}):
        answer = server.http.post(path, json={**usual, name: "something"})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["param"] == name
        nothing = server.http.post(path, json={**usual, MOST[path]: 1, name: None})
        assert nothing.status_code == 200, name


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_completion_is_as_long_as_it_should_be_by_either_name(server: Served, name: str) -> None:
    assert server.complete(**{name: 3}).json()["usage"]["completion_tokens"] == 3
    assert server.complete(max_tokens=3, max_completion_tokens=4).status_code == 400


def test_true_is_not_one(server: Served) -> None:
    assert server.complete(best_of=1).status_code == 200
    assert server.complete(best_of=True).status_code == 400


def test_a_harmless_unknown_field_is_accepted_and_logged_once(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farthing.serve"):
        for value in (1, "two"):
            assert server.chat(max_tokens=1, never_heard_of_this=value).status_code == 200
    told = [each for each in caplog.messages if "never_heard_of_this" in each]
    assert len(told) == 1
    assert "two" not in told[0]


def test_of_an_unknown_fields_name_only_the_beginning_is_logged_and_kept(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farthing.serve"):
        for end in ("1", "2"):
            answer = server.chat(max_tokens=1, **{"long_name" + "x" * 100_000 + end: 1})
            assert answer.status_code == 200
    assert len([each for each in caplog.messages if "long_name" in each]) == 1
    assert max(map(len, fields_module._logged)) <= 100


def test_no_prompt_or_answer_is_in_the_log(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = server.complete("a secret prompt", max_tokens=8).json()
        server.complete("a secret prompt", max_tokens=-1)
    assert "a secret prompt" not in caplog.text
    assert answer["choices"][0]["text"] not in caplog.text


def test_a_body_that_says_it_is_too_long_is_413(server: Served) -> None:
    with serving(request_bytes=1000) as served:
        answer = post(served, "/v1/completions", b'{"prompt": "' + b"x" * 2000 + b'"}')
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert served.complete().status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\[{,\n\u00e9')),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=30,
)


def values(tree: object) -> int:
    """Texts, names included, lists and objects."""
    if isinstance(tree, dict):
        return 1 + len(tree) + sum(map(values, tree.values()))
    return 1 + sum(map(values, tree)) if isinstance(tree, list) else int(isinstance(tree, str))


@given(st.dictionaries(st.text(), JSON, min_size=1), st.booleans())
def test_values_are_counted_as_they_are_before_any_is_made(
    tree: dict[str, object], ascii_only: bool
) -> None:
    body = json.dumps({"prompt": "x", "own": tree, " " * 200: 0}, ensure_ascii=ascii_only).encode()
    count = values(json.loads(body))
    parse(body, CompletionRequest, most_values=count)
    with pytest.raises(ApiError, match=f"has {count} texts") as refused:
        parse(body, CompletionRequest, most_values=count - 1)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "field",
    [
        '"tools": [{"a": [' + ",".join(["[]"] * 60_000) + "]}]",
        '"zzz": {' + ",".join(f'"{number}": 0' for number in range(60_000)) + "}",
        '"logit_bias": {' + ",".join(f'"{number}": 0' for number in range(60_000)) + "}",
        '"stop": [' + ",".join(['""'] * 60_000) + "]",
        '"zzz": ' + "[" * 60_000,
        '"zzz": "' + '"' * 200_000,
    ],
    ids=["lists", "names", "biases", "texts", "deep", "quotes"],
)
def test_a_body_of_too_many_parts_is_413_and_names_the_flag(server: Served, field: str) -> None:
    answer = post(server, "/v1/completions", f'{{"prompt": "x", {field}}}'.encode())
    assert answer.status_code == 413
    assert "--request-values" in answer.json()["error"]["message"]
    assert server.complete(max_tokens=1).status_code == 200


def test_a_long_text_has_few_parts(server: Served) -> None:
    text = '\\ "quoted [text]", {and more} ' * 40_000
    answer = server.chat(text, max_tokens=1)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_of_unknown_length_that_becomes_too_long_is_413() -> None:
    with serving(request_bytes=1000) as served:
        answer = served.http.post("/v1/completions", content=iter([b"x" * 600] * 4))
        assert answer.status_code == 413
        assert served.complete().status_code == 200


def test_a_body_in_pieces_is_read_whole(server: Served) -> None:
    body = json.dumps({"prompt": "Hello", "seed": 1}).encode()
    pieces = (body[index : index + 7] for index in range(0, len(body), 7))
    answer = server.http.post("/v1/completions", content=pieces)
    assert answer.json()["choices"] == server.complete("Hello", seed=1).json()["choices"]


def test_too_many_messages_are_400() -> None:
    with serving(most_messages=3) as served:
        body = {"messages": [{"role": "user", "content": "x"}] * 4}
        answer = served.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert served.http.post("/v1/chat/completions", json={"messages": []}).status_code == 400


def test_messages_nested_without_end_are_400(server: Served) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": deep}]}]}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": [{}]}, "messages[0].role"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/responses", {}, "input"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}, {}]}, "messages[1].role"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_a_field_that_is_missing_is_named(
    server: Served, path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "missing_field")
    assert error["message"].startswith(f"{param} is missing")


@pytest.mark.parametrize("body", [b'{"prompt": [%s[5]]}', b'{"prompt": [%s{}]}'])
def test_a_body_of_many_lists_is_read_without_a_collection_of_garbage(body: bytes) -> None:
    collections: list[str] = []

    def collecting(phase: str, _: object) -> None:
        collections.append(phase)

    gc.callbacks.append(collecting)
    try:
        with suppress(ApiError):
            parse(body % (b"[5]," * 100_000), CompletionRequest)
        during = list(collections)
    finally:
        gc.callbacks.remove(collecting)
    assert gc.isenabled()
    assert len(during) <= 2  # the one that begins when collections are allowed again
