"""POST /v1/responses: text, forms and function calls, in one piece and as events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pydantic
import pytest

from engine.scripted import engine, rambling, saying
from farthing.core import SamplingParams
from serve.server import MODEL, Served, serving
from serve.test_chat_tools import ROME, answering, equipped, says

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    import numpy as np
    from numpy.typing import NDArray

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells it.",
    "parameters": PARAMETERS,
    "strict": True,
}
ASKED: Any = [{"role": "user", "content": "Weather in Rome?"}]


@pytest.fixture(scope="module")
def caller() -> Iterator[Served]:
    with serving(engine(answering(says)), prepare=equipped) as served:
        yield served


def respond(served: Served, given: Any = "Hello", **fields: Any) -> httpx.Response:
    return served.http.post("/v1/responses", json={"model": MODEL, "input": given, **fields})


def body(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each of which names itself twice; none says [DONE]."""
    found = []
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        first, second = block.split("\n")
        data = json.loads(second.removeprefix("data: "))
        assert first == f"event: {data['type']}"
        found.append(data)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def text_of(response: dict[str, Any]) -> str:
    [message] = response["output"]
    [part] = message["content"]
    text: str = part["text"]
    return text


def test_a_text_is_answered_with_all_that_a_response_has(server: Served) -> None:
    found = body(respond(server, max_output_tokens=8, temperature=0, metadata={"a": "b"}))
    own = server.engine.generate(
        [{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=8)
    )
    [message] = found["output"]
    assert message["id"].startswith("msg_")
    assert {**message, "id": ""} == {
        "type": "message",
        "id": "",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": own.text, "annotations": [], "logprobs": []}],
    }
    assert found["id"].startswith("resp_")
    assert found["usage"].pop("input_tokens_details").keys() == {"cached_tokens"}
    assert found["usage"] == {
        "input_tokens": own.usage.prompt_tokens,
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": own.usage.total_tokens,
    }
    expected = {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "error": None,
        "instructions": None,
        "max_output_tokens": 8,
        "model": MODEL,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": 0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "metadata": {"a": "b"},
    }
    assert {name: found[name] for name in expected} == expected


def test_an_answer_that_ends_by_itself_is_completed() -> None:
    with serving(engine(saying(" Done.", after=":"))) as served:
        found = body(respond(served))
        assert (found["status"], found["incomplete_details"]) == ("completed", None)
        assert text_of(found).strip() == "Done."


def test_items_are_a_chat_and_instructions_its_system_message(server: Served) -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "One"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Three"}]},
    ]
    chat: list[dict[str, str]] = [
        {"role": "system", "content": "Always."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    found = body(respond(server, items, instructions="Always.", max_output_tokens=6, temperature=0))
    own = server.engine.generate(chat, SamplingParams(max_tokens=6))
    assert text_of(found) == own.text
    assert found["usage"]["input_tokens"] == own.usage.prompt_tokens


def test_it_samples_as_a_chat_does(server: Served) -> None:
    fields = {"temperature": 0.9, "top_p": 0.8, "seed": 11}
    chat = server.chat(max_tokens=20, **fields).json()["choices"][0]["message"]["content"]
    assert text_of(body(respond(server, max_output_tokens=20, **fields))) == chat


def test_a_stream_is_the_sequence_of_events_that_clients_expect(server: Served) -> None:
    fields: dict[str, Any] = {"max_output_tokens": 5, "seed": 3}
    whole = body(respond(server, **fields))
    answer = respond(server, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    kinds = [each["type"] for each in found]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(each["delta"] for each in found if each["type"].endswith("text.delta"))
    assert text == text_of(whole) == found[-4]["text"] == found[-3]["part"]["text"]
    assert found[0]["response"]["status"] == "in_progress"
    assert found[0]["response"]["output"] == found[2]["item"]["content"] == []
    assert found[3]["part"]["text"] == ""
    last = found[-1]["response"]
    assert last["output"] == [found[-2]["item"]]
    assert last["id"] == found[0]["response"]["id"]
    assert last["usage"]["output_tokens"] == 5
    assert {each["item_id"] for each in found if "item_id" in each} == {last["output"][0]["id"]}


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    with serving(engine(saying("", after=":"))) as served:
        # The first token after the colon ends it.
        assert text_of(body(respond(served))) == ""
        kinds = [each["type"] for each in events(respond(served, stream=True).text)]
        assert "response.output_item.added" in kinds
        assert kinds[-1] == "response.completed"


def test_openais_client_creates_and_streams(server: Served) -> None:
    api = client(server).responses
    whole = api.create(model=MODEL, input="Hello", max_output_tokens=9, extra_body={"seed": 1})
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 9
    parts = ""
    for event in api.create(
        model=MODEL, input="Hello", max_output_tokens=9, stream=True, extra_body={"seed": 1}
    ):
        if event.type == "response.output_text.delta":
            parts += event.delta
    assert parts == whole.output_text
    with api.stream(
        model=MODEL, input="Hello", max_output_tokens=9, extra_body={"seed": 1}
    ) as stream:
        kinds = [event.type for event in stream]
        if "response.incomplete" not in kinds:
            stream.get_final_response()
    assert kinds[0] == "response.created"


def test_openais_client_has_the_final_response_of_a_stream() -> None:
    with serving(engine(saying(" Done.", after=":"))) as served:
        with client(served).responses.stream(model=MODEL, input="Hello") as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        assert final.output_text.strip() == "Done."
        assert final.status == "completed"


def test_a_function_is_called_and_its_output_read(caller: Served) -> None:
    api = client(caller).responses
    first = api.create(model=MODEL, input=ASKED, tools=[WEATHER])
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("weather", ROME, "completed")
    assert first.status == "completed"
    given = [
        *ASKED,
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = api.create(model=MODEL, input=given, tools=[WEATHER])
    assert second.output_text == "It is sunny."


def arguments_of(item: dict[str, Any], found: list[dict[str, Any]]) -> list[str]:
    """The pieces in which a call's arguments came."""
    kind = "response.function_call_arguments.delta"
    return [
        each["delta"] for each in found if each["type"] == kind and each["item_id"] == item["id"]
    ]


def test_arguments_come_as_they_are_written(caller: Served) -> None:
    def pieces() -> int:
        given = [{"role": "user", "content": "Twice"}]
        found = events(respond(caller, given, tools=[WEATHER], stream=True).text)
        added = [each["item"] for each in found if each["type"] == "response.output_item.added"]
        return min(len(arguments_of(item, found)) for item in added[1:])

    # What is written while its reader is slow comes in one piece.
    assert any(pieces() > 1 for _ in range(20))


def test_calls_are_streamed_as_items_of_their_own(caller: Served) -> None:
    given = [{"role": "user", "content": "Twice"}]
    found = events(respond(caller, given, tools=[WEATHER], stream=True).text)
    added = [each["item"] for each in found if each["type"] == "response.output_item.added"]
    done = [each["item"] for each in found if each["type"] == "response.output_item.done"]
    assert [each["type"] for each in added] == ["message", "function_call", "function_call"]
    assert [each["id"] for each in added] == [each["id"] for each in done]
    assert [each["arguments"] for each in done[1:]] == [ROME, ROME]
    for item in done[1:]:
        assert "".join(arguments_of(item, found)) == ROME
    finished = [each for each in found if each["type"] == "response.function_call_arguments.done"]
    assert [(each["name"], each["arguments"]) for each in finished] == [("weather", ROME)] * 2
    assert done[1]["call_id"] != done[2]["call_id"]
    assert found[-1]["response"]["output"] == done
    assert (
        body(respond(caller, given, tools=[WEATHER]))["output"][0]["content"]
        == (done[0]["content"])
    )


def test_openais_client_streams_calls(caller: Served) -> None:
    with client(caller).responses.stream(model=MODEL, input=ASKED, tools=[WEATHER]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    [call] = final.output
    assert call.type == "function_call"
    assert call.arguments == ROME


def test_a_function_that_is_named_is_called(caller: Served) -> None:
    named = {"type": "function", "name": "weather"}
    found = body(respond(caller, tools=[WEATHER], tool_choice=named, max_output_tokens=60))
    assert found["tool_choice"] == named
    assert found["output"][0]["type"] == "function_call"


def test_the_text_has_the_form_of_a_schema() -> None:
    class Answer(pydantic.BaseModel):
        yes: bool

    with serving(prepare=equipped) as served:
        answer = client(served).responses.parse(
            model=MODEL, input="Is it?", text_format=Answer, temperature=0
        )
        assert isinstance(answer.output_parsed, Answer)
        closed = {**Answer.model_json_schema(), "additionalProperties": False}
        schema = {"type": "json_schema", "name": "answer", "schema": closed, "strict": True}
        found = body(respond(served, text={"format": schema}))
        assert json.loads(text_of(found)).keys() == {"yes"}
        assert found["text"] == {"format": schema}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**30}, None),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"role": "nobody", "content": "a"}]}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, None),
        ({"input": [{"type": "item_reference"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": 5}]}, "input[0].call_id"),
        ({"input": [5]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"stream_options": {}}, "stream_options"),
        ({"metadata": {"a": 1}}, None),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_400_and_names_the_field(
    server: Served, fields: dict[str, Any], param: str | None
) -> None:
    answer = respond(server, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    if param is not None:
        assert error["param"] == param
    assert "messages[" not in error["message"]


def test_a_kept_response_is_explained(server: Served) -> None:
    message = respond(server, previous_response_id="resp_1").json()["error"]["message"]
    assert "send the whole conversation" in message


def test_what_would_happen_anyway_is_accepted(server: Served) -> None:
    answer = respond(
        server,
        max_output_tokens=1,
        store=False,
        truncation="disabled",
        reasoning={"effort": None, "summary": "auto"},
        include=[],
        background=False,
        text={"format": {"type": "text"}, "verbosity": "medium"},
        prompt_cache_key="key",
        service_tier="auto",
    )
    assert answer.status_code == 200, answer.text


def test_an_error_in_mid_stream_is_an_event() -> None:
    def script(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        if len(prefix) > 30:
            raise RuntimeError("out of luck")
        return rambling(prefix)

    with serving(engine(script)) as served:
        first, *_, last = events(respond(served, "x", stream=True).text)
        assert first["type"] == "response.created"
        assert last["type"] == "error"
        assert last["code"] == last["error"]["code"] == "engine_error"
        assert "out of luck" in last["message"]
        stream = client(served).responses.create(model=MODEL, input="x", stream=True)
        with pytest.raises(openai.APIError, match="out of luck"):
            list(stream)
        served.wait_idle()


def test_a_client_that_leaves_frees_its_blocks(server: Served) -> None:
    fields = {"model": MODEL, "input": "Hello", "stream": True}
    with server.http.stream("POST", "/v1/responses", json=fields) as answer:
        assert next(answer.iter_lines()) == "event: response.created"
    server.wait_idle()
