"""The fields that ask for a form: what they come to, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.scripted import engine
from farthing.core import Constraint
from farthing.serve.errors import ApiError
from farthing.serve.structured import Forms, constraint_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = Constraint("json_schema", json.dumps(SCHEMA))
OBJECT = Constraint("json_schema", '{"type": "object"}')


def response_format(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    described = {"name": "answer", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({}, None),
        ({"response_format": None, "guided_regex": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        (response_format(), FORM),
        (response_format(strict=True, description="What it is."), FORM),
        (response_format(strict=False), FORM),
        ({"structured_outputs": {"json": SCHEMA}}, FORM),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, FORM),
        ({"structured_outputs": {"json_object": True, "regex": None}}, OBJECT),
        ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint("choice", '["a", "b"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Constraint("lark", 'start: "a"')),
        ({"guided_json": SCHEMA}, FORM),
        ({"guided_regex": "a+"}, Constraint("regex", "a+")),
        ({"guided_choice": ["a"]}, Constraint("choice", '["a"]')),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, Constraint("regex", "a+")),
    ],
    ids=str,
)
def test_fields_become_a_constraint(fields: dict[str, Any], constraint: Constraint | None) -> None:
    assert constraint_of(fields) == constraint


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (response_format(None), "response_format.json_schema"),
        (response_format("{}"), "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({**response_format(), "guided_regex": "a"}, "guided_regex"),
    ],
    ids=str,
)
def test_fields_that_are_no_form_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as failure:
        constraint_of(fields)
    assert (failure.value.status, failure.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (response_format({"type": "nonsense"}), "nonsense"),
        (response_format({"not": {}}), "not"),
        ({"guided_regex": "(a"}, "unclosed group"),
        ({"guided_choice": []}, "1 to 1000"),
        ({"guided_json": "{"}, "not JSON"),
        ({"structured_outputs": {"grammar": "start: x"}}, "x"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_followed_is_refused_with_what_is_wrong(
    fields: dict[str, Any], said: str
) -> None:
    with engine() as one, pytest.raises(ApiError) as failure:
        Forms(one.prepare).constraint(fields)
    assert failure.value.status == 400
    assert failure.value.param in fields
    assert said in failure.value.message


def test_a_form_is_compiled_before_it_is_used() -> None:
    prepared: list[Constraint] = []
    assert Forms(prepared.append).constraint(response_format()) == FORM
    assert prepared == [FORM]
    assert Forms(prepared.append).constraint({"response_format": {"type": "text"}}) is None
    assert prepared == [FORM]
