"""What HTTP, JSON, tokenising and streaming take of the engine's throughput.

    python benchmarks/overhead.py --json overhead.json [--slots 16,64] [--rounds 5]

The 64 skewed requests of load.py, in the engine's own process and over HTTP in turns, with the same
token ids: completions of token ids, completions of text, and chats. Each round has new texts. The
client shares the machine, so what it takes itself is told too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from engines import Worker
from farthing.engine.simulate import skewed_lengths
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.text.chat import load_chat_template
from neighbours import Neighbours, group_seconds, machine
from peers import choose
from points import FARTHING, FARTHING_SERVER, Load
from real_text import RealText
from serving.client import post
from serving.engine import HttpEngine, streamed
from serving.process import NICENESS, NO_LIMIT, farthing_server
from summary import Ratio
from table import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from engines import Engine
    from farthing.text.chat import ChatTemplate
    from serving.process import ServerProcess

PROMPT_TOKENS = 64
MOST_LOSS = 0.10
"""What HTTP and all that belongs to it may take of the throughput."""

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Texts:
    """The same requests twice: as an engine has them, and as they go over HTTP."""

    ids: tuple[tuple[int, ...], ...]
    bodies: tuple[dict[str, Any], ...]
    path: str

    @staticmethod
    def of_ids(text: RealText, count: int) -> Texts:
        ids = tuple(text.prompts([PROMPT_TOKENS] * count))
        return Texts(ids, tuple({"prompt": each} for each in ids), COMPLETION)

    @staticmethod
    def of_text(text: RealText, count: int) -> Texts:
        pieces = [text.text(PROMPT_TOKENS) for _ in range(count)]
        ids = tuple(tuple(text.tokenizer.encode(each)) for each in pieces)
        return Texts(ids, tuple({"prompt": each} for each in pieces), COMPLETION)

    @staticmethod
    def of_chats(text: RealText, count: int, template: ChatTemplate) -> Texts:
        chats = [[{"role": "user", "content": text.text(PROMPT_TOKENS)}] for _ in range(count)]
        ids = tuple(tuple(template.encode(each)) for each in chats)
        return Texts(ids, tuple({"messages": each} for each in chats), CHAT)

    def requests(self, lengths: Sequence[int]) -> list[bytes]:
        """Whole requests."""
        return [
            post(self.path, {**body, **streamed(length)})
            for body, length in zip(self.bodies, lengths, strict=True)
        ]


def turns(
    texts: Texts, lengths: tuple[int, ...], slots: int, engine: Worker, server: HttpEngine
) -> dict[str, Any]:
    """One turn of each, with the same requests."""
    load = Load.of(slots, texts.ids, lengths)
    requests = texts.requests(lengths)
    found: dict[str, Any] = {}
    for each in (engine, server):
        neighbours, before = Neighbours(each.group), cpu_seconds(each)
        if each is engine:
            answer = engine.measure(load, seed=0)
        else:
            answer = server.measure_requests(requests, lengths)
        found[each.name] = {
            **answer,
            "cpu_seconds": cpu_seconds(each) - before,
            "others": neighbours.share(),
        }
    return found


def cpu_seconds(engine: Engine) -> float:
    """What the processes of an engine have used so far."""
    return 0.0 if engine.group is None else group_seconds(engine.group)


def markdown(results: dict[str, Any]) -> str:
    """A row for each number of slots and way of asking."""
    heading = ["slots", "asked with", "engine tokens/s", "served tokens/s", "lost"]
    heading += ["mean latency", "mean first token", "processor time", "client's processor s"]
    heading.append(f"{MOST_LOSS:.0%} at most")
    lines = [row_of(heading), row_of(["---:", "---", *["---:"] * 7, "---"])]
    for slots in dict.fromkeys(each["slots"] for each in results["turns"]):
        for way in dict.fromkeys(each["way"] for each in results["turns"]):
            rounds = [
                each for each in results["turns"] if (each["slots"], each["way"]) == (slots, way)
            ]
            if rounds:
                lines.append(row_of(cells(slots, way, rounds)))
    about = results["machine"]
    others = max(
        each[name]["others"] for each in results["turns"] for name in (FARTHING, FARTHING_SERVER)
    )
    note = (
        "Medians, and in brackets the smallest and the largest round. Latencies and processor time "
        "are the server's by the engine's; the client's comes in addition. "
        f"{about['cpu']}, {about['cores']} cores, {results['threads']} threads; others took at "
        f"most {others:.1%} of the machine."
    )
    return "\n".join([*lines, "", note]) + "\n"


def cells(slots: int, way: str, rounds: list[dict[str, Any]]) -> list[str]:
    pairs = [(each[FARTHING], each[FARTHING_SERVER]) for each in rounds]

    def ratio(values: list[float]) -> Ratio:
        return Ratio(median(values), min(values), max(values))

    def means(name: str) -> Ratio:
        return ratio([fmean(served[name]) / fmean(engine[name]) for engine, served in pairs])

    lost = ratio([1 - engine["wall_seconds"] / served["wall_seconds"] for engine, served in pairs])
    engine_rate = median(engine["rates"][FARTHING] for engine, _ in pairs)
    served_rate = median(served["rates"][FARTHING_SERVER] for _, served in pairs)
    processor = ratio([served["cpu_seconds"] / engine["cpu_seconds"] for engine, served in pairs])
    client = median(served["client_cpu_seconds"] for _, served in pairs)
    return [
        str(slots),
        way,
        f"{engine_rate:,.0f}",
        f"{served_rate:,.0f}",
        f"{lost.middle:.1%} ({lost.smallest:.1%} to {lost.largest:.1%})",
        str(means("latency_seconds")),
        str(means("first_token_seconds")),
        str(processor),
        f"{client:.2f}",
        "yes" if lost.middle <= MOST_LOSS else "no",
    ]


def measure(
    slots: int,
    ways: dict[str, Callable[[], Texts]],
    lengths: tuple[int, ...],
    model: Path,
    arguments: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Rounds over the ways of asking, with so many requests at once."""
    threads = arguments.threads
    with tempfile.TemporaryDirectory() as store:

        def start(path: Path) -> ServerProcess:
            return farthing_server(path, threads, *NO_LIMIT, slots=slots, store=Path(store))

        engine = Worker(FARTHING, Path(sys.executable), "run_farthing.py", threads, slots)
        server = HttpEngine(FARTHING_SERVER, start)
        try:
            engine.start(model)
            server.start(model)
            assert engine.group is not None
            # Among neighbours the two must have the same rank.
            os.setpriority(os.PRIO_PGRP, engine.group, NICENESS)
            for round_ in range(arguments.rounds):
                for way, make in ways.items():
                    found = turns(make(), lengths, slots, engine, server)
                    rates = ", ".join(
                        f"{name} {found[name]['rates'][name]:,.0f} "
                        f"(others {found[name]['others']:.0%})"
                        for name in found
                    )
                    print(f"{slots} slots, {way}, round {round_}: {rates}", flush=True)
                    yield {"slots": slots, "way": way, "round": round_, **found}
        finally:
            engine.stop()
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", default="16,64", help="how many of the requests run at once")
    parser.add_argument("--ways", default="*", help="ids, text, chat: a part of them")
    parser.add_argument("--requests", type=int, default=64, help="in all, a multiple of 64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # An end by a signal is an orderly one too: the engines are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    model, text = catalog.resolve(catalog.DEFAULT_MODEL), RealText()
    with open_checkpoint(model) as checkpoint:
        template = load_chat_template(checkpoint, text.tokenizer)
    assert template is not None
    lengths = tuple(skewed_lengths()) * (arguments.requests // 64)
    known: dict[str, Callable[[], Texts]] = {
        "ids": lambda: Texts.of_ids(text, len(lengths)),
        "text": lambda: Texts.of_text(text, len(lengths)),
        "chat": lambda: Texts.of_chats(text, len(lengths), template),
    }
    ways = {name: known[name] for name in choose(arguments.ways, known, "way")}
    results: dict[str, Any] = {"machine": machine(), "threads": arguments.threads, "turns": []}
    for slots in map(int, arguments.slots.split(",")):
        for found in measure(slots, ways, lengths, model, arguments):
            results["turns"].append(found)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print("\n" + markdown(results), end="")


if __name__ == "__main__":
    main()
