"""The tables of many requests at once: the curve and its knee, and static against continuous."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from farthing.engine.simulate import Batching, Clock
from farthing.lab.batching_gains import PAIR_LATENCY, PAIR_THROUGHPUT
from farthing.lab.bench_shapes import DEFINITION, gains_by_round, knee_words
from farthing.lab.samples import Interval, Samples
from farthing.lab.table import Column, Expectation, Plot, Row, Table, judged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.engine.simulate import Outcome
    from farthing.lab.batching_gains import Arrivals, Gain, GainSpread, Moves
    from farthing.lab.bench import BenchResult
    from farthing.lab.drift import Drift

_MOVED = (
    "where requests do not wait for the machine, their latencies move further than its speed; how "
    "far, and so their intervals, the simulator says"
)

SAME_COST = "the same for every step"

SHOWN_CLOCKS = (
    Clock.ARRIVAL_TO_FIRST_TOKEN,
    Clock.ARRIVAL_TO_LAST_TOKEN,
    Clock.ARRIVAL_TO_RETURN,
    Clock.ADMISSION_TO_RETURN,
)
"""From admission to the last token nobody waits for anybody, so that clock is left out."""


def curve_table(result: BenchResult, drift: Drift) -> Table:
    """Step time and throughput by number of sequences, beside what the ceilings alone need.

    What is judged is what the machine's `drift` leaves as it is.
    """
    batch = result.batch
    seconds = [Samples(each.seconds) for each in batch]
    speeds = [spent.per(each.tokens) for each, spent in zip(batch, seconds, strict=True)]
    by_round = gains_by_round(batch)
    added = [
        Samples(tuple(1 + gain for gain in each), paired=True).shifted(-1).scaled(100)
        for each in by_round
    ]
    rows = tuple(
        (
            each.point,
            spent.scaled(1e3),
            speeds[at],
            None if at == 0 else added[at - 1],
            Samples(each.memory_seconds).scaled(1e3),
            Samples(each.arithmetic_seconds).scaled(1e3),
        )
        for at, (each, spent) in enumerate(zip(batch, seconds, strict=True))
    )
    knee = result.knee
    first, last = batch[0], batch[-1]
    grown = last.tokens_per_second / first.tokens_per_second
    waited = last.step_seconds / first.step_seconds
    if knee is None:
        found = "One point makes no curve."
    else:
        found = f"The knee is {knee_words(knee, last.point)}."
    marks = ((float(knee.sequences), "knee"),) if knee and knee.sequences else ()
    return Table(
        "curve",
        f"Sequences that decode together, each with a context of {result.batch_context}",
        (
            Column("sequences"),
            Column("step, which is each one's wait", "ms", ",.2f"),
            Column("throughput", "tokens/s", ",.0f"),
            Column("the last doubling added", "%", "+.0f"),
            Column("reading alone", "ms", ",.2f"),
            Column("multiplying alone", "ms", ",.2f"),
        ),
        rows,
        f"From {first.point} to {last.point} sequences throughput grows {grown:.1f} times and each "
        f"one's wait {waited:.2f} times. {found}",
        Expectation(
            "throughput grows more than the wait at first, and there is a knee",
            None if knee is None else _as_expected(added[0], knee.within, drift),
        ),
        notes=(f"the knee is {DEFINITION}", "reading and multiplying: at this machine's ceilings"),
        plots=(
            Plot("lines", "sequences", ("throughput",), "log", marks=marks),
            Plot(
                "lines",
                "sequences",
                ("step, which is each one's wait", "reading alone", "multiplying alone"),
                "log",
                "log",
            ),
        ),
    )


def _as_expected(
    first: Samples, within: tuple[int | None, int | None], drift: Drift
) -> bool | None:
    """A doubling that adds s % makes throughput 1 + s / 100 times, and the wait 2 over that.

    Not judged where the intervals leave open whether there is a knee, either.
    """

    def grows_more(added: float) -> bool:
        return (1 + added / 100) ** 2 > 2

    return judged(
        grows_more(first.median) and within[1] is not None,
        not grows_more(first.widened(drift).high) or within == (None, None),
    )


def served_table(
    served: Mapping[str, Mapping[Batching, Sequence[Outcome]]],
    slots: int,
    moves: Mapping[str, Moves],
) -> Table:
    """Loads served both ways, by arrivals."""
    rows: tuple[Row, ...] = tuple(
        (
            arrivals,
            str(batching),
            Samples(tuple(each.throughput for each in rounds)),
            *(
                _moving(
                    [each.mean_latency(c) for each in rounds], moves[arrivals].latency[batching][c]
                )
                for c in SHOWN_CLOCKS
            ),
        )
        for arrivals, ways in served.items()
        for batching, rounds in ways.items()
    )
    at_once = next(iter(served.values()))
    steps = {batching: rounds[-1].steps for batching, rounds in at_once.items()}
    fewer = steps[Batching.CONTINUOUS] < steps[Batching.STATIC]
    return Table(
        "served",
        f"64 requests, 1,874 tokens of output, {slots} slots: served for real",
        (
            Column("arrivals"),
            Column("way"),
            Column("throughput", "tokens/s", ",.0f"),
            *(Column(str(clock), "s", ",.3f") for clock in SHOWN_CLOCKS),
        ),
        rows,
        f"With all at once, static batches take {steps[Batching.STATIC]:,} steps, since each waits "
        f"for its longest member, and continuous batching {steps[Batching.CONTINUOUS]:,}.",
        Expectation("continuous batching needs fewer steps for the same tokens", fewer),
        notes=("latencies are means over the requests", _MOVED),
    )


def gain_table(
    found: Mapping[str, Sequence[tuple[Gain, Gain]]], moves: Mapping[str, Moves], drift: Drift
) -> Table:
    """Continuous by static batching: (simulated, served) gains of each round, by arrivals.

    A loss is one that the machine's `drift` leaves a loss.
    """
    rows: list[Row] = []
    gains: list[Samples] = []
    for arrivals, pairs in found.items():
        served = _gain_samples([real for _, real in pairs], moves[arrivals])
        gains += served
        rows.append((arrivals, "served", *served))
        supposed = [each for each, _ in pairs]
        rows.append((arrivals, "simulated", *_gain_samples(supposed, moves[arrivals])))
    pairs = [pair for each in found.values() for pair in each]
    apart = max(abs(real.throughput / supposed.throughput - 1) for supposed, real in pairs)
    gain = Samples(tuple(real.throughput for _, real in next(iter(found.values()))))
    return Table(
        "gain",
        "Continuous by static batching: throughput gained, latency lessened",
        (
            Column("arrivals"),
            Column("way"),
            Column("throughput", "times", ".2f"),
            *(Column(str(clock), "times less", ",.2f") for clock in SHOWN_CLOCKS),
        ),
        tuple(rows),
        f"Continuous batching gave {gain.median:.2f} times the throughput {next(iter(found))}; the "
        f"simulator's gains in throughput are within {apart:.0%} of the served ones.",
        Expectation(
            "continuous batching gives more throughput and less latency",
            judged(
                all(each.low > 1 for each in gains),
                any(each.widened(drift).high < 1 for each in gains),
            ),
        ),
        notes=(
            "simulated at the cost of steps that was learned from another load served here",
            _MOVED,
        ),
    )


def spread_table(spreads: Mapping[tuple[str, Arrivals], GainSpread], draws: int) -> Table:
    """What is gained over many draws of such a load, by the cost of steps and by arrivals."""
    low, high = PAIR_THROUGHPUT
    clock = Clock.ARRIVAL_TO_RETURN
    rows: list[Row] = []
    for (cost, arrivals), spread in spreads.items():
        shown = [spread.throughput, *(spread.latency[each] for each in SHOWN_CLOCKS[:3])]
        cells = [Interval(each.middle, each.low, each.high) for each in shown]
        rows.append((cost, str(arrivals), *cells, 100 * spread.pair[clock]))
    cost, arrivals = max(
        spreads, key=lambda each: (spreads[each].pair[clock], spreads[each].latency[clock].middle)
    )
    nearest = spreads[cost, arrivals]
    at_once = [spread.pair[clock] for (_, when), spread in spreads.items() if when.steps == 0]
    return Table(
        "spread",
        f"Continuous by static batching over {draws} draws of such a load, simulated",
        (
            Column("cost of a step"),
            Column("arrivals"),
            Column("throughput", "times", ".2f"),
            *(Column(f"latency, {each}", "times", ".2f") for each in SHOWN_CLOCKS[:3]),
            Column("the quoted pair appears", "% of draws", ".0f"),
        ),
        tuple(rows),
        f"The quoted pair, {low} to {high} times the throughput and over {PAIR_LATENCY:.0f} times "
        f"less latency from {clock}, is nearest with {arrivals} and a cost of steps that is "
        f"{cost}: there the medians are {nearest.throughput.middle:.2f} and "
        f"{nearest.latency[clock].middle:.1f}, and it appears in {nearest.pair[clock]:.0%} of the "
        f"draws. With all at once it appears in {max(at_once):.0%}.",
        Expectation(
            "the pair depends on how requests arrive: never with all at once", max(at_once) == 0
        ),
        notes=("medians over draws, and the middle nine tenths",),
    )


def _gain_samples(found: Sequence[Gain], moves: Moves) -> tuple[Samples, ...]:
    throughput = Samples(tuple(each.throughput for each in found), paired=True)
    latencies = (
        replace(_moving([each.latency[clock] for each in found], moves.gain[clock]), paired=True)
        for clock in SHOWN_CLOCKS
    )
    return (throughput, *latencies)


def _moving(values: Sequence[float], times: float) -> Samples:
    """Values that move so many times as far as the machine's speed."""
    return Samples(tuple(values), level=times * median(values))
