"""How models are told of tools: by their own template where it can, else in a system message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.scripted import tokenizer
from farthing.core import RequestError
from farthing.serve.tool_templates import CallFormat, ToolTemplate
from farthing.text.chat import ChatTemplate

TEMPLATES = Path(__file__).parents[1] / "data" / "text" / "templates"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Add one."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "2"},
]


def template(name: str) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), tokenizer())


def rendered(name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    own = template(name)
    using = ToolTemplate(own)
    return own.render(using.chat(messages, tools), tools if using.native else None)


@pytest.mark.parametrize(
    ("name", "native", "format_"),
    [
        ("qwen2.5", True, CallFormat(tagged=True)),
        ("llama3", True, CallFormat(tagged=False, arguments="parameters", several=False)),
        ("chatml", False, CallFormat()),
        ("gemma3", False, CallFormat()),
        ("qwen3", False, CallFormat()),  # this shortened one knows nothing of tools
        ("mistral", False, CallFormat()),  # nor does this one write calls
    ],
)
def test_what_a_template_can_do_is_found_out(name: str, native: bool, format_: CallFormat) -> None:
    using = ToolTemplate(template(name))
    assert (using.native, using.format) == (native, format_)


@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "chatml", "gemma3", "qwen3", "mistral"])
@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
@pytest.mark.parametrize("more", [[], [{"role": "user", "content": "And now?"}]])
def test_tools_calls_and_answers_reach_the_model(
    name: str, system: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    if name == "llama3" and more:
        more = [{"role": "assistant", "content": "2"}, *more]
    text = rendered(name, [*system, *HISTORY, *more], [TOOL])
    assert text.index('"add"') < text.index("Add one.") or name == "mistral"
    called = text.index('"name": "add"', text.index("Add one."))
    answer = text.index("2", called)
    assert '"a": 1' in text[called:answer]
    assert all(each["content"] in text for each in (*system, *more))
    if name != "llama3":
        assert text.index("<tool_call>", text.index("Add one.")) < called
        assert "<tool_response>\n2\n</tool_response>" in text


def test_without_tools_a_history_with_calls_is_still_written() -> None:
    text = rendered("gemma3", HISTORY, [])
    assert "<tools>" not in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<tool_response>\n2\n</tool_response>" in text


def test_a_chat_without_tools_or_calls_is_left_as_it_is() -> None:
    for name in ("gemma3", "qwen2.5"):
        chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        assert ToolTemplate(template(name)).chat(chat, []) == chat


def test_several_answers_become_one_message_where_roles_alternate() -> None:
    two = [
        {"role": "user", "content": "Add both."},
        {"role": "assistant", "content": "I do.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3"}]},
        {"role": "user", "content": "Thanks"},
    ]
    chat = ToolTemplate(template("gemma3")).chat(two, [])
    assert [each["role"] for each in chat] == ["user", "assistant", "user"]
    assert chat[1]["content"].startswith("I do.\n<tool_call>\n")
    assert chat[1]["content"].count("<tool_call>") == 2
    assert chat[2]["content"] == (
        "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>\nThanks"
    )


def test_a_template_that_knows_no_system_message_gets_the_tools_in_the_first_one() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}|{% endfor %}"
    )
    using = ToolTemplate(ChatTemplate(source, tokenizer()))
    [message] = using.chat([{"role": "user", "content": "Hi"}], [TOOL])
    assert message["role"] == "user"
    assert message["content"].startswith("You can call these functions.")
    assert message["content"].endswith("\n\nHi")


@pytest.mark.parametrize(
    "call", [{}, {"function": {"name": "add"}}, {"function": {"arguments": ""}}, 5]
)
def test_a_call_of_the_history_without_name_or_arguments_is_refused(call: Any) -> None:
    chat = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(RequestError, match="a name and arguments"):
        ToolTemplate(template("gemma3")).chat(chat, [])
