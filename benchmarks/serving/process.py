"""Servers as processes: farthing's, llama.cpp's and vLLM's, each started, waited for and ended.

A server runs one step of niceness behind its client (and hardly behind anybody else): a client that
has to wait for a processor takes wrong times.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from engines import START_SECONDS, CannotError
from serving.client import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NICENESS = 1
MODEL_NAME = "benchmark"
"""What every server calls its model."""

NO_LIMIT = ("--most-wait-seconds", "3600")
"""Flags of `farthing serve` with which it refuses nobody, as other servers do not."""

LLAMA_CELLS = 256
"""A slot's part of llama.cpp's cache is a multiple of these."""

_KEPT = {"FARTHING_CACHE", "FARTHING_ISA"}
"""What of farthing's own variables holds for a measurement too."""


class ServerProcess:
    """A server that was started: `port` and `pid`, and its log."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], list[str]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`command` is what starts it on a port. Raises `CannotError` if it never is ready."""
        self._name = name
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *command(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Its own group in the same session: the kernel ends a halted group whose parent died.
            process_group=0,
            env={**_environment(), "HF_HUB_OFFLINE": "1", **(environment or {})},
        )
        self.pid = self._process.pid
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._process.poll() is not None:
                raise self.failure("ended")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {START_SECONDS} seconds")
            time.sleep(0.1)

    def halt(self) -> None:
        """From now on it takes no time from others."""
        os.killpg(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It runs again."""
        os.killpg(self.pid, signal.SIGCONT)

    def failure(self, what: str) -> CannotError:
        """Ends it; an error with the end of its log."""
        said = self.log()[-600:].strip()
        self.stop()
        return CannotError(f"{self._name} {what}; it wrote: {said}")

    def log(self) -> str:
        """All that it wrote."""
        self._log.seek(0)
        return self._log.read()

    def end(self, seconds: float) -> int:
        """Asks it to end, and gives its exit code; raises `CannotError` if it takes longer."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {seconds:g} seconds") from None

    def stop(self) -> None:
        """Ends it at once, if it runs."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _ready(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def farthing_server(
    model: Path | str, threads: int, *flags: str, slots: int | None = None, store: Path
) -> ServerProcess:
    """`farthing serve` as it is shipped, its usage kept in the folder `store`."""
    configuration = store / "farthing.toml"
    configuration.touch()
    settings = {
        "--config": configuration,
        "--model-name": MODEL_NAME,
        "--threads": threads,
        "--log-format": "json",
        "--usage-store": store / "usage.sqlite",
        **({} if slots is None else {"--slots": slots}),
    }
    command = [sys.executable, "-m", "farthing", "serve", str(model), *_flags(settings), *flags]
    return ServerProcess("farthing serve", lambda port: [*command, "--port", str(port)])


def llama_server(
    program: Path, model: Path, threads: int, slots: int, context: int
) -> ServerProcess:
    """llama-server; `context` is what one request may take, prompt and answer together."""
    if not program.exists():
        raise CannotError("it is not set up: there is no llama-server")
    cells = -(-context // LLAMA_CELLS) * LLAMA_CELLS
    settings = {
        "--model": model,
        "--host": HOST,
        "--threads": threads,
        "--parallel": slots,
        "--ctx-size": cells * slots,
        # A request that waits for a slot keeps one of these.
        "--threads-http": 80,
        "--cache-ram": 0,
    }
    command = [str(program), *_flags(settings)]
    return ServerProcess("llama-server", lambda port: [*command, "--port", str(port)])


def vllm_server(python: Path, model: Path, threads: int, slots: int, context: int) -> ServerProcess:
    """VLLM's server for OpenAI's API; `model` is a folder with a tokenizer."""
    if not python.exists():
        raise CannotError("it is not set up: its environment has no interpreter")
    settings = {
        "--model": model,
        "--served-model-name": MODEL_NAME,
        "--host": HOST,
        "--dtype": "bfloat16",
        "--max-model-len": context,
        "--max-num-seqs": slots,
    }
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *_flags(settings)]
    command += ["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return ServerProcess("vLLM", lambda port: [*command, "--port", str(port)], environment)


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [str(part) for setting in settings.items() for part in setting]


def _environment() -> dict[str, str]:
    """That of whoever measures, without what is set there for farthing."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith("FARTHING_")
    }
