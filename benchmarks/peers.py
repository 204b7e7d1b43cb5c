"""farthing beside llama.cpp, ik_llama.cpp, OpenVINO GenAI and vLLM, taking turns in one run.

    python benchmarks/peers.py --peers DIR --json results.json [--only q4_1] [--points decode1]
    python benchmarks/table.py results.json

docs/benchmarks.md says how to set up the peers and what the numbers mean. Within a round every
engine has one turn at a point (A B C D, A B C D, ...), so a machine that slows down slows all of
them, and a ratio is taken within its round. A run may be done in pieces: what results.json has is
not measured again, and --minutes ends a piece in time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import farthing
from engines import CannotError, Engine, engines
from farthing import _native
from farthing.backends.ceilings import Ceilings
from farthing.core import ActivationMode
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.patterns import Rule
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from hugging_face import write_checkpoint
from neighbours import Neighbours, machine
from points import CASES, FARTHING, POINTS, VLLM, Case, Point
from table import markdown

BUFFER_BYTES = 512 << 20


class Results:
    """Everything measured so far, on disk after every point."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path = path
        belongs_to = {
            "format": 1,
            "version": farthing.__version__,
            "native": hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest(),
            "machine": machine(),
            "threads": threads,
        }
        self.data: dict[str, Any] = {**belongs_to, "ceilings": [], "missing": [], "turns": []}
        if path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
            for name, value in belongs_to.items():
                if self.data[name] != value:
                    sys.exit(
                        f"{path} was made with {name} {self.data[name]}, now it is {value}: give "
                        f"another --json"
                    )

    def has(self, case: Case, point: Point, round_: int) -> bool:
        return any(
            (turn["case"], turn["point"], turn["round"]) == (case.name, point.name, round_)
            for turn in self.data["turns"]
        )

    def absent(self, case: Case, point: Point | None, engine: str, why: str) -> None:
        """Notes that an engine cannot take part: in one point, or in any."""
        entry = {
            "case": case.name,
            "point": point.name if point else None,
            "engine": engine,
            "why": why,
        }
        if entry not in self.data["missing"]:
            self.data["missing"].append(entry)
        print(f"  {engine} is missing: {why}", flush=True)

    def present(self, case: Case, engine: str) -> None:
        """Forgets that an engine could not be started for a case: now it could."""
        self.data["missing"] = [
            each
            for each in self.data["missing"]
            if (each["case"], each["point"], each["engine"]) != (case.name, None, engine)
        ]

    def save(self) -> None:
        partial = self._path.with_name(self._path.name + ".part")
        partial.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        partial.rename(self._path)


def model_for(case: Case, engine: str, folder: Path) -> Path:
    """The file that an engine opens for a case, written first where there is none yet."""
    source = catalog.resolve(case.source)
    folder.mkdir(parents=True, exist_ok=True)
    if engine == VLLM:
        target = folder / f"{case.source}.hugging-face"
        if not target.exists():
            write_checkpoint(source, target)
        return target
    if case.requantised is None:
        return source
    target = folder / f"{case.source}.{case.requantised}.gguf"
    if not target.exists():
        # llama.cpp's own quantiser leaves embedding and head in 8 bits beside matrices of 4.
        wide = (Rule("embedding,head", "Q8_0"),) if case.requantised == "Q4_0" else ()
        with open_checkpoint(source) as checkpoint:
            quantize(checkpoint, target, Wish(case.requantised, wide))
    return target


def measure_ceilings(threads: int) -> dict[str, float]:
    """The best of every way of reading memory, and products a second, with as many threads."""
    ceilings = Ceilings(threads, BUFFER_BYTES)
    try:
        reads = [rate for _ in range(3) for rate in ceilings.read().values()]
        products = ceilings.multiply()
    finally:
        ceilings.close()
    return {
        "read_bytes_per_second": max(reads),
        "int8_macs_per_second": products[ActivationMode.INT8],
        "bf16_macs_per_second": products[ActivationMode.BF16],
    }


def run_case(
    case: Case,
    wanted: list[tuple[int, Point]],
    taking_part: dict[str, Engine],
    results: Results,
    arguments: argparse.Namespace,
    deadline: float,
) -> None:
    """All wanted rounds of one case, as far as the time goes."""
    present: list[Engine] = []
    try:
        for name in case.engines:
            if name in taking_part:
                print(f"{case.name}: starting {name}", flush=True)
                try:
                    taking_part[name].start(model_for(case, name, arguments.files))
                    present.append(taking_part[name])
                    results.present(case, name)
                except CannotError as error:
                    if name == FARTHING:
                        sys.exit(f"farthing cannot take part, so there is nothing to do: {error}")
                    results.absent(case, None, name, str(error))
        latest = None
        for round_, point in wanted:
            if time.monotonic() > deadline:
                return
            if round_ != latest:
                ceilings = measure_ceilings(arguments.threads)
                results.data["ceilings"].append(
                    {"case": case.name, "round": round_, "ceilings": ceilings}
                )
                latest = round_
            take_turns(case, point, round_, present, results)
            results.save()
    finally:
        for engine in present:
            engine.stop()
        results.save()


def take_turns(
    case: Case, point: Point, round_: int, present: list[Engine], results: Results
) -> None:
    """One round at one point; an engine that fails has no further turn at that point."""
    turns = []
    cannot = {
        each["engine"]
        for each in results.data["missing"]
        if (each["case"], each["point"]) == (case.name, point.name)
    }
    for engine in present:
        if engine.name in cannot:
            continue
        neighbours = Neighbours(engine.group)
        try:
            answer = engine.measure(point, seed=round_ + 1)
        except CannotError as error:
            results.absent(case, point, engine.name, str(error))
            continue
        turn = {
            "case": case.name,
            "point": point.name,
            "round": round_,
            "engine": engine.name,
            **answer,
            "others": neighbours.share(),
            "load_average": os.getloadavg()[0],
            "time": time.time(),
        }
        turns.append(turn)
        rates = ", ".join(f"{label} {rate:,.0f}" for label, rate in answer["rates"].items())
        others = f"others {turn['others']:.0%}"
        print(f"{case.name} {point.name} round {round_}: {rates} ({others})", flush=True)
    # All at once: a round that is cut short is measured again.
    results.data["turns"] += turns


def choose(text: str, known: dict[str, Any], what: str) -> list[str]:
    """Names from a comma-separated list, in the order of `known`; one ending in * means several."""
    chosen: set[str] = set()
    for each in text.split(","):
        found = {
            name
            for name in known
            if name == each or (each[-1:] == "*" and name.startswith(each[:-1]))
        }
        if not found:
            sys.exit(f"there is no {what} {each!r}; known: {', '.join(known)}")
        chosen |= found
    return [name for name in known if name in chosen]


def parser_of(description: str, output: str, cases: str) -> argparse.ArgumentParser:
    """The options that every run beside peers has; `output` and `cases` are defaults."""
    parser = argparse.ArgumentParser(description=description)
    home = os.environ.get("FARTHING_PEERS")
    parser.add_argument(
        "--peers", type=Path, default=home, help="or FARTHING_PEERS: where they are"
    )
    parser.add_argument("--json", type=Path, default=Path(output), metavar="FILE")
    parser.add_argument("--only", default=cases, metavar="CASES", help=", ".join(CASES))
    parser.add_argument("--engines", default="*", help="a comma-separated part of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after these")
    parser.add_argument(
        "--files",
        type=Path,
        default=Path(tempfile.gettempdir()) / "farthing-benchmarks",
        help="where requantised models are kept",
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    arguments = parser.parse_args()
    if arguments.peers is None:
        parser.error("give --peers DIR or FARTHING_PEERS: see docs/benchmarks.md")
    return arguments


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0], output="results.json", cases="*")
    parser.add_argument("--points", default="*", metavar="POINTS", help=f"{', '.join(POINTS)}, *")
    arguments = parse(parser)
    # An end by a signal is an orderly one too: the engines are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    deadline = time.monotonic() + 60 * arguments.minutes
    known = engines(arguments.peers, arguments.threads)
    taking_part = {name: known[name] for name in choose(arguments.engines, known, "engine")}
    points = [POINTS[name] for name in choose(arguments.points, POINTS, "point")]
    results = Results(arguments.json, arguments.threads)
    for name in choose(arguments.only, CASES, "case"):
        wanted = [
            (round_, point)
            for round_ in range(arguments.rounds)
            for point in points
            if not results.has(CASES[name], point, round_)
        ]
        if wanted and time.monotonic() < deadline:
            run_case(CASES[name], wanted, taking_part, results, arguments, deadline)
    print(markdown(results.data))


if __name__ == "__main__":
    main()
