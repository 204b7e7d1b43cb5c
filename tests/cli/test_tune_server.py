"""What a server's own work takes, measured with the application that serves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from engine.scripted import tokenizer
from farthing.cli import tune_server
from farthing.cli.tune_server import measure_server
from farthing.core import FarthingError
from farthing.lab.tune_points import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.cli.tune_server import _Prompt, _Served, _Taken

LOAD = Load(2, ((200, 6),))


def test_a_request_and_a_token_take_some_time_and_nothing_is_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune_server, "_ROUNDS", 2)
    before = set(threading.enumerate())
    work = measure_server(tokenizer(), LOAD)
    assert 1e-5 < work.request < 1
    assert 1e-6 < work.token < 0.1
    assert 0 <= work.prompt_token < 0.01
    assert set(threading.enumerate()) <= before


def test_what_is_measured_is_told_apart_by_requests_prompts_and_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that takes 4 ms for a request, 10 us for a token of its prompt and 0.5 ms for each
    that it writes.
    """

    def answer(_: _Served, prompts: Sequence[_Prompt], tokens: int, users: int) -> _Taken:
        assert users == 2
        assert len(prompts) == 4
        read = sum(each.tokens for each in prompts)
        written = tokens * len(prompts)
        return tune_server._Taken(0.004 * len(prompts) + 1e-5 * read + 5e-4 * written, written)

    monkeypatch.setattr(tune_server._Served, "answer", answer)
    work = measure_server(tokenizer(), LOAD)
    assert work.request == pytest.approx(0.004)
    assert work.prompt_token == pytest.approx(1e-5)
    assert work.token == pytest.approx(5e-4)


def test_a_loopback_that_cannot_be_used_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> _Taken:
        raise ConnectionRefusedError

    monkeypatch.setattr(tune_server._Served, "answer", refused)
    with pytest.raises(FarthingError, match="allow connections to 127"):
        measure_server(tokenizer(), LOAD)
