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
import time
from bisect import insort
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from batching_table import GAIN, THROUGHPUT, markdown
from farthing import Engine, SamplingParams
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.limits import Policy
from farthing.engine.simulate import (
    Batching,
    Clock,
    Job,
    Outcome,
    Served,
    simulate,
    skewed_lengths,
)
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.batching import Arrivals, Gain, GainSpread, draw_gains, full_step_seconds
from farthing.text.load import load_tokenizer
from neighbours import Neighbours, machine
from real_text import RealText
from steps import default_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from farthing.backends.native import NativeBackend
    from farthing.core import StepPlan, StepResult
    from farthing.engine.simulate import CostOfStep

SLOTS = 8
PROMPT_TOKENS = 64
STEP_TOKENS = 512
SERVED_ARRIVALS = (Arrivals(0), Arrivals(6))
DRAWN_ARRIVALS = (Arrivals(0), Arrivals(6), Arrivals(6, poisson=True))
SCANNED_ARRIVALS = tuple(Arrivals(steps) for steps in (4, 5, 7, 8))
"""With a tenth of the draws, and short prompts: around them lies the pair that is quoted."""

WARM_UPS = 2


class TimedBackend:
    """A backend that can teach what a step of the whole engine takes.

    That is from the beginning of one to that of the next, with scheduling, texts and readers. So
    there must be no pause while it teaches.
    """

    samples = True

    def __init__(self, backend: NativeBackend) -> None:
        self.steps = 0
        self.vocabulary_size = backend.vocabulary_size
        self.context_length = backend.context_length
        self.total_blocks = backend.total_blocks
        self.max_step_tokens = backend.max_step_tokens
        self.max_step_rows = backend.max_step_rows
        self.identity = backend.identity
        self._backend = backend
        self._cost: StepCost | None = None
        self._last: tuple[StepShape, float] | None = None

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        began = perf_counter()
        self.steps += 1
        if self._cost is not None:
            if self._last is not None:
                self._cost.observe(self._last[0], began - self._last[1])
            self._last = (shape_of(plan), began)
        return self._backend.run(plan, want_logits)

    def teach(self, cost: StepCost | None) -> None:
        """From the next step on, which does not follow upon the last."""
        self._cost = cost
        self._last = None

    def cache_bytes(self) -> NDArray[Any]:
        return self._backend.cache_bytes()

    def close(self) -> None:
        self._backend.close()


def shape_of(plan: StepPlan) -> StepShape:
    return StepShape(
        len(plan.token_ids),
        len(plan.rows),
        int(plan.positions.sum()) + len(plan.token_ids),
        int(plan.positions[plan.starts[1:] - 1].sum()) + len(plan.starts) - 1,
    )


class Server:
    """An engine with 8 slots that serves loads, and a clock for each of their requests."""

    def __init__(self, threads: int) -> None:
        self.backend = TimedBackend(
            default_backend(
                context_length=PROMPT_TOKENS + max(skewed_lengths()),
                sequences=SLOTS + 1,
                threads=threads,
                step_tokens=STEP_TOKENS,
            )
        )
        with open_checkpoint(catalog.resolve(catalog.DEFAULT_MODEL)) as checkpoint:
            tokenizer = load_tokenizer(checkpoint)
        self.engine = Engine(self.backend, tokenizer, policy=Policy(sharing=False, slots=SLOTS))
        self._text = RealText()

    def learn(self, cost: StepCost, seed: int) -> None:
        """Serves another load, all at once, whose steps `cost` observes."""
        self.backend.teach(cost)
        self.serve(jobs_of(skewed_lengths(seed), Arrivals(0), 0.0), Batching.CONTINUOUS)
        self.backend.teach(None)

    def serve(self, jobs: Sequence[Job], batching: Batching) -> Outcome:
        """Serves `jobs`, which come in order, each with a prompt that nobody had before."""
        steps, started = self.backend.steps, perf_counter()
        served: list[Served] = []
        if batching is Batching.CONTINUOUS:
            served = self._serve_together(jobs, started)
            admit(served, SLOTS)
        while len(served) < len(jobs):
            sleep_until(started + jobs[len(served)].arrival)
            now = perf_counter() - started
            batch = [job for job in jobs[len(served) :][:SLOTS] if job.arrival <= now]
            members = self._serve_together(batch, started)
            for member in members:
                member.admitted = now
                member.returned = max(each.last_token for each in members)
            served += members
        return Outcome(tuple(served), self.backend.steps - steps)

    def _serve_together(self, jobs: Sequence[Job], started: float) -> list[Served]:
        """Submits each job when it arrives, and waits for all."""
        submitted = []
        for job in jobs:
            prompt = list(self._text.take(job.prompt))
            sampling = SamplingParams(max_tokens=job.output, ignore_eos=True)
            sleep_until(started + job.arrival)
            now = perf_counter() - started
            submitted.append((job, now, self.engine.submit(prompt, sampling)[0]))
        served = []
        for job, now, stream in submitted:
            timing = stream.result().timing
            first = now + timing.prefill_seconds
            last = first + timing.decode_seconds
            served.append(Served(job, first_token=first, last_token=last, returned=last))
        return served


def jobs_of(lengths: Sequence[int], arrivals: Arrivals, step_seconds: float) -> list[Job]:
    times = arrivals.times(len(lengths), step_seconds, seed=0)
    return [Job(PROMPT_TOKENS, length, time) for length, time in zip(lengths, times, strict=True)]


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - perf_counter()))


def admit(served: Sequence[Served], slots: int) -> None:
    """Fills in when requests that came in this order were admitted, first come, first served.

    The engine does not tell: with its slots taken, a request gets the one that frees when all but
    `slots - 1` of those before it have ended.
    """
    ends: list[float] = []
    for each in served:
        each.admitted = each.job.arrival
        if len(ends) >= slots:
            each.admitted = max(each.admitted, ends[len(ends) - slots])
        insort(ends, each.last_token)


def figures(outcome: Outcome) -> dict[str, float]:
    """Throughput in tokens a second and mean latencies in seconds."""
    latencies = {str(clock): outcome.mean_latency(clock) for clock in Clock}
    return {THROUGHPUT: outcome.throughput, **latencies}


def gains(static: Outcome, continuous: Outcome) -> dict[str, float]:
    gain = Gain.of(static, continuous)
    return {THROUGHPUT: gain.throughput, **{str(clock): gain.latency[clock] for clock in Clock}}


def serve_round(server: Server, cost: StepCost, number: int) -> dict[str, Any]:
    """Learns, simulates and serves once; by arrivals and batching, "simulated" and "served"."""
    neighbours = Neighbours()
    server.learn(cost, seed=number + 1)
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
    server = Server(arguments.threads)
    with server.engine:
        for seed in range(WARM_UPS):
            server.learn(cost, seed=1000 + seed)
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
