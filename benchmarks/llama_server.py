"""llama-server under load: requests that all arrive at once, over HTTP.

The client must not wait for a processor while the server computes, or the times it takes are wrong.
So the server runs at a lower priority (`nice`), and the client takes the time of its own waking up
with every turn: a thread that sleeps a little notes how late it runs again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import quantiles
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import TYPE_CHECKING, Any

from engines import START_SECONDS, TURN_SECONDS, CannotError
from points import LLAMA, Load, Point
from workers.stepping import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
NICENESS = 1
"""The server stands behind its client, and hardly behind anybody else on the machine."""

CELLS = 256
"""A slot's part of the cache is a multiple of these."""

NAP_SECONDS = 0.005

WARM_UP = (((1000, 2000, 3000, 4000),) * 2, (4, 4))
"""Prompts and lengths of a short exchange before the clock starts."""


class LlamaServer:
    """An engine of engines.py that is started with a number of slots and asked over HTTP."""

    name = LLAMA

    def __init__(self, folder: Path, threads: int, slots: int, context: int) -> None:
        """`context` is what one request may take, prompt and answer together."""
        self._server = folder / "llama-server"
        self._threads = threads
        self._slots = slots
        self._context = -(-context // CELLS) * CELLS
        self._process: subprocess.Popen[bytes] | None = None
        self._model = Path()
        self._port = 0

    @property
    def group(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, model: Path) -> None:
        if not self._server.exists():
            raise CannotError("it is not set up: there is no llama-server")
        self._model = model
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = free.getsockname()[1]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by stop
        settings = {
            "--model": model,
            "--host": HOST,
            "--port": self._port,
            "--threads": self._threads,
            "--parallel": self._slots,
            "--ctx-size": self._context * self._slots,
            # A request that waits for a slot keeps one of these.
            "--threads-http": 80,
            "--cache-ram": 0,
        }
        command = ["nice", "-n", str(NICENESS), str(self._server)]
        command += [str(part) for setting in settings.items() for part in setting]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, process_group=0
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            if self._process.poll() is not None:
                raise self._failure("ended")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {START_SECONDS} seconds")
            time.sleep(0.1)
        self._ask(*WARM_UP)
        os.killpg(self._process.pid, signal.SIGSTOP)

    def measure(self, point: Point, seed: int) -> dict[str, Any]:
        del seed  # the point has its prompts
        assert isinstance(point, Load)
        if self._process is None:
            self.start(self._model)
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        self._ask(*WARM_UP)
        with Lateness() as lateness:
            clock = self._ask(point.prompts, point.lengths)
        os.killpg(self._process.pid, signal.SIGSTOP)
        return {**clock.answer(self.name), "client_late_seconds": lateness.seconds}

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._log.close()

    def _ask(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> Clock:
        """All of it at once: every request has its connection before the clock starts."""
        clocks: list[Clock] = []
        barrier = Barrier(len(prompts), lambda: clocks.append(Clock(lengths)), TURN_SECONDS)

        def ask(number: int) -> None:
            try:
                self._request(prompts[number], lengths[number], barrier, number, clocks)
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(len(prompts)) as threads:
            asked = [threads.submit(ask, number) for number in range(len(prompts))]
        # The one that failed first broke the barrier for the others.
        errors = [error for each in asked if (error := each.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, BrokenBarrierError))
        if errors:
            raise self._failure(f"failed a request ({errors[0]!r})") from errors[0]
        return clocks[0]

    def _request(
        self,
        prompt: Sequence[int],
        length: int,
        barrier: Barrier,
        number: int,
        clocks: list[Clock],
    ) -> None:
        body = json.dumps(
            {
                "prompt": prompt,
                "n_predict": length,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "cache_prompt": False,
            }
        )
        connection = HTTPConnection(HOST, self._port, timeout=TURN_SECONDS)
        try:
            connection.connect()
            barrier.wait()
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise HTTPException(f"{response.status}: {response.read(300)!r}")
            for line in response:
                if line.startswith(b"data: "):
                    event = json.loads(line.removeprefix(b"data: "))
                    if event["stop"]:
                        clocks[0].take(number, event["tokens_predicted"])
                        return
                    clocks[0].take(number, 1)
            raise HTTPException("the answer broke off")
        finally:
            connection.close()

    def _healthy(self) -> bool:
        connection = HTTPConnection(HOST, self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _failure(self, what: str) -> CannotError:
        self._log.seek(0)
        said = self._log.read()[-600:].strip()
        self.stop()
        return CannotError(f"llama-server {what}; it wrote: {said}")


class Lateness:
    """How late this process runs when it wants to, while the context is open."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._done = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def seconds(self) -> dict[str, float]:
        """The median, the 95th percentile and the largest."""
        cuts = quantiles(self._late, n=20)
        return {"median": cuts[9], "p95": cuts[18], "largest": max(self._late)}

    def _watch(self) -> None:
        while not self._done.is_set():
            wanted = time.perf_counter() + NAP_SECONDS
            time.sleep(NAP_SECONDS)
            self._late.append(time.perf_counter() - wanted)
