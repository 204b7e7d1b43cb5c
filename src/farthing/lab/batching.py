"""Many requests at once: what a batch gains until its knee, and continuous over static batching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.engine.cost import StepCost
from farthing.engine.foretold import foretell
from farthing.engine.limits import Policy
from farthing.engine.simulate import Batching, Job, Outcome, simulate, skewed_lengths
from farthing.lab.batching_gains import (
    SLOWER,
    Arrivals,
    Gain,
    GainSpread,
    Moves,
    draw_gains,
    full_step_seconds,
)
from farthing.lab.batching_served import LoadServer
from farthing.lab.batching_tables import (
    SAME_COST,
    curve_table,
    gain_table,
    served_table,
    spread_table,
)
from farthing.lab.bench import bench, buffer_bytes
from farthing.lab.bench_points import Points
from farthing.lab.drift import drift_of
from farthing.plan.machine import available_memory
from farthing.plan.memory import plan_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.engine.foretold import Foretold
    from farthing.engine.simulate import CostOfStep
    from farthing.lab.subject import Subject
    from farthing.lab.table import Table

SEQUENCES = (1, 2, 4, 8, 16, 32)
SLOTS = 8
PROMPT_TOKENS = 8
"""Short: what is compared is how answers share steps."""

SERVED_ARRIVALS = (Arrivals(0), Arrivals(6))
DRAWN_ARRIVALS = (Arrivals(0), Arrivals(4), Arrivals(6), Arrivals(6, poisson=True))
DRAWS = 24
MOST_SERVED_ROUNDS = 2
"""Each takes as long as four loads."""


def measure(subject: Subject) -> Iterator[Table]:
    """The curve and its knee; a load served both ways; many such loads, simulated."""
    yield curve(subject)
    cost = StepCost()
    yield from served(subject, cost)
    yield spread(subject, cost)


def curve(subject: Subject) -> Table:
    """Decoding of 1 to 32 sequences, beside the machine's ceilings."""
    from farthing.backends.ceilings import Ceilings

    points = Points((), (), SEQUENCES)
    context, sequences = points.needs(subject.model.config.context_length)

    def tell(what: str) -> None:
        subject.progress.phase(what)
        subject.gauge.look()

    with subject.native(context, sequences) as backend:
        ceilings = Ceilings(subject.threads, buffer_bytes(available_memory()))
        try:
            result = bench(
                backend,
                ceilings,
                subject.model.program,
                backend.plan,
                points,
                repeats=subject.rounds,
                seed=subject.seed,
                progress=tell,
            )
        finally:
            ceilings.close()
    return curve_table(result, drift_of(subject.gauge.taken))


def served(subject: Subject, cost: StepCost) -> Iterator[Table]:
    """Serves one load both ways, all at once and staggered; `cost` learns from another."""
    random = np.random.default_rng(subject.seed)
    vocabulary = subject.model.program.vocabulary_size

    def take_prompt(count: int) -> Sequence[int]:
        return [int(token) for token in random.integers(0, vocabulary, count)]

    lengths = skewed_lengths(subject.seed)
    longest = PROMPT_TOKENS + max(lengths)
    rounds = min(subject.rounds, MOST_SERVED_ROUNDS)
    gains: dict[str, list[tuple[Gain, Gain]]] = {str(each): [] for each in SERVED_ARRIVALS}
    outcomes: dict[str, dict[Batching, list[Outcome]]] = {
        str(each): {batching: [] for batching in Batching} for each in SERVED_ARRIVALS
    }
    moves: dict[str, Moves] = {}
    backend = subject.open_native(longest, SLOTS + 1)
    server = LoadServer(backend, subject.tokenizer, SLOTS, take_prompt)
    with server.engine:
        subject.progress.phase("serve a load to learn what steps cost")
        other = skewed_lengths(subject.seed + 1)
        server.learn(cost, jobs_of(other, Arrivals(0), 0.0))
        for number in range(1, rounds + 1):
            step_seconds = full_step_seconds(cost.seconds, SLOTS, PROMPT_TOKENS, lengths)
            for arrivals in SERVED_ARRIVALS:
                jobs = jobs_of(lengths, arrivals, step_seconds)
                real, supposed = {}, {}
                for batching in Batching:
                    subject.progress.phase(
                        f"serve {arrivals}, {batching}, round {number} of {rounds}"
                    )
                    subject.gauge.look()
                    real[batching] = server.serve(jobs, batching)
                    supposed[batching] = simulate(
                        jobs, cost.seconds, slots=SLOTS, batching=batching
                    )
                    outcomes[str(arrivals)][batching].append(real[batching])
                slower = {
                    batching: simulate(jobs, _slower(cost), slots=SLOTS, batching=batching)
                    for batching in Batching
                }
                moves[str(arrivals)] = Moves.of(supposed, slower)
                gains[str(arrivals)].append(
                    (
                        Gain.of(supposed[Batching.STATIC], supposed[Batching.CONTINUOUS]),
                        Gain.of(real[Batching.STATIC], real[Batching.CONTINUOUS]),
                    )
                )
    yield served_table(outcomes, SLOTS, moves)
    yield gain_table(gains, moves, drift_of(subject.gauge.taken))


def _slower(cost: StepCost) -> CostOfStep:
    return lambda shape: SLOWER * cost.seconds(shape)


def spread(subject: Subject, cost: StepCost) -> Table:
    """Simulates many draws of such a load: at one cost for all steps, at what was learned, and at
    what the model's stored profile foretells, where there is one.
    """
    costs: dict[str, tuple[CostOfStep, int, float | None]] = {
        SAME_COST: (lambda shape: 1.0, 1, None),
        "learned here": (cost.seconds, PROMPT_TOKENS, Policy.latency_target),
    }
    foretold = foretold_of(subject)
    if foretold is not None:
        name = f"profile of {foretold.measured}"
        costs[name] = foretold.cost().seconds, PROMPT_TOKENS, Policy.latency_target
    found = {}
    for name, (of_step, prompt, latency_target) in costs.items():
        for arrivals in DRAWN_ARRIVALS:
            gains = []
            for draw in range(DRAWS):
                subject.progress.phase(f"simulate {arrivals}, {name}, draw {draw + 1} of {DRAWS}")
                gains += draw_gains(
                    subject.seed + draw,
                    cost=of_step,
                    arrivals=arrivals,
                    slots=SLOTS,
                    prompt=prompt,
                    latency_target=latency_target,
                    padded=(False,),
                )
            found[name, arrivals] = GainSpread.of(gains)
    return spread_table(found, DRAWS)


def foretold_of(subject: Subject) -> Foretold | None:
    """What the stored profile of the model, as it runs here, says of steps."""
    from farthing.backends.ceilings import tier_and_kernels

    plan = plan_memory(
        subject.model,
        slots=SLOTS,
        kv_dtype=subject.kv_dtype,
        activations=subject.activations,
        threads=subject.threads,
    )
    isa, kernels = tier_and_kernels()
    return foretell(subject.model, plan, isa=isa, kernels=kernels)[0]


def jobs_of(lengths: Sequence[int], arrivals: Arrivals, step_seconds: float) -> list[Job]:
    """A request for each length of output, in order of arrival."""
    times = arrivals.times(len(lengths), step_seconds, seed=0)
    return [Job(PROMPT_TOKENS, length, time) for length, time in zip(lengths, times, strict=True)]
