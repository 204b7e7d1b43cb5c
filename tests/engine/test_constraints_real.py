"""Constrained texts of the default model: whatever it would rather say, every document is valid."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from farthing.core import Constraint, SamplingParams
from farthing.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": -9, "maximum": 99},
                "children": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        },
        "leaf": {
            "type": "object",
            "properties": {"value": {"type": "boolean"}},
            "required": ["value"],
            "additionalProperties": False,
        },
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "email": {"type": "string", "pattern": "^[a-z]{1,12}@[a-z]{1,12}\\.(com|org)$"},
        },
        "required": ["name", "age", "email"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "London", "São Paulo", "東京"]},
            "rain": {"type": ["boolean", "null"]},
            "days": {
                "type": "array",
                "items": {"type": "string", "format": "date"},
                "minItems": 1,
                "maxItems": 3,
            },
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 9},
                {"type": "string", "maxLength": 5},
                {"const": {"fixed": [1, 2.5, None]}},
            ]
        },
        "minItems": 2,
        "maxItems": 4,
    },
    TREE,
    {
        "type": "object",
        "properties": {
            "price": {"type": "number", "minimum": 0.5, "maximum": 99.5, "multipleOf": 0.5},
            "id": {"type": "string", "format": "uuid"},
        },
        "required": ["price", "id"],
        "additionalProperties": False,
    },
]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[Engine]:
    with Engine.load(smollm2_path, context_length=512, sequences=16, threads=2) as one:
        yield one


def asked(subject: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Write {subject} as JSON."}]


def test_fifty_documents_of_five_schemas_are_all_valid(model: Engine) -> None:
    streams = []
    for number in range(50):
        sampling = SamplingParams(
            constraint=Constraint("json_schema", json.dumps(SCHEMAS[number % 5])),
            temperature=(0.0, 0.7, 1.5)[number % 3],
            seed=number,
            max_tokens=300,
        )
        streams += model.submit(asked(f"example {number}"), sampling)
    for number, stream in enumerate(streams):
        completion = stream.result()
        assert completion.finish_reason == "stop", completion.text
        schema = SCHEMAS[number % 5]
        document = json.loads(completion.text)
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
            document
        )


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_expressions_and_choices_hold(model: Engine, temperature: float) -> None:
    pattern = r"(Yes|No), because [a-z ]{10,40}\. \([0-9]{1,2}/10\)"
    texts = ["red", "green", "ultramarine", "yellow ochre"]
    question = [{"role": "user", "content": "Is the sky blue? Which colour is grass?"}]
    fields: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 100}
    form = SamplingParams(constraint=Constraint("regex", pattern), **fields)
    one_of = SamplingParams(constraint=Constraint("choice", json.dumps(texts)), **fields)
    for stream in model.submit(question, form, n=8):
        assert re.fullmatch(pattern, stream.result().text)
    chosen = {stream.result().text for stream in model.submit(question, one_of, n=12)}
    assert chosen <= set(texts)
    assert len(chosen) > 1 or temperature == 0


def test_a_constrained_text_is_the_same_beside_others_and_alone(model: Engine) -> None:
    sampling = [
        SamplingParams(
            constraint=Constraint("json_schema", json.dumps(SCHEMAS[number % 5]))
            if number % 3
            else None,
            temperature=1.0,
            seed=number,
            max_tokens=60,
        )
        for number in range(8)
    ]
    prompts = [asked(f"number {number}") for number in range(8)]
    pairs = list(zip(prompts, sampling, strict=True))
    streams = [model.submit(prompt, each)[0] for prompt, each in pairs]
    together = [stream.result().token_ids for stream in streams]
    assert together == [model.generate(prompt, each).token_ids for prompt, each in pairs]
