"""64 requests of very different lengths that arrive at once, in every engine that batches.

    python benchmarks/load.py --peers DIR --json load.json [--only q4_1] [--slots 8,16]

Prompts of 64 tokens of real text; answers of 1,874 tokens in all, the median 18, the longest 231;
8, 16 or 64 of them run at once. Within a round every engine has one turn at the same requests.
farthing, OpenVINO GenAI and vLLM are asked in their own process, llama-server over HTTP. A run may
be done in pieces: what load.json has is not measured again.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from engines import Engine, Worker
from farthing.engine.simulate import skewed_lengths
from llama_server import LlamaServer
from load_table import markdown
from peers import Results, choose, parse, parser_of, run_case
from points import CASES, FARTHING, LLAMA, OPENVINO, SLOTS, VLLM, Load, load_name
from real_text import RealText

REQUESTS = 64
PROMPT_TOKENS = 64


def engines(peers: Path, threads: int, slots: int, context: int) -> dict[str, Engine]:
    """All that take part, by name, each made to run so many requests at once."""

    def worker(name: str, python: Path, script: str) -> Worker:
        return Worker(name, python, script, threads, slots)

    return {
        FARTHING: worker(FARTHING, Path(sys.executable), "run_farthing.py"),
        LLAMA: LlamaServer(peers / "llama.cpp/build/bin", threads, slots, context),
        OPENVINO: worker(OPENVINO, peers / "openvino/bin/python", "run_openvino.py"),
        VLLM: worker(VLLM, peers / "vllm/bin/python", "run_vllm.py"),
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
    for name in choose(arguments.only, CASES, "case"):
        for slots in map(int, chosen):
            context = PROMPT_TOKENS + max(lengths)
            known = engines(arguments.peers, arguments.threads, slots, context)
            loads = [Load.of(slots, each, lengths) for each in prompts]
            wanted = [
                (round_, load)
                for round_, load in enumerate(loads)
                if not results.has(CASES[name], load, round_)
            ]
            taking_part = {each: known[each] for each in choose(arguments.engines, known, "engine")}
            if wanted and time.monotonic() < deadline:
                print(f"{name}, {load_name(slots)}", flush=True)
                run_case(CASES[name], wanted, taking_part, results, arguments, deadline)
    print(markdown(results.data))


if __name__ == "__main__":
    main()
