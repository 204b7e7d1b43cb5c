"""Commands where there is no home, or none that can be used: an empty environment is enough."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import tiny
from cli.serve_process import PATIENCE
from engine.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).parents[2] / "src"
_DROP_BOUNDING, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2


def as_other_users() -> None:
    """Before a command starts: the superuser is refused what permissions refuse, too."""
    if sys.platform != "linux":
        return
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(_DROP_BOUNDING, capability, 0, 0, 0)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "home"
    if request.param == "no folder":
        path.write_text("")
    elif request.param != "absent":
        path.mkdir(0o500 if request.param == "read-only" else 0)
    return path


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command with nothing in its environment but that home."""
    (tmp_path / "work").mkdir()
    (tmp_path / "temporary").mkdir()

    def begin(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "farthing", *map(str, arguments)],
            cwd=tmp_path / "work",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(SOURCE),
                "HOME": str(home),
                "TMPDIR": str(tmp_path / "temporary"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_other_users,
        )

    return begin


@pytest.mark.parametrize("home", ["absent", "read-only"], indirect=True)
def test_a_server_starts_and_says_that_usage_is_in_memory(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("serve", tiny.shared("llama"), "--port", "0", "--log-format", "json")
    assert process.stderr is not None
    events = []
    try:
        for line in process.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "ready":
                with httpx.Client(base_url=events[-1]["url"], timeout=PATIENCE) as http:
                    body = {"prompt": "one", "max_tokens": 2}
                    assert http.post("/v1/completions", json=body).status_code == 200
                    assert eventually(lambda: http.get("/usage").json()["total"]["requests"] == 1)
                    assert http.get("/usage").json()["lasting"] is False
                process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
    (warning,) = [each for each in events if each["event"] == "usage_in_memory"]
    assert warning["level"] == "warning"
    assert "--usage-store" in warning["message"]


@pytest.mark.parametrize("home", ["closed", "no folder"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [("run", "one", "--max-tokens", "2"), ("serve", "--check")],
    ids=lambda each: each[0],
)
def test_a_text_is_written_and_a_server_checked(
    arguments: tuple[str, ...], start: Callable[..., subprocess.Popen[str]]
) -> None:
    command, *rest = arguments
    process = start(command, tiny.shared("llama"), *rest)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    assert ("kept in memory" in error) == (command == "serve")


@pytest.mark.parametrize("home", ["read-only"], indirect=True)
def test_usage_in_a_file_that_was_asked_for_is_refused(
    home: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store = home / "usage.sqlite"
    process = start("serve", tiny.shared("llama"), "--port", "0", "--usage-store", store)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert f"usage_store is {store}" in error


@pytest.mark.parametrize("home", ["read-only"], indirect=True)
def test_a_laboratory_keeps_its_work_in_a_temporary_folder(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    model = tiny.shared("llama", "gguf", "Q4_1")
    process = start("lab", "all", model, "--rounds", "1", "--threads", "1")
    kept = tmp_path / "temporary" / f"farthing-{os.getuid()}" / "lab"
    try:
        assert eventually(lambda: list(kept.glob("*.json")) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "set FARTHING_CACHE" in error
    assert "Traceback" not in error
