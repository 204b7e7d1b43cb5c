"""Answers of a form that the client gives: the fields that ask for one, as the engine's constraint.

`response_format` is OpenAI's. `structured_outputs` (`json`, `json_object`, `regex`, `choice`,
`grammar`) and `guided_*` are vLLM's. A schema is followed whether it is called strict or not; what
of it cannot be followed is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from farthing.core import Constraint, RequestError
from farthing.serve.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANY_OBJECT = Constraint("json_schema", '{"type": "object"}')

_WAYS = "json, json_object, regex, choice or grammar"


class Forms:
    """What a request's fields ask for, compiled; in the form of state.Structured.

    `prepare` compiles a constraint for the model that is served.
    """

    def __init__(self, prepare: Callable[[Constraint], None]) -> None:
        self._prepare = prepare

    def constraint(self, fields: Mapping[str, Any]) -> Constraint | None:
        """The constraint that the fields ask for, ready for use; None for none.

        May take a second: for another thread than the server's. Raises `ApiError` 400, with what is
        wrong, for fields that are malformed or a form that cannot be followed.
        """
        constraint = constraint_of(fields)
        if constraint is not None:
            try:
                self._prepare(constraint)
            except RequestError as error:
                raise _refusal(next(iter(fields)), str(error)) from error
        return constraint


def constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    """The constraint that the fields ask for, which is compiled nowhere yet; None for none.

    Raises `ApiError` 400 where a field is malformed, or two of them ask for a form.
    """
    asked = {name: value for name, value in fields.items() if value is not None}
    found = {
        name: constraint
        for name, value in asked.items()
        if (constraint := _read(name, value)) is not None
    }
    if len(found) > 1:
        first, second = list(found)[:2]
        raise _refusal(second, f"{first} and {second} both ask for a form: leave one of them out")
    return next(iter(found.values()), None)


def _read(name: str, value: Any) -> Constraint | None:
    if name == "response_format":
        return _response_format(value)
    if name == "structured_outputs":
        return _structured_outputs(value)
    return _way(name, name.removeprefix("guided_"), value)


def _response_format(value: Any) -> Constraint | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise _refusal(
            "response_format",
            f"response_format has the type {kind!r:.40}, which must be text, json_object or "
            "json_schema",
        )
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise _refusal(
            "response_format.json_schema",
            'response_format needs {"json_schema": {"name": ..., "schema": {...}}}',
        )
    return _schema(schema)


def _structured_outputs(value: Any) -> Constraint | None:
    name = "structured_outputs"
    given = {}
    if isinstance(value, dict):
        given = {way: each for way, each in value.items() if each is not None and each is not False}
    if len(given) != 1:
        raise _refusal(name, f"structured_outputs must be an object with one of {_WAYS}")
    [(way, form)] = given.items()
    return _way(f"{name}.{way}", way, form)


def _way(name: str, way: str, form: Any) -> Constraint:
    if way == "json_object" and form is True:
        return ANY_OBJECT
    if way == "json" and isinstance(form, dict):
        return _schema(form)
    if way == "json" and isinstance(form, str):
        return Constraint("json_schema", form)
    if way == "regex" and isinstance(form, str):
        return Constraint("regex", form)
    if way == "grammar" and isinstance(form, str):
        return Constraint("lark", form)
    if way == "choice" and isinstance(form, list):
        return Constraint("choice", json.dumps(form))
    raise _refusal(name, f"{name} is {form!r:.40}, which is no form: give one of {_WAYS}")


def _schema(schema: dict[str, Any]) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def _refusal(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
