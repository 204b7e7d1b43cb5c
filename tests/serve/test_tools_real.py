"""Tool calls of the default model, which was not trained for them: those asked for are all good."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from farthing.core import SamplingParams
from farthing.engine.engine import Engine
from farthing.serve.tools import ModelTools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "send_mail": {
        "type": "object",
        "properties": {
            "to": {"type": "string", "pattern": "^[a-z]{1,10}@[a-z]{1,10}\\.org$"},
            "urgent": {"type": "boolean"},
        },
        "required": ["to"],
        "additionalProperties": False,
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[Engine]:
    with Engine.load(smollm2_path, context_length=1024, sequences=8, threads=2) as one:
        yield one


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_call_that_is_asked_for_fits_its_function(model: Engine, temperature: float) -> None:
    tools = ModelTools(lambda: model.chat_template, model.prepare)
    using = tools.prepare(TOOLS, "required", parallel_tool_calls=False)
    chat = using.chat([{"role": "user", "content": "What is the weather in Paris?"}])
    assert model.chat_template is not None
    prompt = model.chat_template.encode(chat, using.template_tools)
    sampling = SamplingParams(
        constraint=using.constraint, temperature=temperature, seed=3, max_tokens=300
    )
    for stream in model.submit(prompt, sampling, n=8):
        completion = stream.result()
        assert completion.finish_reason == "stop"
        parser = using.parser()
        content, deltas = parser.push(completion.text)
        assert (content, parser.finish()) == ("", ("", []))
        arguments = "".join(delta["function"]["arguments"] for delta in deltas)
        schema = SCHEMAS[deltas[0]["function"]["name"]]
        Draft202012Validator(schema).validate(json.loads(arguments))
