"""The engines that are compared, each driven from outside in processes of its own.

An engine is started for a model, measures points one at a time, and is stopped. Between its turns
it does not run: the tools of llama.cpp have ended, and the processes that keep a model loaded are
halted (SIGSTOP), so that no waiting thread takes time from whoever has the turn.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from points import FARTHING, IK, LLAMA, OPENVINO, VLLM, Point

START_SECONDS = 240
TURN_SECONDS = 240


class CannotError(Exception):
    """An engine is missing, or cannot do what is asked; the message says what it said."""


class Engine(Protocol):
    """What is asked of every engine; all methods raise `CannotError`."""

    name: str

    def start(self, model: Path) -> None:
        """Loads a model, or finds out that it cannot."""

    def measure(self, point: Point, seed: int) -> dict[str, Any]:
        """One turn: {"rates": {label: tokens per second}, ...}. Starts what a failure ended."""

    def stop(self) -> None:
        """Ends it."""

    @property
    def group(self) -> int | None:
        """The process group that lives between turns, if there is one."""


class LlamaTools:
    """llama.cpp and ik_llama.cpp: llama-bench for prompts, llama-batched-bench for decoding."""

    group = None

    def __init__(self, name: str, folder: Path, threads: int, one_prompt: bool = False) -> None:
        """`one_prompt`: batches share their prompt, since this one cannot decode others."""
        self.name = name
        self._folder = folder
        self._threads = str(threads)
        self._one_prompt = one_prompt
        self._model = Path()

    def start(self, model: Path) -> None:
        for tool in ("llama-bench", "llama-batched-bench"):
            if not (self._folder / tool).exists():
                raise CannotError(f"it is not set up: there is no {tool}")
        self._model = model

    def measure(self, point: Point, seed: int) -> dict[str, Any]:
        del seed  # its tokens are its own
        rate = self._prefill(point) if point.kind == "prefill" else self._decode(point)
        return {"rates": {self.name: rate}}

    def stop(self) -> None:
        pass

    def _prefill(self, point: Point) -> float:
        output = self._run("llama-bench", "-p", point.prompt, "-n", 0, "-r", 1, "-o", "json")
        # The tool's other messages may stand before it and after it.
        found, _ = json.JSONDecoder().raw_decode(output, output.index("[\n"))
        return float(found[0]["avg_ts"])

    def _decode(self, point: Point) -> float:
        """A long prompt is computed once for all sequences (-pps): it takes minutes otherwise.

        llama.cpp copies it to a cache of its own for each; ik_llama.cpp lets all of them read one.
        """
        share = point.sequences > 1 and (self._one_prompt or point.prompt > 1024)
        shared = ("-pps",) if share else ()
        # A sequence's part of the cache is a multiple of 256.
        cells = -(-point.context // 256) * 256 * point.sequences
        output = self._run(
            "llama-batched-bench",
            *("-c", cells, "-b", 2048, "-ub", 512, *shared),
            *("-npp", point.prompt, "-ntg", point.generated, "-npl", point.sequences),
        )
        heading, row = [], []
        for line in output.splitlines():
            cells_of_line = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if "S_TG t/s" in cells_of_line:
                heading = cells_of_line
            elif heading and len(cells_of_line) == len(heading) and cells_of_line[0].isdigit():
                row = cells_of_line
        if not row:
            raise CannotError(f"llama-batched-bench measured nothing:\n{output[-600:]}")
        return float(row[heading.index("S_TG t/s")])

    def _run(self, tool: str, *arguments: object) -> str:
        command = [str(self._folder / tool), "-m", str(self._model), "-t", self._threads]
        command += map(str, arguments)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TURN_SECONDS)
        except subprocess.TimeoutExpired:
            raise CannotError(f"{tool} took longer than {TURN_SECONDS} seconds") from None
        if done.returncode != 0:
            raise CannotError(f"{tool} failed: {(done.stderr or done.stdout)[-600:]}")
        return done.stdout + done.stderr


class Worker:
    """An engine with a Python interface: a script of `workers/` in that engine's environment."""

    def __init__(
        self, name: str, python: Path, script: str, threads: int, slots: int | None = None
    ) -> None:
        """`slots`: the most texts that run at once, where that is limited."""
        self.name = name
        self._python = python
        self._script = Path(__file__).parent / "workers" / script
        self._settings = [str(number) for number in (threads, slots) if number is not None]
        self._model = Path()
        self._process: subprocess.Popen[str] | None = None

    @property
    def group(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, model: Path) -> None:
        if not self._python.exists():
            raise CannotError("it is not set up: its environment has no interpreter")
        self._model = model
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [self._python, self._script, model, *self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Its own group in the same session: the kernel ends a halted group whose parent died.
            process_group=0,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self._read(START_SECONDS)
        self._signal(signal.SIGSTOP)

    def measure(self, point: Point, seed: int) -> dict[str, Any]:
        if self._process is None:
            self.start(self._model)
        assert self._process is not None
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({**asdict(point), "seed": seed}) + "\n")
        self._process.stdin.flush()
        answer = self._read(TURN_SECONDS)
        self._signal(signal.SIGSTOP)
        return answer

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(seconds)
        line = self._process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        why = "ended" if ready else f"said nothing for {seconds:.0f} seconds"
        self._log.seek(0)
        said = self._log.read()[-600:].strip()
        self.stop()
        raise CannotError(f"its process {why}; it wrote: {said}")


def engines(peers: Path, threads: int) -> dict[str, Engine]:
    """All of them by name. The peers are looked for where docs/benchmarks.md puts them."""
    return {
        FARTHING: Worker(FARTHING, Path(sys.executable), "run_farthing.py", threads),
        LLAMA: LlamaTools(LLAMA, peers / "llama.cpp/build/bin", threads),
        IK: LlamaTools(IK, peers / "ik_llama.cpp/build/bin", threads, one_prompt=True),
        OPENVINO: Worker(OPENVINO, peers / "openvino/bin/python", "run_openvino.py", threads),
        VLLM: Worker(VLLM, peers / "vllm/bin/python", "run_vllm.py", threads),
    }
