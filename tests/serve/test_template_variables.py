"""`chat_template_kwargs`: a template's further variables, and what they cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import VOCABULARY, rambling, tokenizer
from farthing.backends.null import NullBackend
from farthing.engine.engine import Engine
from farthing.text.chat import ChatTemplate
from serve.server import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = (
    "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}quick{% else %}slow{% endif %}"
    "{{ date_string }}"
)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    words = tokenizer()
    engine = Engine(NullBackend(rambling, VOCABULARY), words, ChatTemplate(TEMPLATE, words))
    with serving(engine) as server:
        yield server


def prompt(served: Served, variables: Any) -> str:
    body = {**CHAT, "chat_template_kwargs": variables}
    ids = served.http.post("/tokenize", json=body).json()["tokens"]
    counted = served.chat("Hi", max_tokens=1, chat_template_kwargs=variables).json()["usage"]
    assert counted["prompt_tokens"] == len(ids)
    return str(served.http.post("/detokenize", json={"tokens": ids}).json()["prompt"])


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (None, "<Hi>slow"),
        ({}, "<Hi>slow"),
        ({"enable_thinking": True}, "<Hi>slow"),
        ({"enable_thinking": False}, "<Hi>quick"),
        ({"date_string": "26 Jul 2024"}, "<Hi>slow26 Jul 2024"),
        ({"nobody": None, "asks": 1.5}, "<Hi>slow"),
    ],
)
def test_a_template_is_given_its_variables(served: Served, variables: Any, text: str) -> None:
    assert prompt(served, variables).removeprefix("<bos>") == text


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": []},
        {"tools": []},
        {"documents": []},
        {"add_generation_prompt": False},
        {"most_tokens": 1},
        {"self": 1},
        {"eos_token": "x"},
        {"not a name": 1},
        {"": 1},
        {"date_string": "<eos>"},
        {"date_string": "x" * 201},
        {"date_string": ["<eos>"]},
        {"date_string": {"a": 1}},
        {f"name{number}": number for number in range(33)},
        "enable_thinking",
        [1],
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_what_a_template_must_not_be_given_is_400(
    served: Served, path: str, variables: Any
) -> None:
    answer = served.http.post(path, json={**CHAT, "chat_template_kwargs": variables})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("chat_template_kwargs")
