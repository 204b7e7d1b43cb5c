from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import engine, tokenizer
from farthing.core import BLOCK_TOKENS
from farthing.engine.prefix import Miss
from farthing.serve.misses import PromptPlaces
from farthing.text.chat import ChatTemplate
from serve.server import MODEL, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.server import Served

RULES = "Be kind to everybody. " * 6
QUESTION = {"role": "user", "content": "Which colour is the sky?"}


@pytest.fixture
def fresh() -> Iterator[Served]:
    """A server whose cache is empty."""
    with serving(engine(total_blocks=128)) as served:
        yield served


def system(day: str) -> dict[str, str]:
    return {"role": "system", "content": f"It is {day}. {RULES}"}


def ask(served: Served, *messages: dict[str, str], **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": messages, "max_tokens": 2, **fields}
    answer = served.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    details: dict[str, Any] = answer.json()["usage"]["prompt_tokens_details"]
    return details


def test_a_miss_is_explained_only_to_who_asks_for_it(fresh: Served) -> None:
    ask(fresh, system("Monday"), QUESTION)
    assert "prefix_miss" not in ask(fresh, system("Friday"), QUESTION)
    assert "prefix_miss" in ask(fresh, system("Sunday"), QUESTION, explain_prefix_miss=True)


def test_a_day_in_the_system_message_is_found_as_what_the_cache_was_lost_to(fresh: Served) -> None:
    ask(fresh, system("Monday"), QUESTION)
    miss = ask(fresh, system("Friday"), QUESTION, explain_prefix_miss=True)["prefix_miss"]
    before = 1 + len("system: It is ")  # the token that begins a text, and bytes
    assert (miss["reason"], miss["position"], miss["message"]) == ("differs", before, 0)
    assert miss["reused_tokens"] == before
    # All full blocks of the first prompt would have been there.
    assert miss["avoidable_tokens"] > len(RULES) - BLOCK_TOKENS
    assert "messages[0] (system)" in miss["explanation"]
    assert "Friday" in miss["explanation"]
    assert "Monday" not in json.dumps(miss)  # that is of another request


def test_the_message_that_changed_is_named(fresh: Served) -> None:
    chat = [system("Monday"), QUESTION, {"role": "assistant", "content": RULES}]
    ask(fresh, *chat, {"role": "user", "content": "Why?"})
    chat[1] = {"role": "user", "content": "Which colour is the sea?"}
    again = ask(fresh, *chat, {"role": "user", "content": "Why?"}, explain_prefix_miss=True)
    assert again["prefix_miss"]["message"] == 1
    assert "sea?" in again["prefix_miss"]["text"]


def test_a_chat_that_only_goes_on_has_missed_nothing(fresh: Served) -> None:
    ask(fresh, system("Monday"), QUESTION)
    more = [
        QUESTION,
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Why?"},
    ]
    again = ask(fresh, system("Monday"), *more, explain_prefix_miss=True)
    assert (again["prefix_miss"]["reason"], again["prefix_miss"]["avoidable_tokens"]) == ("new", 0)
    assert again["cached_tokens"] > len(RULES)


def test_a_stream_explains_in_each_usage_that_it_gives(fresh: Served) -> None:
    ask(fresh, system("Monday"), QUESTION)
    body = {
        "messages": [system("Friday"), QUESTION],
        "max_tokens": 3,
        "stream": True,
        "explain_prefix_miss": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    lines = fresh.http.post("/v1/chat/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [chunk["usage"]["prompt_tokens_details"]["prefix_miss"]["message"] for chunk in chunks]
    assert len(told) >= 2
    assert set(told) == {0}


@pytest.mark.parametrize(
    ("contents", "inside", "message"),
    [
        (["aaa", "bbb"], "aaa", 0),
        (["aaa", "bbb"], "bbb", 1),
        (["aaa", "bbb"], "user: bbb", 1),  # the template's words before a content are its own
        (["same", "same"], "same", 0),
        (["  aaa ", "bbb"], "bbb", 1),
        (["aaa", "bbb"], "assistant: ", None),
    ],
)
def test_a_token_is_placed_in_its_message(
    contents: list[str], inside: str, message: int | None
) -> None:
    words = tokenizer()
    template = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<turn>{% endfor %}"
    messages = [{"role": "user", "content": each} for each in contents]
    ids = ChatTemplate(template + "assistant: ", words).encode(messages)
    begins = list(accumulate((len(words.token_bytes(each)) for each in ids), initial=0))
    position = begins.index(words.decode(ids, skip_special_tokens=False).index(inside))
    miss = Miss("differs", position, 0, 0, position, 9, 9)
    assert PromptPlaces(words, ids, messages).explain(miss).message == message


def test_the_template_of_a_real_model_leaves_the_places_where_they_are(
    real_server: Served,
) -> None:
    chat = [{"role": "assistant", "content": RULES}, {"role": "user", "content": "Why?"}]
    ask(real_server, system("Monday"), QUESTION, *chat, model=None)
    miss = ask(
        real_server, system("Friday"), QUESTION, *chat, model=None, explain_prefix_miss=True
    )["prefix_miss"]
    assert (miss["reason"], miss["message"]) == ("differs", 0)
    assert "Friday" in miss["text"]
    asked = {"role": "user", "content": "Which colour is the grass?"}
    miss = ask(real_server, system("Monday"), asked, *chat, model=None, explain_prefix_miss=True)[
        "prefix_miss"
    ]
    assert (miss["reason"], miss["message"]) == ("differs", 1)
    assert "grass" in miss["text"]
