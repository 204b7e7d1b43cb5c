"""64 requests of very different lengths that arrive at once, in every engine that batches.

    python benchmarks/load.py --peers DIR --json load.json [--only q4_1] [--slots 8,16]

Prompts of 64 tokens of real text; answers of 1,874 tokens in all, the median 18, the longest 231;
8, 16 or 64 of them run at once. Within a round every engine has one turn at the same requests.
farthing is asked in its own process and, served, over HTTP; OpenVINO GenAI in its own process;
llama.cpp's server and vLLM's over HTTP. A run may be done in pieces: what load.json has is not
measured again.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

from engines import Engine, Worker
from farthing.engine.simulate import skewed_lengths
from load_table import markdown
from peers import Results, choose, parse, parser_of, run_case
from points import (
    CASES,
    FARTHING,
    FARTHING_SERVER,
    LLAMA,
    OPENVINO,
    SLOTS,
    VLLM,
    Load,
    load_name,
)
from real_text import RealText
from serving.engine import HttpEngine
from serving.process import NO_LIMIT, farthing_server, llama_server, vllm_server

REQUESTS = 64
PROMPT_TOKENS = 64


def engines(peers: Path, threads: int, slots: int, context: int, store: Path) -> dict[str, Engine]:
    """All that take part, by name, each made to run so many requests at once.

    `context` is what one request may take; `store` a folder for what farthing's server keeps.
    """

    def worker(name: str, python: Path, script: str) -> Worker:
        return Worker(name, python, script, threads, slots)

    llama, vllm = peers / "llama.cpp/build/bin/llama-server", peers / "vllm/bin/python"
    return {
        FARTHING: worker(FARTHING, Path(sys.executable), "run_farthing.py"),
        FARTHING_SERVER: HttpEngine(
            FARTHING_SERVER,
            lambda model: farthing_server(model, threads, *NO_LIMIT, slots=slots, store=store),
        ),
        LLAMA: HttpEngine(
            LLAMA,
            lambda model: llama_server(llama, model, threads, slots, context),
            {"cache_prompt": False},
        ),
        OPENVINO: worker(OPENVINO, peers / "openvino/bin/python", "run_openvino.py"),
        VLLM: HttpEngine(VLLM, lambda model: vllm_server(vllm, model, threads, slots, context)),
    }


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0], output="load.json", cases="q4_1,q4_0")
    parser.add_argument("--slots", default="*", help="requests that run at once; a part of 8,16,64")
    arguments = parse(parser)
    # An end by a signal is an orderly one too: the engines are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    deadline = time.monotonic() + 60 * arguments.minutes
    text, lengths = RealText(), tuple(skewed_lengths())
    # No engine meets a prompt twice, whatever it keeps of the past.
    prompts = [tuple(text.prompts([PROMPT_TOKENS] * REQUESTS)) for _ in range(arguments.rounds)]
    results = Results(arguments.json, arguments.threads)
    chosen = choose(arguments.slots, {str(slots): slots for slots in SLOTS}, "number of slots")
    context = PROMPT_TOKENS + max(lengths)
    for name in choose(arguments.only, CASES, "case"):
        for slots in map(int, chosen):
            loads = [Load.of(slots, each, lengths) for each in prompts]
            wanted = [
                (round_, load)
                for round_, load in enumerate(loads)
                if not results.has(CASES[name], load, round_)
            ]
            if not wanted or time.monotonic() >= deadline:
                continue
            print(f"{name}, {load_name(slots)}", flush=True)
            with tempfile.TemporaryDirectory() as store:
                known = engines(arguments.peers, arguments.threads, slots, context, Path(store))
                taking_part = {
                    each: known[each] for each in choose(arguments.engines, known, "engine")
                }
                run_case(CASES[name], wanted, taking_part, results, arguments, deadline)
    print(markdown(results.data))


if __name__ == "__main__":
    main()
