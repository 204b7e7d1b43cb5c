"""farthing serve: what it refuses before it loads, --check, and the log."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import tiny
from cli.serve_process import PROGRAM, environment, known_port, serving
from engine.threads import PATIENCE, eventually
from farthing.cli import main

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a-secret-that-nobody-may-read"


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)


def says(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["serve", *arguments, "--check", "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def test_without_a_model_it_says_where_one_can_be_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve"]) == 2
    assert "set model in farthing.toml or FARTHING_MODEL" in says(capsys)


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["serve", "check"])
def test_a_place_where_no_usage_can_be_kept_is_told_before_the_model_is_looked_for(
    check: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    flags = ["--port", "0", "--usage-store", str(tmp_path / "file" / "usage.sqlite")]
    assert main(["serve", "missing.gguf", *flags, *check]) == 2
    error = says(capsys)
    assert "file is no folder" in error
    assert "--usage-store off" in error


def test_a_database_of_another_program_is_no_place_for_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "diary.sqlite"
    with closing(sqlite3.connect(store)) as other, other:
        other.execute("CREATE TABLE diary (text)")
    assert main(["serve", "missing.gguf", "--port", "0", "--usage-store", str(store)]) == 2
    assert "it is not a file of usage" in says(capsys)


def test_more_threads_than_cores_are_warned_of(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", model, "--check", "--threads", "500"]) == 0
    assert "warning: 500 threads are asked for, and" in capsys.readouterr().err
    with serving(tmp_path, model, "--threads", "500") as server:
        server.event("ready")
        [warning] = server.events("threads")
        assert warning["level"] == "warning"
        assert warning["message"].startswith("500 threads were asked for, and")


def test_a_port_in_use_is_told_before_the_model_is_looked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "missing.gguf", "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is in use" in says(capsys)


def test_an_address_of_another_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    # TEST-NET-1 belongs to nobody.
    assert main(["serve", "m.gguf", "--host", "192.0.2.1", "--api-key", SECRET]) == 2
    error = says(capsys)
    assert "192.0.2.1 is no address of this machine" in error
    assert SECRET not in error


def test_a_name_of_no_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m.gguf", "--host", "no such host", "--api-key", SECRET]) == 2
    assert "is no address of a machine" in says(capsys)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
@pytest.mark.parametrize("check", [[], ["--check"]], ids=["serve", "check"])
def test_an_address_that_others_reach_needs_a_key(
    host: str, check: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "m.gguf", "--host", host, *check]) == 2
    assert "without a key the server listens on this machine only" in says(capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "70000"], "argument --port: must be from 0 to 65535, not 70000"),
        (["--port", "http"], "argument --port: must be a whole number, not 'http'"),
        (["--drain-seconds", "-1"], "argument --drain-seconds: must be from 0 to 86400"),
        (["--drain-seconds", "nan"], "argument --drain-seconds: must be from 0 to 86400"),
        (["--ping-seconds", "0"], "--ping-seconds: must be above 0 and at most 86400, not 0.0"),
        (["--stalled-seconds", "1e300"], "must be above 0 and at most 86400, not 1e+300"),
        (["--usage-flush-seconds", "1e300"], "must be above 0 and at most 86400, not 1e+300"),
        (["--usage-days", "99999999999"], "must be from 1 to 36500, not 99999999999"),
        (["--model-name", ""], "argument --model-name: must be a text of printable characters"),
        (["--currency", "a\nb"], "argument --currency: must be a text of printable characters"),
        (["--cors-origins", "https://a.org/"], "--cors-origins: must be an origin such as"),
        (["--cors-origins", "a.org"], "--cors-origins: must be an origin such as"),
        (["--usage-store", ""], "argument --usage-store: must be a text of printable characters"),
        (["--most-choices", "0"], "argument --most-choices: must be at least 1, not 0"),
        (["--slots", "0"], "argument --slots: must be at least 1, not 0"),
        (["--log-format", "xml"], "argument --log-format: invalid choice: 'xml'"),
        (["--prot", "1"], "unrecognized arguments: --prot 1"),
        (["--json"], "--json is for --check"),
        (["--prefix-store", "no/folder/store"], "there is no folder no/folder: make it first"),
        (["--prefix-store", "."], "which cannot be written: name a file"),
        (["--config", "missing.toml"], "--config names missing.toml, and there is no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_flag_is_one_clear_error(
    flags: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", model, *flags]) == 2
    assert message in says(capsys)


def test_check_shows_each_value_with_its_source_and_masks_secrets(
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "farthing.toml").write_text("threads = 1\n[serve]\nport = 8123\nslots = 3\n")
    monkeypatch.setenv("FARTHING_API_KEY", SECRET)
    monkeypatch.setenv("FARTHING_SLOTS", "4")
    code, shown = checked(capsys, model, "--cache-tokens", "2048")
    assert code == 0
    configuration = shown["configuration"]
    assert configuration["port"] == {"value": 8123, "source": "farthing.toml, line 3"}
    assert configuration["threads"] == {"value": 1, "source": "farthing.toml, line 1"}
    assert configuration["slots"] == {"value": 4, "source": "FARTHING_SLOTS"}
    assert configuration["cache-tokens"] == {"value": 2048, "source": "--cache-tokens"}
    assert configuration["host"] == {"value": "127.0.0.1", "source": "default"}
    assert configuration["model"] == {"value": model, "source": "typed"}
    assert configuration["api-key"] == {"value": "***", "source": "FARTHING_API_KEY"}
    assert SECRET not in json.dumps(shown)
    assert main(["serve", model, "--check"]) == 0
    text = capsys.readouterr().out
    assert SECRET not in text
    assert "farthing.toml, line 3" in text
    assert text.endswith("it fits\n")


def test_a_secret_that_others_can_read_is_warned_of(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "farthing.toml"
    path.write_text(f'[serve]\napi-key = "{SECRET}"\n')
    path.chmod(0o600)
    assert main(["serve", model, "--check"]) == 0
    assert capsys.readouterr().err == ""
    path.chmod(0o644)
    assert main(["serve", model, "--check"]) == 0
    assert "farthing.toml holds a secret that other users can read" in capsys.readouterr().err
    assert main(["serve", model, "--check", "--api-key", SECRET]) == 0
    captured = capsys.readouterr()
    assert "can see what follows --api-key" in captured.err
    assert SECRET not in captured.out + captured.err


def test_every_line_of_a_json_log_is_json_from_the_first_to_the_last(
    model: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[alice]\nsecret = "{SECRET}"\n')
    keys.chmod(0o644)
    flags = ["--api-key", SECRET + "2", "--keys-file", str(keys)]
    with serving(tmp_path, model, *flags) as server, server.client() as http:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert http.get("/health", headers=upgrade).status_code == 200
        with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert server.other == []
    warnings = [line["message"] for line in server.lines if line["level"] == "warning"]
    assert any("can see what follows --api-key" in each for each in warnings)
    assert any("keys.toml holds secrets" in each for each in warnings)
    assert not any("pip install" in each for each in warnings)
    assert SECRET not in str(server.lines)


def test_check_plans_what_the_server_then_allocates(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, shown = checked(capsys, model, "--slots", "5", "--threads", "2")
    plan, memory = shown["plan"], shown["memory_bytes"]
    assert plan["slots"] == 5
    assert plan["cache_tokens"] == max(1024, 5 * 512)
    assert shown["needed_bytes"] == sum(memory.values())
    with serving(tmp_path, model, "--slots", "5") as server:
        allocated = server.event("allocated")
        assert allocated["memory"] == {
            name: memory[name] for name in ("weights", "cache", "working")
        }
        assert allocated["why"] == plan["why"]


def test_check_ends_with_1_and_the_nearest_that_fits(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("farthing.serve.sizing.available_memory", lambda: 200 << 20)
    code, shown = checked(capsys, model, "--cache-tokens", str(1 << 30))
    assert code == 1
    assert not shown["fits"]
    nearest = shown["advice"].partition("--cache-tokens ")[2].partition(")")[0]
    code, shown = checked(capsys, model, "--cache-tokens", nearest)
    assert code == 0
    assert shown["fits"]
    code, shown = checked(capsys, model, "--cache-tokens", str(int(nearest) + 32))
    assert code == 1


def test_what_does_not_fit_is_refused_before_it_is_loaded(model: str, tmp_path: Path) -> None:
    with serving(tmp_path, model, "--cache-tokens", str(1 << 40)) as server:
        assert server.wait() == 1
        failed = server.event("load_failed")
        assert "tokens fits (--cache-tokens" in failed["message"]
        assert server.other == []


def test_a_model_that_is_not_there_ends_the_process_with_2(tmp_path: Path) -> None:
    with serving(tmp_path, "missing.gguf") as server:
        assert server.wait() == 2
        assert server.event("load_failed")["message"] == "there is no file missing.gguf"


def test_health_answers_with_the_phase_until_the_model_is_loaded(
    smollm2_path: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []
    with known_port() as port, serving(tmp_path, smollm2_path, port=port):

        def ready() -> bool:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE)
            except httpx.ConnectError:
                return False
            seen.append((answer.status_code, answer.json()))
            return answer.status_code == 200

        assert eventually(ready)
    assert {status for status, _ in seen} <= {200, 503}
    assert all(body["status"] == "loading" and body["phase"] for status, body in seen[:-1])
    assert seen[-1] == (200, {"status": "ready"})


def test_the_human_log_is_lines_without_a_word_of_what_was_said(model: str, tmp_path: Path) -> None:
    said = "a-word-that-only-this-test-says"
    command = [*PROGRAM, "serve", model, "--port", "0", "--usage-store", "off"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(tmp_path)
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if " ready on " in line:
                url = line.partition("ready on ")[2].split()[0]
                body = {"prompt": said, "max_tokens": 3, "stop": said, "ignore_eos": True}
                models = httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()
                body["model"] = models["data"][0]["id"]
                answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
                assert answer.status_code == 200
                process.send_signal(signal.SIGTERM)
    finally:
        if process.poll() is None and not any(" ready on " in line for line in lines):
            process.kill()
        assert process.wait(PATIENCE) == 0
        process.stderr.close()
    text = "".join(lines)
    assert said not in text
    assert "Traceback" not in text
    assert " loaded " in text
    assert " allocated " in text
    (request,) = [line for line in lines if "/v1/completions" in line]
    assert " anonymous " in request
    assert " 200: " in request
    assert "length" in request


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], "llama.F32"), (["--model-name", "mine"], "mine")],
    ids=["by its file", "as asked"],
)
def test_the_model_is_called_what_whoever_started_the_server_can_guess(
    flags: list[str], expected: str, model: str, tmp_path: Path
) -> None:
    with serving(tmp_path, model, *flags) as server, server.client() as http:
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == [expected]
        body = {"model": expected, "prompt": "Hello", "max_tokens": 1}
        assert http.post("/v1/completions", json=body).status_code == 200


def test_a_model_of_the_catalog_is_called_by_its_name(smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.is_file()
    with serving(tmp_path, "smollm2-135m") as server, server.client() as http:
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["smollm2-135m"]
