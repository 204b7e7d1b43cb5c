"""A function call as a model writes it, {"name": ..., "arguments": {...}}, read piece by piece."""

from __future__ import annotations

import json
import string
from enum import Enum
from typing import Any

_ARGUMENTS = ("arguments", "parameters")
_SPACE = frozenset(" \t\r\n")
_SCALAR = frozenset(string.ascii_letters + string.digits + "+-.")
_CLOSING = {"{": "}", "[": "]"}
_MOST_NESTED = 256


class Progress(Enum):
    """How far the object has come."""

    MORE = "more"
    DONE = "done"
    BROKEN = "broken"


class _Expected(Enum):
    OBJECT = "{"
    KEY_OR_END = "key or }"
    KEY = "key"
    COLON = ":"
    VALUE = "value"
    COMMA_OR_END = ", or }"


class CallObject:
    """The object so far, in `text`; whatever else it has than a name and arguments is ignored.

    Of what is nested in it only strings and brackets are checked. `name` is None until it is known,
    and `arguments_start` where they begin in `text`, -1 before that.
    """

    def __init__(self) -> None:
        self.text = ""
        self.progress = Progress.MORE
        self.name: str | None = None
        self.arguments_start = -1
        self._arguments_end = -1
        self._expected = _Expected.OBJECT
        self._key = ""
        self._seen: set[str] = set()
        self._start = 0  # of the key or value that is being read
        self._in_value = False
        self._in_string = False
        self._escaped = False
        self._nested: list[str] = []  # the brackets to come, within a value

    @property
    def arguments_end(self) -> int:
        """Where the arguments end in `text`, or how far they have come."""
        return len(self.text) if self._arguments_end < 0 else self._arguments_end

    @property
    def has_begun_arguments(self) -> bool:
        """Whether there are arguments, and they are an object."""
        start = self.arguments_start
        return start >= 0 and self.text[start] == "{"

    def read(self, text: str) -> int:
        """Reads on; gives how many characters belong to the object, the one that breaks it too."""
        before = len(self.text)
        self.text += text
        for at in range(before, len(self.text)):
            self._step(self.text[at], at)
            if self.progress is not Progress.MORE:
                self.text = self.text[: at + 1]
                return at + 1 - before
        return len(text)

    def other_arguments(self) -> str | None:
        """The arguments of a complete object where they are not an object themselves.

        None and nothing mean no arguments; some models write them as JSON in a string. None where
        they are anything else.
        """
        if self.arguments_start < 0:
            return "{}"
        value = _parsed(self.text[self.arguments_start : self._arguments_end])
        if value is None:
            return "{}"
        return value if isinstance(value, str) and isinstance(_parsed(value), dict) else None

    def _step(self, character: str, at: int) -> None:
        if self._in_string:
            self._step_in_string(character, at)
        elif self._nested:
            self._step_nested(character, at)
        elif self._in_value and character in _SCALAR:
            pass
        else:
            if self._in_value:
                self._end_value(at)
            if character not in _SPACE:
                self._step_between(character, at)

    def _step_in_string(self, character: str, at: int) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character < " ":
            self._break()
        elif character == '"':
            self._in_string = False
            if self._in_value:
                if not self._nested:
                    self._end_value(at + 1)
            else:
                self._end_key(at + 1)

    def _step_nested(self, character: str, at: int) -> None:
        if character == '"':
            self._in_string = True
        elif character in _CLOSING:
            self._nested.append(_CLOSING[character])
            if len(self._nested) > _MOST_NESTED:
                self._break()
        elif character == self._nested[-1]:
            self._nested.pop()
            if not self._nested:
                self._end_value(at + 1)
        elif not (character in _SCALAR or character in _SPACE or character in ",:"):
            self._break()

    def _step_between(self, character: str, at: int) -> None:
        expected = self._expected
        if character == "{" and expected is _Expected.OBJECT:
            self._expected = _Expected.KEY_OR_END
        elif character == '"' and expected in (_Expected.KEY, _Expected.KEY_OR_END):
            self._in_string, self._start = True, at
        elif character == ":" and expected is _Expected.COLON:
            self._expected = _Expected.VALUE
        elif expected is _Expected.VALUE:
            self._begin_value(character, at)
        elif character == "," and expected is _Expected.COMMA_OR_END:
            self._expected = _Expected.KEY
        elif character == "}" and expected in (_Expected.KEY_OR_END, _Expected.COMMA_OR_END):
            self.progress = Progress.DONE
        else:
            self._break()

    def _end_key(self, end: int) -> None:
        key = _parsed(self.text[self._start : end])
        if not isinstance(key, str):
            self._break()
            return
        self._key = "arguments" if key in _ARGUMENTS else key
        if self._key in self._seen:
            self._break()
        self._seen.add(self._key)
        self._expected = _Expected.COLON

    def _begin_value(self, character: str, at: int) -> None:
        self._in_value, self._start = True, at
        if self._key == "arguments":
            self.arguments_start = at
        if character == '"':
            self._in_string = True
        elif character in _CLOSING:
            self._nested.append(_CLOSING[character])
        elif character not in _SCALAR:
            self._break()

    def _end_value(self, end: int) -> None:
        self._in_value = False
        self._expected = _Expected.COMMA_OR_END
        if self._key == "arguments":
            self._arguments_end = end
        elif self._key == "name":
            name = _parsed(self.text[self._start : end])
            if isinstance(name, str):
                self.name = name
            else:
                self._break()

    def _break(self) -> None:
        self.progress = Progress.BROKEN


def _parsed(text: str) -> Any:
    """The value of a JSON text; what is none gives `...`, which no JSON is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ...
