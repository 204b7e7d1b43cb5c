"""How a server ends: what runs is finished, what was promised is kept, and newcomers are told."""

from __future__ import annotations

import json
import signal
import socket
import stat
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import tiny
from cli.serve_process import known_port, serving
from engine.threads import PATIENCE, eventually
from farthing.serve.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.serve_process import ServerProcess

LONG = "Once upon a time there was a server that was told to stop. " * 10


@pytest.fixture(scope="module")
def tiny_model() -> str:
    return str(tiny.shared("llama"))


def model_of(server: ServerProcess) -> str:
    with server.client() as http:
        return str(http.get("/v1/models").json()["data"][0]["id"])


def completion(server: ServerProcess, prompt: str = "Hello", **fields: Any) -> dict[str, Any]:
    with server.client() as http:
        body = {"model": model_of(server), "prompt": prompt, "max_tokens": 4, **fields}
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


@contextmanager
def streaming(server: ServerProcess, tokens: int) -> Iterator[Iterator[dict[str, Any] | None]]:
    """The events of a stream of so many tokens, the first of which is there; None is [DONE]."""
    body = {
        "model": model_of(server),
        "prompt": "Hello",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with server.client() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200

        def events() -> Iterator[dict[str, Any] | None]:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    yield None if data == "[DONE]" else json.loads(data)

        every = events()
        assert next(every) is not None
        yield every


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_server_ends_at_once_with_exit_code_0(
    number: int, tiny_model: str, tmp_path: Path
) -> None:
    with serving(tmp_path, tiny_model) as server:
        server.event("ready")
        server.signal(number)
        assert server.wait() == 0
        assert server.events("stopped")
        assert server.other == []


def test_a_stream_finishes_after_sigterm_while_newcomers_are_told_to_come_back(
    smollm2_path: Path, tmp_path: Path
) -> None:
    flags = ("--context", "2048", "--drain-seconds", "600")
    with serving(tmp_path, smollm2_path, *flags) as server:
        model = model_of(server)
        with streaming(server, 600) as events, server.client() as other:
            server.signal(signal.SIGTERM)
            server.event("draining")
            refused = other.post("/v1/completions", json={"model": model, "prompt": "Hi"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert int(refused.headers["Retry-After"]) > 0
            assert other.get("/health").status_code == 503
            rest = list(events)
        assert rest[-1] is None
        usage = [event for event in rest if event and event.get("usage")][-1]
        assert usage is not None
        assert usage["usage"]["completion_tokens"] == 600
        assert server.wait() == 0
        assert not server.events("cut_off")
        assert server.other == []


def test_what_does_not_finish_in_time_is_cut_off_with_an_error_that_says_so(
    smollm2_path: Path, tmp_path: Path
) -> None:
    flags = ("--context", "8192", "--drain-seconds", "0.2")
    with serving(tmp_path, smollm2_path, *flags) as server:
        with streaming(server, 8000) as events:
            server.signal(signal.SIGTERM)
            rest = list(events)
        assert any(event and "error" in event for event in rest)
        assert server.wait() == 0
        assert server.events("cut_off")
        assert server.events("stopped")


def test_a_second_signal_ends_at_once(smollm2_path: Path, tmp_path: Path) -> None:
    flags = ("--context", "8192", "--drain-seconds", "600")
    with serving(tmp_path, smollm2_path, *flags) as server:
        with streaming(server, 8000) as events:
            server.signal(signal.SIGTERM)
            server.event("draining")
            server.signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                list(events)
        assert server.wait() == 128 + signal.SIGTERM


def test_a_signal_during_the_load_ends_with_exit_code_0(smollm2_path: Path, tmp_path: Path) -> None:
    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).status_code > 0
        except httpx.ConnectError:
            return False

    # The slowest load there is: all weights are read once more to tell what a store depends on.
    flags = ("--prefix-store", "store", "--kv-dtype", "fp32")
    with known_port() as port, serving(tmp_path, smollm2_path, *flags, port=port) as server:
        assert eventually(answers)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.lines[-1]
        assert server.other == []


def test_a_silent_connection_does_not_delay_the_end(tiny_model: str, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_model, "--drain-seconds", "600") as server:
        address = httpx.URL(server.url)
        half_open = socket.create_connection((address.host, address.port or 0), timeout=PATIENCE)
        with half_open:
            half_open.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: me\r\n")
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


def test_the_cache_of_prompts_survives_a_restart(tiny_model: str, tmp_path: Path) -> None:
    store = tmp_path / "prefixes"
    flags = ("--prefix-store", str(store))
    with serving(tmp_path, tiny_model, *flags) as server:
        first = completion(server, LONG, seed=1)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        saved = server.event("saved")
        assert saved["blocks"] > 0
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    with serving(tmp_path, tiny_model, *flags) as server:
        assert server.event("restored")["blocks"] == saved["blocks"]
        second = completion(server, LONG, seed=1)
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second)]
    assert cached[0] == 0
    assert cached[1] >= first["usage"]["prompt_tokens"] - 32


def test_after_kill_9_a_restart_has_what_was_saved_before(tiny_model: str, tmp_path: Path) -> None:
    store = tmp_path / "prefixes"
    flags = ("--prefix-store", str(store))
    with serving(tmp_path, tiny_model, *flags) as server:
        completion(server, LONG)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    content = store.read_bytes()
    port = 0
    with serving(tmp_path, tiny_model, *flags) as server:
        port = httpx.URL(server.url).port or 0
        completion(server, "something else")
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
    assert store.read_bytes() == content
    # The same port, at once.
    with serving(tmp_path, tiny_model, *flags, port=port) as server:
        assert server.event("restored")["blocks"] > 0
        assert completion(server, LONG)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_damaged_store_is_told_and_the_server_begins_without_it(
    tiny_model: str, tmp_path: Path
) -> None:
    store = tmp_path / "prefixes"
    store.write_bytes(b"FARTHING" + bytes(100))
    with serving(tmp_path, tiny_model, "--prefix-store", str(store)) as server:
        assert server.event("restored")["refused"]
        completion(server)


def test_a_store_that_cannot_be_written_is_told_and_the_end_is_orderly(
    tiny_model: str, tmp_path: Path
) -> None:
    store = tmp_path / "folder" / "prefixes"
    store.parent.mkdir()
    with serving(tmp_path, tiny_model, "--prefix-store", str(store)) as server:
        completion(server, LONG)
        store.parent.rmdir()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert str(store.parent) in server.event("not_saved")["message"]


def test_a_load_that_fails_is_told_once_and_leaves_the_port(
    tiny_model: str, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    with open(tiny_model, "rb") as whole:  # noqa: PTH123
        damaged.write_bytes(whole.read()[:3000])
    with serving(tmp_path, damaged) as server:
        assert server.wait() == 2
        (failed,) = server.events("load_failed")
        assert str(damaged) in failed["message"]
        assert server.other == []


def test_the_usage_of_the_last_requests_is_on_disk_when_the_server_has_ended(
    tiny_model: str, tmp_path: Path
) -> None:
    with serving(tmp_path, tiny_model, "--usage-flush-seconds", "600") as server:
        done = completion(server, "Hello")["usage"]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    path = tmp_path / "usage.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    today = datetime.now(UTC).date()
    kept = Usage(path, "tiny", price_per_hour=0, flush_seconds=1, most_days=9, most_bytes=1 << 20)
    ((_, used),) = kept.report(today - timedelta(days=1), today)
    kept.close()
    assert (used.requests, used.prompt_tokens) == (1, done["prompt_tokens"])
