"""Tool calls and forms of answers over HTTP, with the clients that people have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from jsonschema import Draft202012Validator
from langchain_openai import ChatOpenAI

from engine.scripted import EOS, engine, rambling
from farthing.serve.structured import Forms
from farthing.serve.tools import ModelTools
from serve.server import MODEL, Served, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from farthing.serve.state import ServerState

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS},
}
CHAT: Any = [{"role": "user", "content": "Weather in Rome?"}]
ROME = '{"city": "Rome", "days": 2}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'


def equipped(state: ServerState) -> None:
    own, _ = state.ready()
    state.structured = Forms(own.prepare)
    state.tools = ModelTools(lambda: own.chat_template, own.prepare)


def answering(answer: Callable[[str], str]) -> Callable[[NDArray[np.int32]], int]:
    """A model that gives, byte by byte, what `answer` says to a prompt."""

    def script(prefix: NDArray[np.int32]) -> int:
        text = bytes(prefix[prefix < 256].astype(np.uint8))
        prompt, _, said = text.rpartition(b"assistant: ")
        following = [*answer(prompt.decode("utf-8", "replace")).encode(), EOS]
        return following[min(len(said), len(following) - 1)]

    return script


def says(prompt: str) -> str:
    if "<tool_response>\n" in prompt:
        return "It is sunny." if "sunny" in prompt else "I do not know."
    if "Twice" in prompt:
        return f"I look.\n{CALL}\n{CALL}"
    return CALL if "weather" in prompt else "No tools."


@pytest.fixture(scope="module")
def caller() -> Iterator[Served]:
    with serving(engine(answering(says)), prepare=equipped) as served:
        yield served


@pytest.fixture(scope="module")
def rambler() -> Iterator[Served]:
    def script(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        logits = rambling(prefix)
        logits[EOS] = 2
        return logits

    with serving(engine(script, total_blocks=256), prepare=equipped) as served:
        yield served


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_a_call_is_answered_and_the_answer_is_read(caller: Served) -> None:
    api = client(caller).chat.completions
    first = api.create(model=MODEL, messages=CHAT, tools=[WEATHER]).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    assert first.message.tool_calls is not None
    [call] = first.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", ROME)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    chat: Any = [*CHAT, first.message.to_dict(), answer]
    second = api.create(model=MODEL, messages=chat, tools=[WEATHER]).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", "It is sunny.")
    third = api.create(model=MODEL, messages=chat).choices[0]
    assert third.message.content == "It is sunny."


def test_calls_are_streamed_with_their_numbers_and_arguments_in_pieces(caller: Served) -> None:
    chat: Any = [{"role": "user", "content": "Twice"}]
    stream = client(caller).chat.completions.create(
        model=MODEL, messages=chat, tools=[WEATHER], stream=True
    )
    content, reasons = "", []
    calls: dict[int, dict[str, Any]] = {}
    pieces = 0
    for chunk in stream:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for part in choice.delta.tool_calls or ():
            call = calls.setdefault(part.index, {"id": part.id, "arguments": ""})
            assert part.function is not None
            call["name"] = part.function.name or call.get("name")
            call["arguments"] += part.function.arguments or ""
            assert part.id in (call["id"], None)
            pieces += 1
    assert content == "I look."
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    assert [(each["name"], each["arguments"]) for each in calls.values()] == [("weather", ROME)] * 2
    assert calls.keys() == {0, 1}
    assert calls[0]["id"] != calls[1]["id"]
    assert pieces > 4


def test_langchain_calls_tools(caller: Served) -> None:
    model = ChatOpenAI(base_url=f"{caller.url}/v1", api_key="none", model=MODEL)
    answer = model.bind_tools([WEATHER]).invoke("Weather in Rome?")
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", json.loads(ROME))


def test_a_model_is_told_of_no_tools_where_none_may_be_called(caller: Served) -> None:
    answer = client(caller).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        tools=[WEATHER],
        tool_choice="none",
    )
    assert answer.choices[0].message.content == "No tools."


def test_a_call_that_is_cut_off_ends_by_its_length(caller: Served) -> None:
    api = client(caller).chat.completions
    most = CALL.index("Rome") + 2
    for stream in (False, True):
        given = api.create(
            model=MODEL, messages=CHAT, tools=[WEATHER], max_tokens=most, stream=stream
        )
        last = list(given)[-1] if stream else given
        assert last.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_is_asked_for_is_made_whatever_the_model_would_say(
    rambler: Served, choice: Any
) -> None:
    answer = client(rambler).chat.completions.create(
        model=MODEL, messages=CHAT, tools=[WEATHER], tool_choice=choice, n=4, temperature=1.2,
        parallel_tool_calls=False,
    )  # fmt: skip
    for each in answer.choices:
        assert each.finish_reason == "tool_calls"
        assert each.message.tool_calls is not None
        [call] = each.message.tool_calls
        assert call.type == "function"
        Draft202012Validator(PARAMETERS).validate(json.loads(call.function.arguments))


def test_a_document_follows_the_schema_of_the_response_format(rambler: Served) -> None:
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "weather", "strict": True, "schema": PARAMETERS},
    }
    api = client(rambler).chat.completions
    answer = api.create(
        model=MODEL, messages=CHAT, response_format=form, n=4, temperature=1.2, seed=3
    )
    for each in answer.choices:
        assert each.message.content is not None
        Draft202012Validator(PARAMETERS).validate(json.loads(each.message.content))
        assert each.finish_reason == "stop"
    deltas = api.create(
        model=MODEL, messages=CHAT, response_format=form, temperature=1.2, seed=3, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == answer.choices[0].message.content


def test_completions_follow_an_expression_or_a_choice(rambler: Served) -> None:
    api = client(rambler).completions
    for form in ({"guided_regex": "[a-c]{5}"}, {"structured_outputs": {"regex": "[a-c]{5}"}}):
        text = api.create(model=MODEL, prompt="x", extra_body=form).choices[0].text
        assert len(text) == 5
        assert set(text) <= set("abc")
    choice = {"guided_choice": ["left", "right"]}
    answer = api.create(model=MODEL, prompt=["x", "y"], n=3, temperature=1.5, extra_body=choice)
    assert {each.text for each in answer.choices} <= {"left", "right"}


def test_what_cannot_be_followed_is_a_400_that_says_why(rambler: Served) -> None:
    api = client(rambler)
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "nonsense"}},
    }
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("nonsense", {"response_format": form}),
        ("text, json_object or json_schema", {"response_format": {"type": "xml"}}),
        ("unclosed group", {"guided_regex": "(a"}),
        ("tool_choice is required", {"tool_choice": "required"}),
        ("1 to 64 letters", {"tools": [{"type": "function", "function": {"name": "é"}}]}),
    ]
    for said, fields in wrong:
        with pytest.raises(openai.BadRequestError, match=said):
            api.chat.completions.create(model=MODEL, messages=CHAT, extra_body=fields)
    assert rambler.engine.idle


def test_a_constraint_that_other_fields_forbid_ends_its_answer_alone(rambler: Served) -> None:
    api = client(rambler).completions
    forbidden: Any = {str(ord(each)): -100 for each in "ab"}
    text = api.create(
        model=MODEL, prompt="x", logit_bias=forbidden, extra_body={"guided_choice": ["a", "b"]}
    ).choices[0].text  # fmt: skip
    assert text in ("a", "b")  # -100 makes them unlikely, and nothing else is allowed
