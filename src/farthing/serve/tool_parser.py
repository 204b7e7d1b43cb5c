"""Takes the tool calls out of an answer while it is written. A pure state machine over its text.

Two ways of writing calls are known. Tagged (Hermes, Qwen), anywhere in the text:

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>

Bare (Llama 3, Mistral): the text begins with such an object, or a list of them. A call begins to be
passed on when its name is known and its arguments begin; what turns out before that to be no call
is text like any other. Held back is only what may still become a call, its tag, or the white space
before it. How the text is cut into pieces makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.serve.call_object import CallObject, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

OPENING, CLOSING = "<tool_call>", "</tool_call>"

MOST_SPACE = 64
"""White space before a call is no part of the text; more than that is, and is not held back."""


class CallParser:
    """Takes the calls out of one answer.

    `names` are the functions that there are: a call of another is text. `tagged` is how the model
    writes calls, and `new_id` names each. `forced`: it can write nothing else, so that the
    beginning of a call that was cut off is no text. `called`: there was one.
    """

    def __init__(
        self,
        names: frozenset[str],
        new_id: Callable[[], str],
        *,
        tagged: bool = True,
        forced: bool = False,
    ) -> None:
        self.called = False
        self._forced = forced
        self._names = names
        self._new_id = new_id
        self._tagged = tagged
        self._state: Callable[[str], str] = self._read_text if tagged else self._read_start
        self._held = ""
        self._object = CallObject()
        self._passed_on = -1  # of the object's text; -1 before the call begins to be
        self._calls = 0
        self._content: list[str] = []
        self._deltas: list[dict[str, Any]] = []

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What is certain by now: text, and the deltas of calls as the API streams them."""
        while text:
            text = self._state(text)
        return self._taken()

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """What was held back, when no more text comes. A call that has begun stays as it is."""
        if self._forced:
            return self._taken()
        while self._state == self._read_object and self._passed_on < 0:
            rest = self._give_up()
            while rest:
                rest = self._state(rest)
        if self._state == self._read_broken:
            self._pass_on(self._held)
        elif self._state not in (self._read_object, self._read_closing) and not self._is_filler():
            self._content.append(self._held)
        self._held = ""
        return self._taken()

    def _is_filler(self) -> bool:
        """Whether what is held only stands between calls, or after the last."""
        return self.called and not "".join(self._held.split()).strip(";,]")

    def _taken(self) -> tuple[str, list[dict[str, Any]]]:
        content, deltas = "".join(self._content), self._deltas
        self._content, self._deltas = [], []
        return content, deltas

    # Each state reads some of a text that is not empty, and gives back what is left of it.

    def _read_text(self, text: str) -> str:
        text, self._held = self._held + text, ""
        if not self._tagged:
            self._content.append(text)
            return ""
        found = text.find(OPENING)
        end = len(text) - overlap(text, OPENING) if found < 0 else found
        certain = max(len(text[:end].rstrip()), end - MOST_SPACE)
        self._content.append(text[:certain])
        if found < 0:
            self._held = text[certain:]
            return ""
        self._held = text[certain : found + len(OPENING)]
        self._state = self._read_opened
        return text[found + len(OPENING) :]

    def _read_opened(self, text: str) -> str:
        """After the opening tag, before the object."""
        if text[0] == "{":
            return self._enter(text)
        if text[0].isspace():
            self._held += text[0]
            return text[1:]
        return self._give_up() + text

    def _read_start(self, text: str) -> str:
        """Before a bare call: at the beginning of the text, or after another."""
        if text[0] == "{":
            return self._enter(text)
        if text[0].isspace() or text[0] in (";,]" if self.called else "["):
            self._held += text[0]
            return text[1:]
        self._state = self._read_text
        return text

    def _enter(self, text: str) -> str:
        self._object, self._passed_on = CallObject(), -1
        self._state = self._read_object
        return text

    def _read_object(self, text: str) -> str:
        reading = self._object
        rest = text[reading.read(text) :]
        if self._passed_on < 0:
            if reading.has_begun_arguments and reading.name in self._names:
                self._start(reading.name)
                self._passed_on = reading.arguments_start
            elif reading.progress is Progress.DONE:
                return self._complete_without() + rest
            elif reading.progress is Progress.BROKEN:
                return self._give_up() + rest
            else:
                return ""
        broken = reading.progress is Progress.BROKEN
        end = min(reading.arguments_end, len(reading.text) - broken)
        self._pass_on(reading.text[self._passed_on : end])
        self._passed_on = end
        if reading.progress is Progress.MORE:
            return ""
        open_ended = broken and reading.arguments_end == len(reading.text)
        self._leave()
        if open_ended:
            self._state = self._read_broken
        return reading.text[-1] + rest if broken else rest

    def _read_broken(self, text: str) -> str:
        """The arguments of a call that is no JSON any more: passed on as they are."""
        text, self._held = self._held + text, ""
        found = text.find(CLOSING) if self._tagged else -1
        if found < 0:
            certain = len(text) - (overlap(text, CLOSING) if self._tagged else 0)
            self._pass_on(text[:certain])
            self._held = text[certain:]
            return ""
        self._pass_on(text[:found])
        self._state = self._read_text
        return text[found + len(CLOSING) :]

    def _read_closing(self, text: str) -> str:
        """After the object: its closing tag, without which what follows is text."""
        tag = (self._held + text[0]).lstrip()
        if not CLOSING.startswith(tag):
            rest, self._held = self._held + text, ""
            self._state = self._read_text
            return rest
        self._held = "" if tag == CLOSING else self._held + text[0]
        if tag == CLOSING:
            self._state = self._read_text
        return text[1:]

    def _give_up(self) -> str:
        """What was held is no call: its tag is text, and what follows is read again as text."""
        before, self._held = self._held, ""
        after = self._object.text if self._state == self._read_object else ""
        if self._tagged:
            cut = before.find(OPENING) + len(OPENING)
            before, after = before[:cut], before[cut:] + after
        self._content.append(before)
        self._state = self._read_text
        return after

    def _complete_without(self) -> str:
        """The object is complete, and its arguments are no object."""
        name, arguments = self._object.name, self._object.other_arguments()
        missing = self._object.arguments_start < 0
        if name not in self._names or arguments is None or (missing and not self._tagged):
            return self._give_up()
        self._start(name)
        self._pass_on(arguments)
        self._leave()
        return ""

    def _leave(self) -> None:
        self._held = ""
        self._state = self._read_closing if self._tagged else self._read_start

    def _start(self, name: str | None) -> None:
        self.called = True
        self._calls += 1
        start = {"name": name, "arguments": ""}
        self._deltas.append(
            {"index": self._calls - 1, "id": self._new_id(), "type": "function", "function": start}
        )

    def _pass_on(self, arguments: str) -> None:
        if arguments:
            self._deltas.append({"index": self._calls - 1, "function": {"arguments": arguments}})


def overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
