"""How a model is told of tools, and how it calls them: by its own chat template where that can.

What a template can do is found by trying: it is given a tool, a call and an answer, and what it
writes is looked at. A template that does not know tools gets them in a system message, in the way
of Hermes 2 Pro, which many models have seen in training; calls and answers in the chat's history
are then written in that way too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farthing.core import RequestError
from farthing.serve.tool_parser import CLOSING, OPENING
from farthing.text.chat import joined_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.text.chat import ChatTemplate

    Message = Mapping[str, Any]

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_name",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_field": {"type": "string", "description": "probe"}},
            "required": ["probe_field"],
        },
    },
}
_QUESTION = {"role": "user", "content": "probe_question"}

_PROMPT = """\
You can call these functions. Each line describes one:
<tools>
{tools}
</tools>
To call a function, answer with nothing but its name and arguments, as JSON between tags:
<tool_call>
{{"name": "function_name", "arguments": {{"argument_name": "value"}}}}
</tool_call>
What it returns is then given to you between <tool_response> tags."""


@dataclass(frozen=True)
class CallFormat:
    """How calls are written: between tags or bare, the arguments under which name, and how many."""

    tagged: bool = True
    arguments: str = "arguments"
    several: bool = True

    def written(self, name: str, arguments: str) -> str:
        """A call of a function with arguments in JSON."""
        call = f'{{"name": {json.dumps(name)}, "{self.arguments}": {arguments}}}'
        return f"{OPENING}\n{call}\n{CLOSING}" if self.tagged else call


class ToolTemplate:
    """How one model's template is used for chats with tools. `format` is how the model calls them.

    `native`: the template writes tools, calls and answers by itself.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        format_ = self._own_format()
        self.native = format_ is not None
        self.format = format_ or CallFormat()
        self._has_system = "probe_system" in self._rendered(
            [{"role": "system", "content": "probe_system"}, _QUESTION]
        )

    def chat(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the template can write them, with the tools where it does not."""
        if self.native:
            return [dict(message) for message in messages]
        chat: list[dict[str, Any]] = []
        answered = False
        for number, message in enumerate(messages):
            plain = self._plain(message, f"message {number}")
            if answered and plain["role"] == "user":  # some templates want the roles to alternate
                chat[-1]["content"] += "\n" + plain["content"]
            else:
                chat.append(plain)
            answered = message["role"] == "tool" or (answered and plain["role"] == "user")
        return self._instructed(chat, tools) if tools else chat

    def _plain(self, message: Message, where: str) -> dict[str, Any]:
        """A message without calls and answers, which are written into its text."""
        content = message.get("content") or ""
        text = content if isinstance(content, str) else joined_parts(content, where)
        if message["role"] == "tool":
            return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
        calls = [_written(self.format, call) for call in message.get("tool_calls") or ()]
        plain = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**plain, "content": "\n".join([text, *calls] if text else calls or [text])}

    def _instructed(
        self, chat: list[dict[str, Any]], tools: Sequence[Message]
    ) -> list[dict[str, Any]]:
        prompt = _PROMPT.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))
        if self._has_system and chat[0]["role"] != "system":
            return [{"role": "system", "content": prompt}, *chat]
        first = chat[0]
        order = (first["content"], prompt) if self._has_system else (prompt, first["content"])
        return [{**first, "content": "\n\n".join(order)}, *chat[1:]]

    def _own_format(self) -> CallFormat | None:
        """How the template writes calls; None where it does not write all there is."""
        if "probe_field" not in self._rendered([_QUESTION], [_TOOL]):
            return None
        written = self._rendered(_history(1), [_TOOL])
        if "probe_answer" not in written or not (found := _CALL.search(written)):
            return None
        return CallFormat(
            tagged=OPENING in found["before"],
            arguments=found["arguments"],
            several="probe_answer" in self._rendered(_history(2), [_TOOL]),
        )

    def _rendered(self, messages: list[Message], tools: list[Message] | None = None) -> str:
        try:
            return self._template.render(messages, tools)
        except RequestError:
            return ""


# Between the question and the answer; what describes the tool stands before one or after the other.
_CALL = re.compile(
    r"probe_question(?P<before>.*?)\"name\": *\"probe_name\", *"
    r"\"(?P<arguments>arguments|parameters)\": *\{\"probe_field\".*probe_answer",
    re.DOTALL,
)


def _history(calls: int) -> list[Message]:
    """A chat with so many calls; the ids have the length that Mistral's templates insist on."""
    function = {"name": "probe_name", "arguments": '{"probe_field": "probe_value"}'}
    made = [
        {"id": f"probe{number:04}", "type": "function", "function": function}
        for number in range(calls)
    ]
    answers = [
        {
            "role": "tool",
            "tool_call_id": each["id"],
            "name": "probe_name",
            "content": "probe_answer",
        }
        for each in made
    ]
    return [_QUESTION, {"role": "assistant", "content": "", "tool_calls": made}, *answers]


def _written(format_: CallFormat, call: Any) -> str:
    """A call of the history, as the model would have written it."""
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        raise RequestError(
            "a tool call in the chat's history needs a function with a name and arguments"
        )
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return format_.written(name, text)
