"""From a request of the Responses API to the chat that it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from farthing.serve.errors import ApiError
from farthing.serve.wire.chat import ChatMessage, ChatRequest
from farthing.serve.wire.common import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.serve.settings import Settings
    from farthing.serve.wire.responses import ResponseRequest

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")


def chat_of(request: ResponseRequest) -> tuple[ChatRequest, list[dict[str, Any]]]:
    """The request as a chat, and its messages as plain data. Raises `ApiError` 400."""
    refuse_stored(request)
    given = request.input
    messages: list[dict[str, Any]] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    reasoning = ""
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if item.get("type") == "reasoning":
            reasoning += _reasoning(item, where)
            continue
        _add(messages, item, where)
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    if not messages:
        raise _refusal("input", "has nothing but reasoning: send the messages around it, too")
    chat = ChatRequest(
        messages=[_message(each) for each in messages],
        model=request.model,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        max_draft_tokens=request.max_draft_tokens,
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_format=request.reasoning_format,
        include_reasoning=request.include_reasoning,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        response_format=_format(request),
        tools=None if request.tools is None else [_tool(each) for each in request.tools],
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        user=request.user,
        priority=request.priority,
        timeout=request.timeout,
    )
    return chat, messages


def refuse_stored(request: ResponseRequest) -> None:
    """Raises `ApiError` 400 where a response is to be kept, or one that was kept is to go on."""
    for name, wanted in (
        ("store", request.store),
        ("previous_response_id", request.previous_response_id),
    ):
        if wanted:
            raise ApiError(
                400,
                f"{name} is not supported, as this server keeps no responses: send the whole "
                "conversation as input items, and leave store out or set it to false",
                param=name,
                code="unsupported_parameter",
            )


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(
            {
                "role": _text(item, "role", where),
                "content": _content(item.get("content"), f"{where}.content"),
            }
        )
    elif kind == "function_call":
        call = {
            "id": _text(item, "call_id", where),
            "type": "function",
            "function": {
                "name": _text(item, "name", where),
                "arguments": _text(item, "arguments", where),
            },
        }
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":
            # A message and the calls after it, or several calls, are one turn of the model's.
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append(
            {
                "role": "tool",
                "tool_call_id": _text(item, "call_id", where),
                "content": _content(item.get("output"), f"{where}.output"),
            }
        )
    else:
        raise _refusal(
            f"{where}.type",
            f"{kind!r:.60} is no item that this server reads: send messages, reasoning, "
            "function_call and function_call_output",
        )


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    """What the model reasoned before the item that follows; nothing where it is not in clear."""
    content = item.get("content")
    return "" if content is None else _content(content, f"{where}.content")


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refusal(where, "must be a text or a list of parts")
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise _refusal(
                f"{where}[{number}].type",
                f"{kind!r:.60} is no part that this server reads: send input_text",
            )
        texts.append(_text(part, "text", f"{where}[{number}]"))
    return "\n".join(texts)


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _refusal(f"{where}.{name}", "must be a text")
    return value


def _message(message: Mapping[str, Any]) -> ChatMessage:
    try:
        return msgspec.convert(message, ChatMessage)
    except msgspec.ValidationError as error:
        raise _refusal("input", str(error)) from None


def _format(request: ResponseRequest) -> dict[str, Any] | None:
    """The `response_format` of the chat API, which wraps what is flat here."""
    form = None if request.text is None else request.text.format
    if form is None or form.get("type") != "json_schema":
        return form
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _refusal(
            "tools",
            f"a tool of type {tool.get('type')!r:.60} is not supported: send functions",
        )
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise _refusal(
            "tool_choice",
            "must be auto, none, required, or a function that is called by its name",
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def refuse_options(request: ResponseRequest, settings: Settings) -> None:
    """Raises `ApiError` 400 for more items than may be, and stream options without a stream."""
    if isinstance(request.input, list):
        check_count("input", len(request.input), settings, "most_messages", least=1)
    if request.stream_options is not None and not request.stream:
        raise _refusal("stream_options", "are for streams: set stream, or leave them out")


def _refusal(param: str, what: str) -> ApiError:
    return ApiError(400, f"{param} {what}", param=param, code="invalid_value")
