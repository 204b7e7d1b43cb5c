"""What people suffer from elsewhere: over HTTP, what has no test of its own in its room."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import engine
from serve.events import chunks
from serve.server import MODEL, serving

if TYPE_CHECKING:
    from serve.server import Served

PROMPT = "x" * 900


def at_once(served: Served, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to completions that are asked for at one moment."""
    answers: list[Any] = [None] * len(bodies)

    def ask(number: int) -> None:
        answers[number] = served.complete(**bodies[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    return [answer.json() for answer in answers]


def test_a_context_is_not_divided_by_the_slots() -> None:
    with serving(engine(context_length=1024, total_blocks=256)) as served:
        assert served.http.get("/stats").json()["slots"] == 64
        entry = served.http.get("/v1/models").json()["data"][0]
        assert entry["max_model_len"] == 1024
        others = [{"prompt": f"{number}", "max_tokens": 4} for number in range(20)]
        long, *_ = at_once(served, [{"prompt": PROMPT, "max_tokens": 100}, *others])
        assert long["usage"]["prompt_tokens"] == len(PROMPT) + 1  # and the token it begins with
        assert long["usage"]["completion_tokens"] == 100


def test_no_prompt_is_cut_to_fit() -> None:
    with serving(engine(context_length=1024, total_blocks=256)) as served:
        for answer in (
            served.complete("x" * 1024, max_tokens=1),
            served.complete(PROMPT, max_tokens=200),
            served.chat("x" * 1024, max_tokens=1),
        ):
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_full_cache_aborts_nobody_and_says_that_it_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies = [
        {"prompt": f"{number:03}" * 20, "max_tokens": 150, "seed": number} for number in range(12)
    ]
    with serving(engine(context_length=1024, total_blocks=256)) as served:
        alone = [served.complete(**body).json()["choices"] for body in bodies]
    # Room for three of them to their end.
    with (
        caplog.at_level(logging.INFO, "farthing"),
        serving(engine(context_length=1024, total_blocks=24)) as served,
    ):
        together = at_once(served, bodies)
        metrics = served.http.get("/stats").json()
        assert [each["choices"] for each in together] == alone
        assert {each["choices"][0]["finish_reason"] for each in together} == {"length"}
        assert metrics["preemptions"] > 0
        assert metrics["recomputed_tokens"] > 0
        served.wait_idle()
    told = [line for line in caplog.messages if "preempted" in line]
    assert len(told) == metrics["preemptions"]
    assert all("tokens" in line for line in told)


def test_every_stream_ends_with_its_reason_and_its_usage() -> None:
    with serving(engine(context_length=1024, total_blocks=64)) as served:
        for path, body in (
            ("/v1/completions", {"prompt": "x", "n": 3}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 3}),
        ):
            fields = {"model": MODEL, "max_tokens": 5, "stream": True, **body}
            fields["stream_options"] = {"include_usage": True}
            *parts, last = chunks(served.http.post(path, json=fields).text)
            reasons: dict[int, list[str | None]] = {}
            for part in parts:
                assert part["usage"] is None
                for choice in part["choices"]:
                    reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
            assert reasons.keys() == {0, 1, 2}
            for each in reasons.values():
                assert set(each[:-1]) <= {None}
                assert each[-1] == "length"
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 15
