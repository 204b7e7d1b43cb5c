"""A chat becomes the string its model was trained on, and then token ids.

The model's own template (jinja2) writes the string. What people wrote into the chat stays plain
text: before the template sees it, the text of every control token in it is broken up by a character
that no text contains, which vanishes when the string is read as tokens. A forged `<|im_end|>` in a
message thus cannot end the message. That is sound for every template that writes its control tokens
whole, as all in use do; a template that glued one together from a message's text and its own could
be tricked, and the caller must not let strangers choose roles or template variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.files.gguf import GGUFFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jinja2 import Template

    from farthing.files.checkpoint import Checkpoint
    from farthing.text.sandbox import ChatEnvironment
    from farthing.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARACTERS = 1 << 20
_MAX_DEPTH = 64
_SEPARATORS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters: Unicode reserves them for use inside a program, never for text."""


class ChatTemplate:
    """The template of one model, compiled when first used.

    `source` is jinja2 text; `tool_source`, where a model has it, is used for chats with tools.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, tool_source: str | None = None) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self.tool_source = tool_source
        self._compiled: dict[str, Template] = {}
        self._variables: frozenset[str] | None = None

    def variables(self) -> frozenset[str]:
        """The names of the variables that it reads, such as `messages` and `enable_thinking`.

        Raises `RequestError` where the template is not one.
        """
        if self._variables is None:
            sources = [self.source] if self.tool_source is None else [self.source, self.tool_source]
            read: set[str] = set()
            for source in sources:
                with _environment_for(source) as environment:
                    read |= environment.variables(source)
            self._variables = frozenset(read)
        return self._variables

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **extra: object,
    ) -> str:
        """The string of a chat, as transformers' `apply_chat_template` writes it.

        Each message has a `role` and usually a `content`, a string or a list of
        `{"type": "text", "text": ...}` parts, which are joined by line breaks. `extra` are further
        variables of the template. `add_generation_prompt` ends with the beginning of an answer.
        Raises `RequestError` when the chat is malformed, or the template refuses it or fails.
        """
        chat = [_plain_message(message, number) for number, message in enumerate(messages)]
        return self._render(chat, _plain(tools, "tools"), add_generation_prompt, extra)

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        most_tokens: int | None = None,
        **extra: object,
    ) -> list[int]:
        """The token ids of a chat; arguments and errors as for `render`, and `Tokenizer.encode`.

        The template's control tokens are tokens, those in messages and tools are plain text. There
        is one beginning-of-sequence token where the model wants one, whoever writes it.
        """
        chat: object = [_plain_message(message, number) for number, message in enumerate(messages)]
        plain_tools = _plain(tools, "tools")
        separator = _unused_separator([chat, plain_tools, _plain(extra, "template variables")])

        def break_up(text: str) -> str:
            return self._tokenizer.break_up_special_tokens(text, separator)

        text = self._render(
            _map_strings(chat, break_up),
            _map_strings(plain_tools, break_up),
            add_generation_prompt,
            extra,
        )
        return self._tokenizer.encode(
            text, parse_special=True, separator=separator, most_tokens=most_tokens
        )

    def _render(
        self, chat: object, tools: object, add_generation_prompt: bool, extra: Mapping[str, object]
    ) -> str:
        variables = {
            **self._tokenizer.named_tokens,
            **{name: _plain(value, name) for name, value in extra.items()},
            "messages": chat,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        source = self.tool_source if tools and self.tool_source is not None else self.source
        with _environment_for(source) as environment:
            if source not in self._compiled:
                self._compiled[source] = environment.compile_source(source)
            characters = sum(map(len, _strings(variables)))
            return environment.render(self._compiled[source], variables, characters)


@cache
def _environment() -> ChatEnvironment:
    from farthing.text.sandbox import ChatEnvironment  # a completion needs no jinja2

    return ChatEnvironment()


@contextmanager
def _environment_for(source: str) -> Iterator[ChatEnvironment]:
    """What compiles that template. Its errors, and a template too long, become `RequestError`s."""
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise RequestError(
            f"the model's chat template has {len(source)} characters, and at most "
            f"{MAX_TEMPLATE_CHARACTERS} are read: send a plain completion"
        )
    environment = _environment()
    try:
        yield environment
    except environment.template_error as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else ""
        raise RequestError(
            f"the model's chat template{place} does not accept this chat: {error!s:.500}"
        ) from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error!s:.200}"
        raise RequestError(
            f"the model's chat template failed on this chat ({problem}): give the messages in "
            "the form the model's card shows, or send a plain completion"
        ) from error


def load_chat_template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template that a checkpoint carries; None for a model that was not made to chat."""
    if isinstance(checkpoint, GGUFFile):
        source = checkpoint.metadata.get("tokenizer.chat_template")
        tool_source = checkpoint.metadata.get("tokenizer.chat_template.tool_use")
    else:
        source = checkpoint.chat_template
        several = checkpoint.tokenizer_config.get("chat_template")
        named = several if isinstance(several, list) else []
        tool_source = next(
            (
                each.get("template")
                for each in named
                if isinstance(each, dict) and each.get("name") == "tool_use"
            ),
            None,
        )
    if not isinstance(source, str) or not source:
        return None
    return ChatTemplate(source, tokenizer, tool_source if isinstance(tool_source, str) else None)


def _plain_message(message: object, number: int) -> dict[str, object]:
    where = f"message {number}"
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where} is {message!r:.40} and must be an object with role and content"
        )
    plain = {str(key): _plain(value, where) for key, value in message.items()}
    role = plain.get("role")
    if not isinstance(role, str) or not role.replace("_", "a").isalnum():
        raise RequestError(
            f"{where} has the role {role!r:.40}, which must be a word: user, assistant, ..."
        )
    if isinstance(plain.get("content"), list):
        plain["content"] = joined_parts(plain["content"], where)
    if isinstance(calls := plain.get("tool_calls"), list):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return plain


def joined_parts(parts: object, where: str) -> str:
    """The text of a message's content parts, joined by line breaks; `where` is what to blame.

    Raises `RequestError` unless each is `{"type": "text", "text": ...}`.
    """
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else []:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError(
                f'{where} has a content part that is not {{"type": "text", "text": ...}}: farthing '
                "reads text only"
            )
        texts.append(text)
    return "\n".join(texts)


def _with_parsed_arguments(call: object) -> object:
    """A tool call with its arguments as an object, which is what chat templates are written for.

    The OpenAI API has them as JSON text.
    """
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = dict(call["function"])
    try:
        arguments = json.loads(function.get("arguments", ""))
    except (TypeError, ValueError, RecursionError):
        return call
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}


def _plain(value: object, where: str, depth: int = 0) -> object:
    """A copy made of JSON's types only: a template must meet no Python object."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > _MAX_DEPTH:
        raise RequestError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(each, where, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, where, depth + 1) for each in value]
    raise RequestError(f"{where} holds a {type(value).__name__}, which is not JSON")


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    """The value with its texts changed, but for names: keys and roles, which templates compare."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key if key.isidentifier() else change(key): (
                each if key == "role" else _map_strings(each, change)
            )
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_map_strings(each, change) for each in value]
    return value


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _unused_separator(value: object) -> str:
    used = {character for text in _strings(value) for character in _SEPARATORS if character in text}
    for separator in _SEPARATORS:
        if separator not in used:
            return separator
    raise RequestError(
        "the chat holds all of U+FDD0 to U+FDEF, which are no characters: remove one of them"
    )
