"""Load generators of others against farthing's server: aiperf and guidellm, and no error.

    python benchmarks/generators.py [--requests 200] [--concurrency 16] [--environments DIR]

Each is installed in a virtual environment of its own, where it is not yet, and pinned to the last
core, because it eats most of one; the server has the others. What the generator found stands beside
what the server counted itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.files import catalog
from peers import choose
from serving.client import HOST, Connections
from serving.metrics import Metrics, scrape
from serving.process import MODEL_NAME, NO_LIMIT, farthing_server
from table import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENDPOINT = 'endpoint="/v1/chat/completions"'


@dataclass(frozen=True)
class Load:
    """Chats of so many tokens in and out, so many at a time."""

    requests: int
    concurrency: int
    prompt: int
    output: int


@dataclass(frozen=True)
class Found:
    """What one side says of a run; times are means in milliseconds."""

    answered: float
    failed: float
    output_tokens: float
    first_token: float
    latency: float
    between_tokens: float


@dataclass(frozen=True)
class Generator:
    """`requirements` are what its environment needs, one installation after another.

    `command` gives its arguments for a server's address, a folder with the tokenizer, and one for
    its results; `found` reads them there.
    """

    name: str
    requirements: tuple[tuple[str, ...], ...]
    command: Callable[[str, Path, Path, Load], list[str]]
    found: Callable[[Path], Found]

    def program(self, environments: Path) -> Path:
        """Its program, installed first where it is not there. Raises `CalledProcessError`."""
        environment = environments / self.name
        program = environment / "bin" / self.name
        if not program.exists():
            print(f"installing {self.name} into {environment}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
            for packages in self.requirements:
                subprocess.run([*pip, *packages], check=True)
        return program


def aiperf_command(url: str, tokenizer: Path, results: Path, load: Load) -> list[str]:
    return [
        *("profile", "--model", MODEL_NAME, "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(tokenizer), "--extra-inputs", "ignore_eos:true"),
        *("--use-server-token-count", "--per-chunk-usage"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--isl", str(load.prompt), "--isl-stddev", "0", "--osl", str(load.output)),
        *("--workers-max", "1", "--no-gpu-telemetry", "--ui", "none"),
        *("--server-metrics", f"{url}/metrics", "--output-artifact-dir", str(results)),
    ]


def aiperf_found(results: Path) -> Found:
    report = json.loads((results / "profile_export_aiperf.json").read_text(encoding="utf-8"))

    def mean(name: str) -> float:
        return float(report[name]["avg"])

    answered = mean("request_count")
    return Found(
        answered=answered,
        failed=mean("completed_request_count") - answered + len(report["error_summary"]),
        output_tokens=mean("total_usage_completion_tokens"),
        first_token=mean("time_to_first_token"),
        latency=mean("request_latency"),
        between_tokens=mean("inter_token_latency"),
    )


def guidellm_command(url: str, tokenizer: Path, results: Path, load: Load) -> list[str]:
    synthetic = f"prompt_tokens={load.prompt},output_tokens={load.output}"
    return [
        *("run", "--backend", f"kind=openai_http,target={url},model={MODEL_NAME}"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", f"kind=synthetic_text,{synthetic}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--output", f"kind=json,path={results / 'report.json'}", "--disable-console"),
    ]


def guidellm_found(results: Path) -> Found:
    report = json.loads((results / "report.json").read_text(encoding="utf-8"))
    metrics = report["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]

    def of(name: str, figure: str) -> float:
        return float(metrics[name]["successful"][figure])

    return Found(
        answered=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        output_tokens=of("output_token_count", "total_sum"),
        first_token=of("time_to_first_token_ms", "mean"),
        latency=1000 * of("request_latency", "mean"),
        between_tokens=of("inter_token_latency_ms", "mean"),
    )


GENERATORS = {
    each.name: each
    for each in (
        Generator("aiperf", (("aiperf==0.13.0",),), aiperf_command, aiperf_found),
        # torch first and alone: its wheel decides which build of it guidellm sees.
        Generator(
            "guidellm",
            (("torch==2.13.0",), ("guidellm==0.8.1", "torch==2.13.0")),
            guidellm_command,
            guidellm_found,
        ),
    )
}


def counted(before: Metrics, after: Metrics) -> Found:
    """What the server counted between two scrapes."""

    def grown(name: str, *labels: str) -> float:
        return after.total(name, *labels) - before.total(name, *labels)

    def mean(name: str) -> float:
        return 1000 * grown(f"vllm:{name}_sum") / max(1.0, grown(f"vllm:{name}_count"))

    answered = grown("farthing:requests_total", ENDPOINT, 'status="200"')
    return Found(
        answered=answered,
        failed=grown("farthing:requests_total", ENDPOINT) - answered,
        output_tokens=grown("vllm:generation_tokens_total"),
        first_token=mean("time_to_first_token_seconds"),
        latency=mean("e2e_request_latency_seconds"),
        between_tokens=mean("inter_token_latency_seconds"),
    )


def look(port: int) -> Metrics:
    async def once() -> Metrics:
        connections = Connections(port)
        try:
            return await scrape(connections)
        finally:
            connections.close()

    return asyncio.run(once())


def complaints(load: Load, generator: Found, server: Found) -> list[str]:
    """What is not as it must be: every request is answered in full, by both sides' account."""
    wrong = []
    for side, found in (("the generator", generator), ("the server", server)):
        if found.failed or found.answered != load.requests:
            wrong.append(
                f"{side} counts {found.answered:.0f} answers and {found.failed:.0f} failures of "
                f"{load.requests} requests"
            )
        if found.output_tokens != load.requests * load.output:
            wrong.append(
                f"{side} counts {found.output_tokens:.0f} tokens where "
                f"{load.requests * load.output} were wanted"
            )
    return wrong


def markdown(rows: Sequence[tuple[str, Found]]) -> str:
    heading = ["", "answered", "failed", "output tokens", "mean first token ms"]
    heading += ["mean latency ms", "mean between tokens ms"]
    lines = [row_of(heading), row_of(["---", *["---:"] * (len(heading) - 1)])]
    for name, found in rows:
        counts = (found.answered, found.failed, found.output_tokens)
        cells = [f"{each:,.0f}" for each in counts]
        cells += [f"{found.first_token:,.1f}", f"{found.latency:,.1f}"]
        lines.append(row_of([name, *cells, f"{found.between_tokens:,.2f}"]))
    return "\n".join(lines)


def run(
    generator: Generator, program: Path, port: int, tokenizer: Path, results: Path, load: Load
) -> tuple[Found, Found]:
    """What a generator finds, and what the server counts meanwhile; ends where it fails."""
    results.mkdir()
    before = look(port)
    command = generator.command(f"http://{HOST}:{port}", tokenizer, results, load)
    done = subprocess.run([program, *command], cwd=results, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{generator.name} failed: {(done.stdout + done.stderr)[-2000:]}")
    return generator.found(results), counted(before, look(port))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--generators", default="*", help="aiperf, guidellm: a part of them")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(tempfile.gettempdir()) / "farthing-benchmarks" / "generators",
        help="where they are installed",
    )
    arguments = parser.parse_args()
    load = Load(
        arguments.requests, arguments.concurrency, arguments.prompt_tokens, arguments.output_tokens
    )
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("a generator needs a core of its own, and there is one in all")
    chosen = [GENERATORS[name] for name in choose(arguments.generators, GENERATORS, "generator")]
    programs = [each.program(arguments.environments) for each in chosen]
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as store:
        folder = Path(store)
        tokenizer = folder / "tokenizer"
        export = ["models", "export-tokenizer", arguments.model, str(tokenizer)]
        subprocess.run([sys.executable, "-m", "farthing", *export], check=True)
        # What is started from now on runs on the cores that are chosen here.
        os.sched_setaffinity(0, cores[:-1])
        server = farthing_server(arguments.model, len(cores) - 1, *NO_LIMIT, store=folder)
        os.sched_setaffinity(0, cores[-1:])
        try:
            for each, program in zip(chosen, programs, strict=True):
                results = folder / each.name
                found, own = run(each, program, server.port, tokenizer, results, load)
                rows += [(each.name, found), ("the server meanwhile", own)]
                wrong += [f"{each.name}: {text}" for text in complaints(load, found, own)]
        finally:
            server.stop()
    print(markdown(rows))
    print("\n" + "\n".join(wrong or ["no errors"]))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
