"""Static against continuous batching: simulated at the cost of steps measured here, and served.

    python benchmarks/batching.py [--rounds 5] [--draws 1000] [--json FILE]

64 requests with 8 slots: prompts of 64 tokens of real text, answers of 1,874 tokens in all, the
median 18, the longest 231. In every round the engine serves another load, from which the cost of
steps is learned, and then these requests in both ways, all at once and one every 6 steps. Last,
what continuous batching gains over many draws of such loads, simulated.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batching_table import GAIN, THROUGHPUT, markdown
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.limits import Policy
from farthing.engine.simulate import (
    Batching,
    Clock,
    Job,
    Outcome,
    simulate,
    skewed_lengths,
)
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.batching_gains import (
    Arrivals,
    Gain,
    GainSpread,
    draw_gains,
    full_step_seconds,
)
from farthing.lab.batching_served import LoadServer
from farthing.text.load import load_tokenizer
from neighbours import Neighbours, machine
from real_text import RealText
from steps import default_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.engine.simulate import CostOfStep

SLOTS = 8
PROMPT_TOKENS = 64
STEP_TOKENS = 512
SERVED_ARRIVALS = (Arrivals(0), Arrivals(6))
DRAWN_ARRIVALS = (Arrivals(0), Arrivals(6), Arrivals(6, poisson=True))
SCANNED_ARRIVALS = tuple(Arrivals(steps) for steps in (4, 5, 7, 8))
"""With a tenth of the draws, and short prompts: around them lies the pair that is quoted."""

WARM_UPS = 2


def make_server(threads: int) -> LoadServer:
    """An engine with 8 slots, on its default model; its prompts are real text."""
    backend = default_backend(
        context_length=PROMPT_TOKENS + max(skewed_lengths()),
        sequences=SLOTS + 1,
        threads=threads,
        step_tokens=STEP_TOKENS,
    )
    with open_checkpoint(catalog.resolve(catalog.DEFAULT_MODEL)) as checkpoint:
        tokenizer = load_tokenizer(checkpoint)
    return LoadServer(backend, tokenizer, SLOTS, RealText().take)


def learn(server: LoadServer, cost: StepCost, seed: int) -> None:
    """Serves another load, all at once, whose steps `cost` observes."""
    server.learn(cost, jobs_of(skewed_lengths(seed), Arrivals(0), 0.0))


def jobs_of(lengths: Sequence[int], arrivals: Arrivals, step_seconds: float) -> list[Job]:
    times = arrivals.times(len(lengths), step_seconds, seed=0)
    return [Job(PROMPT_TOKENS, length, time) for length, time in zip(lengths, times, strict=True)]


def figures(outcome: Outcome) -> dict[str, float]:
    """Throughput in tokens a second and mean latencies in seconds."""
    latencies = {str(clock): outcome.mean_latency(clock) for clock in Clock}
    return {THROUGHPUT: outcome.throughput, **latencies}


def gains(static: Outcome, continuous: Outcome) -> dict[str, float]:
    gain = Gain.of(static, continuous)
    return {THROUGHPUT: gain.throughput, **{str(clock): gain.latency[clock] for clock in Clock}}


def serve_round(server: LoadServer, cost: StepCost, number: int) -> dict[str, Any]:
    """Learns, simulates and serves once; by arrivals and batching, "simulated" and "served"."""
    neighbours = Neighbours()
    learn(server, cost, seed=number + 1)
    lengths = skewed_lengths()
    step_seconds = full_step_seconds(cost.seconds, SLOTS, PROMPT_TOKENS, lengths)
    found: dict[str, Any] = {"step_seconds": step_seconds, "arrivals": {}}
    for arrivals in SERVED_ARRIVALS:
        jobs = jobs_of(lengths, arrivals, step_seconds)
        ways: dict[str, dict[str, Any]] = {}
        outcomes: dict[str, dict[Batching, Outcome]] = {"simulated": {}, "served": {}}
        for batching in Batching:
            simulated = simulate(
                jobs, cost.seconds, slots=SLOTS, batching=batching, step_tokens=STEP_TOKENS
            )
            outcomes["simulated"][batching] = simulated
            outcomes["served"][batching] = server.serve(jobs, batching)
        for batching in Batching:
            ways[batching] = {kind: figures(each[batching]) for kind, each in outcomes.items()}
        ways[GAIN] = {
            kind: gains(each[Batching.STATIC], each[Batching.CONTINUOUS])
            for kind, each in outcomes.items()
        }
        found["arrivals"][str(arrivals)] = ways
    return {**found, "others": neighbours.share()}


def one_unit(shape: StepShape) -> float:
    """A cost that is the same for every step."""
    return 1.0


def spreads(cost: StepCost, draws: int, processes: int) -> list[dict[str, Any]]:
    """What is gained over draws of such loads, by cost of steps, prompt and arrivals."""
    latency_target = Policy.latency_target
    costs: list[tuple[str, CostOfStep, int, float | None, tuple[bool, ...]]] = [
        ("the same for every step", one_unit, 1, None, (False,)),
        ("measured", cost.seconds, 1, latency_target, (False, True)),
        ("measured", cost.seconds, PROMPT_TOKENS, latency_target, (False, True)),
    ]
    found = []
    with ProcessPoolExecutor(processes) as pool:
        for name, of_step, prompt, target, padded in costs:
            for arrivals in DRAWN_ARRIVALS + (SCANNED_ARRIVALS if prompt == 1 else ()):
                count = draws if arrivals in DRAWN_ARRIVALS else max(1, draws // 10)
                draw = partial(
                    draw_gains,
                    cost=of_step,
                    arrivals=arrivals,
                    slots=SLOTS,
                    prompt=prompt,
                    latency_target=target,
                    padded=padded,
                )
                drawn = list(pool.map(draw, range(count), chunksize=max(1, count // 20)))
                for static, of_kind in zip(padded, zip(*drawn, strict=True), strict=True):
                    found.append(
                        {
                            "cost": name,
                            "prompt": prompt,
                            "arrivals": str(arrivals),
                            "padded": static,
                            **asdict(GainSpread.of(of_kind)),
                        }
                    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cost = StepCost()
    server = make_server(arguments.threads)
    with server.engine:
        for seed in range(WARM_UPS):
            learn(server, cost, seed=1000 + seed)
        rounds = [serve_round(server, cost, number) for number in range(arguments.rounds)]
    results = {
        "machine": machine(),
        "threads": arguments.threads,
        "rounds": rounds,
        "spreads": spreads(cost, arguments.draws, arguments.threads),
    }
    print(markdown(results), end="")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
