"""`farthing serve` as a process of its own, which tests talk to, signal and kill."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from engine.threads import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "import sys, farthing.cli; sys.exit(farthing.cli.main())"]


def environment(home: Path | str, **variables: str) -> dict[str, str]:
    """The environment of a command that must find no configuration of the person who tests."""
    kept = {name: value for name, value in os.environ.items() if name != "FARTHING_CONFIG"}
    return {**kept, "XDG_CONFIG_HOME": str(home), **variables}


@contextmanager
def known_port() -> Iterator[int]:
    """A port for a server to come: nobody listens there, and the system gives it to no other."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class ServerProcess:
    """A server that runs: its log as JSON, where it is, and a client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.other.append(line)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of that kind so far."""
        return [line for line in list(self.lines) if line["event"] == name]

    def event(self, name: str) -> dict[str, Any]:
        """The first line of that kind, once it is there."""
        assert eventually(lambda: self.events(name) or self.process.poll() is not None)
        self._reader.join(0 if self.process.poll() is None else PATIENCE)
        assert self.events(name), f"no line {name!r}: {self.lines} {self.other}"
        return self.events(name)[0]

    @property
    def url(self) -> str:
        """Where it is, once it is ready."""
        return str(self.event("ready")["url"])

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once there is one and all of the log is read."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


@contextmanager
def serving(
    home: Path, model: str | Path, *flags: str, port: int = 0, **variables: str
) -> Iterator[ServerProcess]:
    """A server in a process, on a free port unless given, with its stores in `home`."""
    process = subprocess.Popen(
        [*PROGRAM, "serve", str(model), "--log-format", "json", "--port", str(port), *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env=environment(
            home,
            FARTHING_USAGE_STORE=str(home / "usage.sqlite"),
            FARTHING_THREADS="2",
            **variables,
        ),
    )
    server = ServerProcess(process)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        server.wait()
        assert process.stderr is not None
        process.stderr.close()
