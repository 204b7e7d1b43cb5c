"""The grammar of an answer that calls functions, so that each call is one and fits its schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farthing.core import Constraint
from farthing.engine.grammar_source import JSON_OPTIONS
from farthing.serve.tool_parser import CLOSING, OPENING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.serve.tool_templates import CallFormat

_MOST_CALLS = 32
"""A grammar without an end may be followed without end."""

_BEFORE, _AFTER = f"{OPENING}\n", f"\n{CLOSING}"


@dataclass(frozen=True)
class Function:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


def forced_calls(
    functions: Sequence[Function], format_: CallFormat, *, several: bool
) -> Constraint:
    """Nothing but calls of these functions: one, or where `several` one at least."""
    return _constraint(functions, format_, f"start: {_calls(format_, several)}", _call(format_))


def optional_calls(
    functions: Sequence[Function],
    format_: CallFormat,
    *,
    several: bool,
    schema: str | None = None,
) -> Constraint:
    """Calls of these functions, or text; a document of the `schema` instead of text if given."""
    calls = _calls(format_, several)
    if schema is not None:
        document = f"document: %json {_json(json.loads(schema))}"
        rules = [f"start: {calls} | document", document, _call(format_)]
    elif format_.tagged:
        again = "*" if several else "?"
        rules = [
            f"start: (opening object {_text(_AFTER)}){again} TEXT",
            # Lazy: the first opening tag begins a call, whatever text could go on.
            f"opening[lazy]: TEXT {_text(_BEFORE)}",
            r"TEXT: /(.|\n)*/",
        ]
    else:
        rules = [f"start: {calls} | TEXT", r"TEXT: /([^{\[](.|\n)*)?/", _call(format_)]
    return _constraint(functions, format_, *rules)


def _calls(format_: CallFormat, several: bool) -> str:
    separator = _text("\n" if format_.tagged else "; ")
    return f"call ({separator} call){{0,{_MOST_CALLS - 1}}}" if several else "call"


def _call(format_: CallFormat) -> str:
    return f"call: {_text(_BEFORE)} object {_text(_AFTER)}" if format_.tagged else "call: object"


def _constraint(functions: Sequence[Function], format_: CallFormat, *rules: str) -> Constraint:
    lines = [*rules, "object: " + " | ".join(f"f{number}" for number in range(len(functions)))]
    for number, function in enumerate(functions):
        begin = f'{{"name": {json.dumps(function.name)}, "{format_.arguments}": '
        lines.append(f'f{number}: {_text(begin)} a{number} "}}"')
        lines.append(f"a{number}: %json {_json(function.parameters)}")
    return Constraint("lark", "\n".join(lines))


def _text(text: str) -> str:
    """A literal of the grammar's language."""
    return json.dumps(text, ensure_ascii=False)


def _json(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": JSON_OPTIONS})
