"""What farthing tune chooses, against the defaults and against other people's load generators.

    python benchmarks/tune.py [--users 8] [--slo server --slo interactive] [--hold 300]

For each objective the settings are found, then two servers, one with the defaults and one with
these, are asked by the same users in turns of a slice each; the one that has no turn is halted.
What counts is the ratio of two slices that follow each other, over all such pairs: who slows the
machine slows both. For the first --held objectives the tuned server then has to hold its own alone
for --hold seconds. The knee of the batch that tune finds is looked for by each generator as well,
with more and more streams: by what it measures from token to token. Whoever asks is pinned to the
last core; servers, and tune, have the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from farthing.files import catalog
from farthing.lab.bench_shapes import gains, knee_index
from farthing.lab.tune_rounds import median_interval
from farthing.plan.objective import objective
from generators import GENERATORS, Load, run
from goodput import QUANTILES, Served, Users, ask_in_turns
from neighbours import Neighbours, machine
from peers import choose
from real_text import RealText
from serving.process import MODEL_NAME, NO_LIMIT, ServerProcess, farthing_server
from table import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.plan.objective import Objective

DEFAULTS, TUNED = "the defaults", "tuned"
SLOS = ("server", "interactive", "ttft=1s,tpot=60ms")
DISTURBED = 0.1
"""Where others take more of the machine, no figure says anything of a server."""

KNEE_PROMPT, KNEE_OUTPUT = 32, 128
"""Short prompts: between tokens a generator sees steps that decode, and little else."""


@dataclass(frozen=True)
class Cores:
    """Who runs where."""

    servers: tuple[int, ...]
    client: int

    def as_server(self) -> None:
        """What is started from now on runs on the servers' cores."""
        os.sched_setaffinity(0, self.servers)

    def as_client(self) -> None:
        """What is started from now on runs on the last core, and so does this process."""
        os.sched_setaffinity(0, (self.client,))


def tune(
    arguments: argparse.Namespace,
    cores: Cores,
    slo: str,
    users: int,
    lengths: list[str],
    file: Path,
) -> dict[str, Any]:
    """What `farthing tune` says, the settings being in `file` where it ends with 0."""
    command = [sys.executable, "-m", "farthing", "tune", arguments.model, "--json"]
    command += ["--slo", slo, "--users", str(users), *lengths, "--output", str(file)]
    command += ["--seconds", str(arguments.tune_seconds)]
    cores.as_server()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    cores.as_client()
    if not done.stdout:
        sys.exit(f"farthing tune failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tuned_server(file: Path, store: Path, *flags: str) -> ServerProcess:
    """`farthing serve` as the file says."""
    settings = ["--config", str(file), "--model-name", MODEL_NAME, "--log-format", "json"]
    settings += ["--usage-store", str(store / "tuned.sqlite"), *flags]
    command = [sys.executable, "-m", "farthing", "serve", *settings]
    return ServerProcess("farthing serve", lambda port: [*command, "--port", str(port)])


def side_by_side(
    arguments: argparse.Namespace,
    cores: Cores,
    file: Path,
    store: Path,
    text: RealText,
    hold: float,
) -> tuple[dict[str, list[Served]], Served]:
    """What both servers gave in each slice, and the tuned one in `hold` seconds."""
    found: dict[str, list[Served]] = {DEFAULTS: [], TUNED: []}
    held = Served([])
    servers: dict[str, ServerProcess] = {}
    cores.as_server()
    try:
        servers[DEFAULTS] = farthing_server(arguments.model, len(cores.servers), store=store)
        servers[DEFAULTS].halt()
        servers[TUNED] = tuned_server(file, store)
        servers[TUNED].halt()
        cores.as_client()
        for number in range(arguments.slices):
            # Each begins as often as the other.
            for name in (DEFAULTS, TUNED) if number % 2 == 0 else (TUNED, DEFAULTS):
                found[name].append(
                    slice_of(servers[name], arguments, text, arguments.seconds, number)
                )
        servers.pop(DEFAULTS).stop()
        if hold:
            held = slice_of(servers[TUNED], arguments, text, hold, 0)
    finally:
        cores.as_client()
        for server in servers.values():
            server.stop()
    return found, held


def slice_of(
    server: ServerProcess,
    arguments: argparse.Namespace,
    text: RealText,
    seconds: float,
    seed: int,
) -> Served:
    lengths = [(arguments.prompt_tokens, arguments.output_tokens)]
    server.go_on()
    neighbours = Neighbours(server.pid)
    try:
        users = Users(arguments.users, lengths, text.text, arguments.before, seconds, seed)
        served = ask_in_turns(server.port, users)
        served.others = neighbours.share()
        return served
    finally:
        server.halt()


def together(slices: Sequence[Served]) -> Served:
    """All of them as one."""
    whole = Served([])
    for each in slices:
        whole.add(each)
    return whole


def ratio_of(slices: dict[str, list[Served]], wanted: Objective) -> dict[str, float]:
    """The tuned server's goodput over the defaults' in the slice beside it: the median, and the
    interval of it (`median_interval`).
    """
    pairs = zip(slices[TUNED], slices[DEFAULTS], strict=True)
    ratios = [
        tuned.goodput(wanted) / max(defaults.goodput(wanted), 1e-9) for tuned, defaults in pairs
    ]
    low, high = median_interval(ratios)
    return {"median": median(ratios), "low": low, "high": high}


def told(served: Served, wanted: Objective) -> list[str]:
    """Cells of a table."""
    cells = [f"{served.goodput(wanted):,.1f}", f"{served.throughput:,.1f}"]
    cells.append(f"{served.share(wanted):.1%} of {len(served.answers):,}")
    cells += [
        " / ".join(f"{1000 * each:,.0f}" for each in served.quantiles(figure))
        for figure in ("ttft", "tpot")
    ]
    cells.append(", ".join(f"{count} {name}" for name, count in served.faults.items()) or "none")
    cells.append(f"{served.others:.0%}")
    return cells


def facts_of(served: Served, wanted: Objective) -> dict[str, Any]:
    return {
        "goodput": served.goodput(wanted),
        "tokens_per_second": served.throughput,
        "requests": len(served.answers),
        "in_time": served.share(wanted),
        "seconds": served.seconds,
        "ttft_quantiles": served.quantiles("ttft"),
        "tpot_quantiles": served.quantiles("tpot"),
        "faults": served.faults,
        "others": served.others,
    }


def of_objectives(
    arguments: argparse.Namespace, cores: Cores, folder: Path
) -> list[dict[str, Any]]:
    """One result for each objective; prints a table as it goes."""
    text = RealText()
    cuts = " / ".join(f"p{100 * cut:.0f}" for cut in QUANTILES)
    heading = ["", "tokens/s in time", "tokens/s", "in time", f"first token ms, {cuts}"]
    heading += [f"between tokens ms, {cuts}", "faults", "others took"]
    lengths = ["--prompt-tokens", str(arguments.prompt_tokens)]
    lengths += ["--output-tokens", str(arguments.output_tokens)]
    results = []
    for number, slo in enumerate(arguments.slo):
        wanted, file = objective(slo), folder / f"{number}.toml"
        found = tune(arguments, cores, slo, arguments.users, lengths, file)
        print(f"\n**{slo}**, {arguments.users} users", flush=True)
        if not found["kept"]:
            nearest = found["nearest"]
            print(
                f"tune: out of reach; {found['reachable_users']} users can have it, nearest first "
                f"token {nearest['ttft']:.3f} s, step {nearest['tpot']:.4f} s"
            )
            results.append({"slo": slo, "tune": found})
            continue
        settings = ", ".join(f"{k} {v}" for k, v in found["settings"].items() if k != "model")
        if found["forecast"]["usual"]:
            settings += " (the defaults)"
        store = folder / f"store-{number}"
        store.mkdir()
        hold = arguments.hold if number < arguments.held else 0.0
        slices, held = side_by_side(arguments, cores, file, store, text, hold)
        served = {name: together(each) for name, each in slices.items()}
        print(f"{settings}\n\n{row_of(heading)}")
        print(row_of(["---", *["---:"] * (len(heading) - 1)]))
        for name, each in served.items():
            print(row_of([name, *told(each, wanted)]))
        if held.answers:
            print(row_of([f"held for {held.seconds:.0f} s", *told(held, wanted)]))
        foretold = found["forecast"]
        cells = [f"{foretold['tokens_per_second']:,.1f}"] * 2 + ["99.0%"]
        cells += [
            f"p99 {1000 * foretold['ttft']:,.0f}",
            f"p99 {1000 * foretold['tpot']:,.0f}",
            "",
            "",
        ]
        print(row_of(["foretold", *cells]))
        ratio = ratio_of(slices, wanted)
        print(
            f"\ntuned over defaults, in time: {ratio['median']:.3f} ({ratio['low']:.3f} to "
            f"{ratio['high']:.3f} by pairs of slices)",
            flush=True,
        )
        measured: dict[str, Any] = {name: facts_of(each, wanted) for name, each in served.items()}
        measured["ratio"] = ratio
        if held.answers:
            measured["held"] = facts_of(held, wanted)
        results.append({"slo": slo, "tune": found, "measured": measured})
    return results


def of_knee(arguments: argparse.Namespace, cores: Cores, folder: Path) -> dict[str, Any]:
    """The knee by tune, and by each generator over powers of two of streams."""
    file = folder / "knee.toml"
    lengths = ["--prompt-tokens", str(KNEE_PROMPT), "--output-tokens", str(KNEE_OUTPUT)]
    found = tune(arguments, cores, "ttft=1000s,tpot=100s", arguments.knee, lengths, file)
    own = {each["batch"]: each["tokens_per_second"] for each in found["curve"]["points"]}
    curves: dict[str, dict[int, float]] = {"tune": own}
    tokenizer = folder / "tokenizer"
    export = ["models", "export-tokenizer", arguments.model, str(tokenizer)]
    subprocess.run([sys.executable, "-m", "farthing", *export], check=True, capture_output=True)
    cores.as_server()
    # One slot for each stream: the generator makes the batch.
    server = tuned_server(file, folder, "--slots", str(max(own)), *NO_LIMIT)
    cores.as_client()
    try:
        for name in choose(arguments.generators, GENERATORS, "generator"):
            generator = GENERATORS[name]
            program = generator.program(arguments.environments)
            curves[name] = {}
            for streams in (each for each in own if each & (each - 1) == 0):
                load = Load(max(2, arguments.waves) * streams, streams, KNEE_PROMPT, KNEE_OUTPUT)
                results = folder / f"{name}-{streams}"
                seen, _ = run(generator, program, server.port, tokenizer, results, load)
                curves[name][streams] = 1000 * streams / seen.between_tokens
    finally:
        server.stop()
    knees = {name: knee_of(curve) for name, curve in curves.items()}
    print("\n**The knee**: tokens/s while streams decode, and what a doubling adds\n")
    print(row_of(["streams", *curves]))
    print(row_of(["---:", *["---:"] * len(curves)]))
    for streams in own:
        print(row_of([str(streams), *cells_of(curves.values(), streams)]))
    print(row_of(["knee", *(str(knee or "not reached") for knee in knees.values())]))
    return {"curves": curves, "knees": knees, "tune": found}


def cells_of(curves: Any, streams: int) -> Iterator[str]:
    for curve in curves:
        if streams not in curve:
            yield ""
            continue
        after = [each for each in curve if each > streams]
        gain = gains([streams, after[0]], [curve[streams], curve[after[0]]])[0] if after else None
        yield f"{curve[streams]:,.0f}" + ("" if gain is None else f" ({gain:+.0%})")


def knee_of(curve: dict[int, float]) -> int | None:
    """The smallest number of streams from which on no doubling pays; None where the last does."""
    index = knee_index(gains(list(curve), list(curve.values())))
    return None if index is None else list(curve)[index]


def verdicts(results: list[dict[str, Any]], knee: dict[str, Any] | None) -> list[str]:
    """What is not as it should be."""
    wrong = []
    for each in results:
        measured = each.get("measured")
        if measured is None:
            continue
        # Where the defaults were chosen, it is two turns of the same that differ.
        if measured["ratio"]["high"] < 1 and not each["tune"]["forecast"]["usual"]:
            wrong.append(f"{each['slo']}: the defaults give more in time")
        held = measured.get("held", measured[TUNED])
        others = max(
            measured[name]["others"] for name in (DEFAULTS, TUNED, "held") if name in measured
        )
        if others > DISTURBED:
            wrong.append(f"{each['slo']}: others took {others:.0%} of the machine: run it again")
        if held["in_time"] < 0.99:
            wrong.append(f"{each['slo']}: {held['in_time']:.1%} of the requests were in time")
    if knee is not None:
        known = list(knee["curves"]["tune"])
        own = knee["knees"]["tune"] or max(known)
        for name, found in knee["knees"].items():
            found = found or max(known)
            if not own / 2 <= found <= own * 2:
                wrong.append(f"the knee is at {own} by tune and at {found} by {name}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--slo", action="append", help=f"default {', '.join(SLOS)}")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--tune-seconds", type=float, default=45.0)
    parser.add_argument("--slices", type=int, default=6, help="turns of each server")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a slice")
    parser.add_argument("--before", type=float, default=5.0, help="seconds in which users come")
    parser.add_argument("--hold", type=float, default=300.0, help="seconds; 0 for none")
    parser.add_argument("--held", type=int, default=1, help="objectives that are held, the first")
    parser.add_argument("--knee", type=int, default=16, help="look up to twice it; 0 for none")
    parser.add_argument("--waves", type=int, default=4, help="requests of each stream at the knee")
    parser.add_argument("--generators", default="*", help="aiperf, guidellm: a part of them")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(tempfile.gettempdir()) / "farthing-benchmarks" / "generators",
        help="where they are installed",
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.model = str(catalog.resolve(arguments.model))
    arguments.slo = arguments.slo or list(SLOS)
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        sys.exit("whoever asks needs a core of its own, and there is one in all")
    cores = Cores(tuple(available[:-1]), available[-1])
    cores.as_client()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = of_objectives(arguments, cores, folder)
        knee = of_knee(arguments, cores, folder) if arguments.knee else None
    wrong = verdicts(results, knee)
    print("\n" + "\n".join(wrong or ["all as foretold"]))
    if arguments.json is not None:
        facts = {"machine": machine(), "objectives": results, "knee": knee, "complaints": wrong}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
