"""The log: what stands in it, what never does, and that nobody waits for whoever reads it."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from farthing.engine.prefix import Miss
from farthing.serve import log as log_module
from farthing.serve.log import RequestLog, logging_to, tell
from farthing.serve.state import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable


def written(log_format: str, work: Callable[[], object]) -> list[str]:
    stream = io.StringIO()
    with logging_to(stream, log_format):
        work()
    return stream.getvalue().splitlines()


def objects(work: Callable[[], object]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written("json", work)]


def record(**fields: Any) -> RequestRecord:
    made = RequestRecord("req-1", "alice", "/v1/completions")
    made.status, made.seconds = 200, 0.25
    made.prompt_tokens, made.cached_tokens, made.completion_tokens = 12, 8, 30
    made.finish_reasons = ("stop",)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_request_is_one_line_for_people() -> None:
    (line,) = written("human", lambda: RequestLog().finished(record()))
    assert line.endswith(
        " req-1 alice /v1/completions 200: 12 tokens (8 cached) + 30, 0.25 s, stop"
    )


def test_a_request_is_one_object_for_programs() -> None:
    (line,) = objects(lambda: RequestLog().finished(record()))
    assert line["event"] == "request"
    assert line["level"] == "info"
    assert line["time"].endswith("Z")
    assert (line["id"], line["key"], line["status"]) == ("req-1", "alice", 200)
    tokens = line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]
    assert tokens == (12, 8, 30)
    assert (line["seconds"], line["finish_reasons"]) == (0.25, {"stop": 1})
    assert line["queue_seconds"] is None
    (line,) = objects(lambda: RequestLog().finished(record(queue_seconds=0.00123)))
    assert line["queue_seconds"] == 0.0012


def test_hundreds_of_answers_to_a_request_make_no_longer_a_line() -> None:
    many = record(finish_reasons=("length",) * 300 + ("stop",) + ("length",) * 200)
    (line,) = written("human", lambda: RequestLog().finished(many))
    assert line.endswith(" 0.25 s, 500 length, stop")
    (entry,) = objects(lambda: RequestLog().finished(many))
    assert entry["finish_reasons"] == {"length": 500, "stop": 1}


def test_a_miss_is_told_only_where_the_text_may_be_quoted() -> None:
    miss = Miss("differs", 40, 7, 9, 40, 100, 64)
    missed = record(misses=(miss, Miss("new", 0, 1, None, 0, 10, 0)))
    assert len(objects(lambda: RequestLog().finished(missed))) == 1
    words = {7: " Tuesday"}
    _, line = objects(lambda: RequestLog(words.__getitem__).finished(missed))
    assert line["event"] == "prefix_miss"
    assert (line["position"], line["token"], line["recomputed"]) == (40, " Tuesday", 100)
    assert "' Tuesday', differs from an earlier prompt" in line["message"]
    evicted = record(misses=(Miss("evicted", 40, 7, None, 40, 100, 64),))
    _, line = objects(lambda: RequestLog(words.__getitem__).finished(evicted))
    assert "its place was needed for others" in line["message"]


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_what_a_client_sends_begins_no_line_of_its_own_and_moves_no_cursor(
    log_format: str,
) -> None:
    lines = written(log_format, lambda: tell("x", "an id\n12:00:00 forged\x1b[2J\r\x9b"))
    assert not any(line.startswith("12:00:00 forged") for line in lines)
    assert not any(code in line for line in lines for code in "\x1b\r\x9b")


def test_a_fault_has_its_traceback_in_the_log() -> None:
    def fail() -> None:
        try:
            raise LookupError("the wires crossed")
        except LookupError:
            logging.getLogger("farthing.serve").exception("a request failed")

    (line,) = objects(fail)
    assert "LookupError: the wires crossed" in line["traceback"]
    assert line["level"] == "error"
    assert any("LookupError" in text for text in written("human", fail))


def test_the_engines_words_are_in_the_log_and_the_librarys_chatter_is_not() -> None:
    def speak() -> None:
        logging.getLogger("farthing.engine.scheduler").info("request 3 is preempted")
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("uvicorn.error").warning("a broken connection")

    lines = written("human", speak)
    assert [line.partition(" ")[2] for line in lines] == [
        "request 3 is preempted",
        "warning: a broken connection",
    ]


def test_a_reader_that_stalls_holds_up_nobody_and_is_told_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "_MOST_WAITING", 10)
    stalled = threading.Event()

    class Stalling(io.StringIO):
        def write(self, text: str) -> int:
            stalled.wait(60)
            return super().write(text)

    stream = Stalling()
    with logging_to(stream, "json"):
        for number in range(100):
            tell("x", f"line {number}")
        stalled.set()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0]["message"] == "line 0"
    (lost,) = [line for line in lines if line["event"] == "lines_lost"]
    assert int(lost["message"].split()[0]) == 100 - (len(lines) - 1)


def test_a_reader_that_has_left_ends_nothing() -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with logging_to(Left(), "human"):
        tell("x", "to nobody")
        tell("x", "and again")
