"""Reasoning before an answer: found by the model's template, split off, told apart to clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_openai import ChatOpenAI

from engine.scripted import EOS, VOCABULARY, saying, tokenizer
from farthing.backends.null import NullBackend
from farthing.engine.engine import Engine
from farthing.serve.reasoning import USUAL, ReasoningParser, Tags, reasoning_tokens, tags_of
from farthing.serve.structured import Forms
from farthing.serve.tools import ModelTools
from farthing.text.chat import ChatTemplate
from serve.events import choices, chunks
from serve.server import MODEL, Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from farthing.serve.state import ServerState

# As Qwen3's: a turn's reasoning is written between tags, and a variable does without.
QWEN = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ message.content }}<turn>{% endfor %}"
    "{% if add_generation_prompt %}assistant|"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# As DeepSeek's: the prompt opens the reasoning, and none of it is repeated.
DEEPSEEK = (
    "{% for message in messages %}{{ message.role }}: "
    "{{ message.content.split('</think>')[-1] }}<turn>{% endfor %}"
    "{% if add_generation_prompt %}assistant|<think>\n{% endif %}"
)
ANSWER = "<think>\nTwo and two.\nIt is four.\n</think>\n\nFour."
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def equipped(state: ServerState) -> None:
    own, _ = state.ready()
    state.structured = Forms(own.prepare)
    state.tools = ModelTools(lambda: own.chat_template, own.prepare)


def reasoning(answer: str, template: str = QWEN, **settings: Any) -> AbstractContextManager[Served]:
    """A server whose model says that to every prompt."""
    words = tokenizer()
    after = "\n" if template == DEEPSEEK else "|"
    engine = Engine(
        NullBackend(saying(answer, after=after), VOCABULARY), words, ChatTemplate(template, words)
    )
    return serving(engine, prepare=equipped, **settings)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Served]:
    with reasoning(ANSWER) as served:
        yield served


def split(pieces: list[str], *, begun: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(USUAL, begun=begun)
    parts = [*map(parser.push, pieces), parser.finish()]
    return "".join(each for each, _ in parts), "".join(each for _, each in parts)


@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        (ANSWER, False, ("Two and two.\nIt is four.", "Four.")),
        ("Why?\n</think>\nSo.", True, ("Why?", "So.")),
        ("<think>Why?</think>So.", True, ("Why?", "So.")),
        ("<think>\n\n</think>\n\nSo.", False, ("", "So.")),
        ("\n <think>never ends ", False, ("never ends", "")),
        ("cut off in its </thi", True, ("cut off in its </thi", "")),
        ("  plain <think>no</think>", False, ("", "  plain <think>no</think>")),
        ("<thinking> is text", False, ("", "<thinking> is text")),
        ("<thi", False, ("", "<thi")),
        ("<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
        ("", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_reasoning_is_what_stands_between_the_tags_at_the_beginning(
    text: str, begun: bool, expected: tuple[str, str]
) -> None:
    assert split([text], begun=begun) == expected
    assert split(list(text), begun=begun) == expected


PIECES = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "think>", "<", ">", "\n", " ", "a", "bc", " " * 40]
)


@given(st.lists(PIECES, max_size=12), st.booleans(), st.data())
def test_how_a_text_is_cut_makes_no_difference(
    parts: list[str], begun: bool, data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, begun=begun) == split([text], begun=begun)


@given(st.lists(PIECES, max_size=12))
def test_nothing_but_tags_and_white_space_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    reasoning, content = split([text])
    if not text.lstrip(" \n").startswith("<think>") or text.startswith(" " * 65):
        assert (reasoning, content) == ("", text)
        return
    said, closed, rest = text.lstrip().removeprefix("<think>").partition("</think>")
    assert reasoning.strip() == said.strip()
    assert content == (rest.lstrip() if closed else "")


def test_the_tags_are_found_by_trying_the_template() -> None:
    words = tokenizer()
    other = QWEN.replace("<think>", "[REASON]").replace("</think>", "[/REASON]")
    for source, expected in (
        (QWEN, USUAL),
        (DEEPSEEK, USUAL),
        (other, Tags("[REASON]", "[/REASON]")),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        ("{# think #}{{ messages[0].content }}", None),
        ("{{ raise_exception('no </think>') }}", USUAL),
        # A control token is in no decoded text.
        (QWEN.replace("<think>", "<turn>"), None),
    ):
        assert tags_of(ChatTemplate(source, words), words) == expected, source
    assert tags_of(None, words) is None


def test_tokens_of_reasoning_are_those_up_to_its_closing_tag() -> None:
    ids = list(b"<think>a</think>b")
    assert reasoning_tokens(ids, USUAL, tokenizer()) == len("<think>a</think>")
    assert reasoning_tokens(ids[:12], USUAL, tokenizer()) == 12
    assert reasoning_tokens([], USUAL, tokenizer()) == 0


def test_a_chat_has_reasoning_content_beside_its_content(thinker: Served) -> None:
    answer = thinker.chat().json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "Two and two.\nIt is four."
    assert message["content"] == "Four."
    assert answer["choices"][0]["finish_reason"] == "stop"
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(ANSWER) - len("\n\nFour.")}


def test_a_stream_sends_reasoning_first_and_counts_it(thinker: Served) -> None:
    answer = thinker.chat(stream=True, stream_options={"include_usage": True})
    deltas = [each["delta"] for each in choices(answer.text)]
    kinds = [name for each in deltas for name in ("reasoning_content", "content") if each.get(name)]
    assert kinds == sorted(kinds, reverse=True)
    assert deltas[0]["role"] == "assistant"
    told = "".join(each.get("reasoning_content", "") for each in deltas)
    assert told == "Two and two.\nIt is four."
    assert "".join(each.get("content", "") for each in deltas) == "Four."
    usage = chunks(answer.text)[-1]["usage"]
    whole = thinker.chat().json()["usage"]
    assert usage["completion_tokens_details"] == whole["completion_tokens_details"]


def test_a_prompt_that_opens_the_reasoning_has_an_answer_that_begins_in_it() -> None:
    with reasoning("Two and two. </think> Four.", DEEPSEEK) as served:
        message = served.chat().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Two and two.", "Four.")
        cut = served.chat(max_tokens=5).json()["choices"][0]
        assert cut["finish_reason"] == "length"
        assert (cut["message"]["reasoning_content"], cut["message"]["content"]) == ("Two a", "")


def test_a_template_told_not_to_think_has_an_answer_without_reasoning() -> None:
    words = tokenizer()
    script = saying("Four.", after="\n")
    engine = Engine(NullBackend(script, VOCABULARY), words, ChatTemplate(QWEN, words))
    with serving(engine) as served:
        answer = served.chat(chat_template_kwargs={"enable_thinking": False}).json()
        message = answer["choices"][0]["message"]
        assert message["content"] == "Four."
        assert "reasoning_content" not in message
        assert "completion_tokens_details" not in answer["usage"]


def read(served: Served, **fields: Any) -> tuple[int, str]:
    """How many tokens a chat's prompt has, and a response's; whose effort is the same."""
    chat = served.chat(max_tokens=1, **fields)
    effort = fields.get("reasoning_effort")
    asked = {"model": MODEL, "input": "Hi", "max_output_tokens": 1, "reasoning": {"effort": effort}}
    response = served.http.post("/v1/responses", json=asked)
    assert chat.status_code == response.status_code == 200, (chat.text, response.text)
    assert response.json()["reasoning"]["effort"] == effort
    tokens: int = chat.json()["usage"]["prompt_tokens"]
    return tokens, response.json()["usage"]["input_tokens"]


def test_an_effort_reaches_the_switch_that_a_template_has() -> None:
    prompt = "{% for m in messages %}{{ m.content }}{% endfor %}"
    levels = (
        prompt + "{% if reasoning_effort is defined %}Effort: {{ reasoning_effort }}{% endif %}|"
    )
    switch = prompt + "{% set on = thinking | default(false) %}{{ 'think' * 2 if on }}|"
    usual = {}
    for template in (QWEN, levels, switch):
        with reasoning(ANSWER, template) as served:
            usual[template] = read(served)
            (plain, _), (none, answered) = usual[template], read(served, reasoning_effort="none")
            low, high = (read(served, reasoning_effort=each)[0] for each in ("low", "high"))
            assert none - plain == answered - usual[template][1]
            if template == QWEN:
                assert none > plain == low == high
            elif template == levels:
                counted = [len("Effort: " + each) for each in ("none", "low", "high")]
                assert [none - plain, low - plain, high - plain] == counted
            else:
                assert none == plain == low - len("thinkthink") == high - len("thinkthink")


def test_what_a_template_is_given_by_name_wins_over_an_effort() -> None:
    with reasoning(ANSWER) as served:
        variables = {"enable_thinking": True}
        answer = served.chat(reasoning_effort="none", chat_template_kwargs=variables)
        assert answer.json()["choices"][0]["message"]["reasoning_content"]


@pytest.mark.parametrize(
    ("template", "efforts"),
    [(DEEPSEEK, ["none", "low", "high"]), ("{{ messages[0].content }}|", ["minimal", "xhigh"])],
    ids=["always reasons", "never reasons"],
)
def test_an_effort_that_a_model_has_no_switch_for_is_400_with_the_reason(
    template: str, efforts: list[str]
) -> None:
    with reasoning(ANSWER, template) as served:
        for effort in efforts:
            chat = served.chat(reasoning_effort=effort)
            asked = {"model": MODEL, "input": "Hi", "reasoning": {"effort": effort}}
            response = served.http.post("/v1/responses", json=asked)
            for answer, param in ((chat, "reasoning_effort"), (response, "reasoning.effort")):
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, param)
                assert error["message"].startswith(param)
                assert "no switch for reasoning" in error["message"]
    assert ("none" in efforts) == (template == DEEPSEEK)


def test_no_effort_is_what_a_model_that_does_not_reason_makes_anyway() -> None:
    with reasoning(ANSWER, "{{ messages[0].content }}|") as served:
        assert read(served, reasoning_effort="none") == read(served)


def test_reasoning_is_left_in_the_text_where_that_is_asked_for(thinker: Served) -> None:
    message = thinker.chat(reasoning_format="none").json()["choices"][0]["message"]
    assert message["content"] == ANSWER
    assert "reasoning_content" not in message
    with reasoning(ANSWER, reasoning_format="none") as served:
        message = served.chat().json()["choices"][0]["message"]
        assert (message["content"], "reasoning_content" in message) == (ANSWER, False)
    for wrong in ("deepseek-legacy", 5):
        answer = thinker.chat(reasoning_format=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "reasoning_format"


def test_reasoning_is_not_sent_where_it_is_not_wanted(thinker: Served) -> None:
    for stream in (False, True):
        answer = thinker.chat(include_reasoning=False, stream=stream)
        assert "Two" not in answer.text
    message = thinker.chat(include_reasoning=False).json()["choices"][0]["message"]
    assert message["content"] == "Four."


def test_a_model_that_does_not_reason_keeps_tags_in_its_text() -> None:
    plain = QWEN.replace("<think>", "").replace("</think>", "")
    with reasoning(ANSWER, plain) as served:
        message = served.chat().json()["choices"][0]["message"]
        assert (message["content"], "reasoning_content" in message) == (ANSWER, False)


def test_calls_come_after_reasoning_and_tags_in_it_are_none() -> None:
    with reasoning(f"<think>I could {CALL} now.</think>\n{CALL}") as served:
        choice = served.chat(tools=[TOOL]).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["reasoning_content"] == f"I could {CALL} now."
        assert len(choice["message"]["tool_calls"]) == 1
        deltas = [each["delta"] for each in choices(served.chat(tools=[TOOL], stream=True).text)]
        calls = [each for each in deltas if "tool_calls" in each]
        assert {call["index"] for each in calls for call in each["tool_calls"]} == {0}
        assert "".join(each.get("content", "") for each in deltas) == ""


def test_an_answer_of_a_form_is_that_from_its_first_token() -> None:
    form = {"structured_outputs": {"choice": ["yes", "no"]}}
    with reasoning("yes", DEEPSEEK) as served:
        message = served.chat(**form).json()["choices"][0]["message"]
        assert (message["content"], "reasoning_content" in message) == ("yes", False)


def test_the_reasoning_of_earlier_turns_reaches_the_template(thinker: Served) -> None:
    chat = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2", "reasoning_content": "because"},
        {"role": "user", "content": "3"},
    ]
    tokens = thinker.http.post("/tokenize", json={"messages": chat}).json()["tokens"]
    assert b"assistant: <think>\nbecause\n</think>\n\n2" in bytes(t for t in tokens if t < EOS - 1)


def test_openai_and_langchain_read_it(thinker: Served) -> None:
    client = openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0)
    chat: Any = [{"role": "user", "content": "Hello"}]
    message = client.chat.completions.create(model=MODEL, messages=chat).choices[0].message
    assert message.content == "Four."
    assert getattr(message, "reasoning_content", None) == "Two and two.\nIt is four."
    model = ChatOpenAI(base_url=f"{thinker.url}/v1", api_key="none", model=MODEL)
    assert model.invoke("Hello").content == "Four."


def test_a_response_has_an_item_of_reasoning_before_its_message(thinker: Served) -> None:
    client = openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0)
    whole = client.responses.create(model=MODEL, input="Hello", store=False)
    assert [each.type for each in whole.output] == ["reasoning", "message"]
    assert whole.output_text == "Four."
    [item, _] = whole.output
    assert item.type == "reasoning"
    assert item.content is not None
    assert [each.text for each in item.content] == ["Two and two.\nIt is four."]
    assert whole.usage is not None
    reasoned = whole.usage.output_tokens_details.reasoning_tokens
    assert 0 < reasoned < whole.usage.output_tokens

    told, kinds = "", []
    for event in client.responses.create(model=MODEL, input="Hello", stream=True, store=False):
        kinds.append(event.type)
        if event.type == "response.reasoning_text.delta":
            told += event.delta
        if event.type == "response.completed":
            assert [each.type for each in event.response.output] == ["reasoning", "message"]
    assert told == "Two and two.\nIt is four."
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    again: Any = [
        {"role": "user", "content": "Hello"},
        *[json.loads(each.to_json()) for each in whole.output],
        {"role": "user", "content": "And now?"},
    ]
    assert client.responses.create(model=MODEL, input=again, store=False).output_text == "Four."


def test_a_response_takes_what_a_chat_takes_of_templates_and_guessing(thinker: Served) -> None:
    fields = {"model": MODEL, "input": "Hello"}
    for more in (
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"max_draft_tokens": 0},
        {"reasoning_format": "none"},
        {"include_reasoning": False},
        {"include": ["reasoning.encrypted_content"]},
    ):
        answer = thinker.http.post("/v1/responses", json={**fields, **more})
        assert answer.status_code == 200, answer.text
        plain = more in ({"reasoning_format": "none"}, {"include_reasoning": False})
        assert len(answer.json()["output"]) == (1 if plain else 2)
    wrong = thinker.http.post("/v1/responses", json={**fields, "max_draft_tokens": -1})
    assert wrong.json()["error"]["param"] == "max_draft_tokens"
