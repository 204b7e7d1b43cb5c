"""Tables of what load.py measured, and whether farthing reached what it should.

python benchmarks/load_table.py load.json
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from points import (
    CASES,
    FARTHING,
    FARTHING_SERVER,
    LLAMA,
    OPENVINO,
    SLOTS,
    VLLM,
    VOID_BELOW,
    expected_rate,
    load_name,
)
from summary import Ratio, median_ceilings
from table import facts, missing, print_results, row_of

if TYPE_CHECKING:
    from points import Case

OURS = (FARTHING, FARTHING_SERVER)


@dataclass(frozen=True)
class Target:
    """What farthing's throughput, mean latency and mean time to first token should be, by a peer's.

    The throughput is to be at least, the times are to be at most, so many times the peer's; None is
    not asked for. It is asked for with these numbers of `slots`.
    """

    throughput: float
    latency: float | None = None
    first_token: float | None = None
    slots: tuple[int, ...] = SLOTS


SERVED = (16, 64)
TARGETS = {
    (FARTHING, "q4_1", LLAMA): Target(7.0),
    (FARTHING, "q4_1", OPENVINO): Target(1.8, 0.6),
    (FARTHING, "q4_0", LLAMA): Target(3.0),
    (FARTHING_SERVER, "q4_1", LLAMA): Target(6.0, 1 / 6, 1 / 4, SERVED),
    (FARTHING_SERVER, "q4_1", OPENVINO): Target(1.5, slots=SERVED),
    (FARTHING_SERVER, "q4_1", VLLM): Target(2.0, slots=SERVED),
    (FARTHING_SERVER, "q4_0", LLAMA): Target(2.8, 1 / 3, 1 / 2, SERVED),
}


@dataclass(frozen=True)
class Row:
    """Medians over the rounds of one engine."""

    engine: str
    rounds: int
    wall_seconds: float
    tokens_per_second: float
    mean_latency: float
    p95_latency: float
    mean_first_token: float


@dataclass(frozen=True)
class Comparison:
    """One of ours by one peer, within the rounds that both have."""

    ours: str
    peer: str
    throughput: Ratio
    latency: Ratio
    first_token: Ratio

    def verdict(self, target: Target) -> str:
        """Whether the medians of the ratios are what they should be."""
        wanted = [(f"{target.throughput:g}x", self.throughput.middle >= target.throughput)]
        for name, most, found in (
            ("latency", target.latency, self.latency),
            ("first token", target.first_token, self.first_token),
        ):
            if most is not None:
                wanted.append((f"{name} {most:.3g}x", found.middle <= most))
        return ", ".join(f"{text}: {'yes' if reached else 'no'}" for text, reached in wanted)


def summarise(turns: list[dict[str, Any]]) -> list[Row]:
    """A row for each engine, of the turns of one case with one number of slots."""
    rows = []
    for engine, by_round in by_engine(turns).items():
        own = list(by_round.values())
        rows.append(
            Row(
                engine=engine,
                rounds=len(own),
                wall_seconds=median(turn["wall_seconds"] for turn in own),
                tokens_per_second=median(turn["rates"][engine] for turn in own),
                mean_latency=median(fmean(turn["latency_seconds"]) for turn in own),
                p95_latency=median(
                    float(np.percentile(turn["latency_seconds"], 95)) for turn in own
                ),
                mean_first_token=median(fmean(turn["first_token_seconds"]) for turn in own),
            )
        )
    return rows


def compare(turns: list[dict[str, Any]]) -> list[Comparison]:
    """Ours by all others, of the turns of one case with one number of slots."""
    engines = by_engine(turns)
    return [
        Comparison(
            ours,
            peer,
            throughput=spread([b["wall_seconds"] / a["wall_seconds"] for a, b in pairs]),
            latency=spread([mean_ratio(a, b, "latency_seconds") for a, b in pairs]),
            first_token=spread([mean_ratio(a, b, "first_token_seconds") for a, b in pairs]),
        )
        for ours in OURS
        for peer in engines
        if peer not in OURS
        and (pairs := [(engines[ours][r], engines[peer][r]) for r in common(engines, ours, peer)])
    ]


def by_engine(turns: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """The turns by engine and round."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for turn in turns:
        found.setdefault(turn["engine"], {})[turn["round"]] = turn
    return found


def common(engines: dict[str, dict[int, dict[str, Any]]], one: str, other: str) -> list[int]:
    """The rounds that both have."""
    return sorted(engines.get(one, {}).keys() & engines.get(other, {}).keys())


def mean_ratio(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> float:
    return fmean(ours[name]) / fmean(theirs[name])


def spread(values: list[float]) -> Ratio:
    return Ratio(median(values), min(values), max(values))


def markdown(results: dict[str, Any]) -> str:
    """A table for each case and number of slots, what they belong to, and what is missing."""
    parts = []
    ceilings = median_ceilings(results)
    for case in CASES.values():
        for slots in SLOTS:
            turns = [
                turn
                for turn in results["turns"]
                if (turn["case"], turn["point"]) == (case.name, load_name(slots))
            ]
            if turns:
                parts.append(f"**{case.label}, {slots} slots**")
                parts.append(load_table(turns))
                if comparisons := compare(turns):
                    parts.append(ratio_table(case, slots, comparisons))
                parts.append(" ".join(notes(case, slots, turns, ceilings)))
    return "\n\n".join([*parts, *facts(results), *missing(results)]) + "\n"


def load_table(turns: list[dict[str, Any]]) -> str:
    """Medians of every engine."""
    heading = ["engine", "wall s", "output tokens/s", "mean latency s", "p95 latency s"]
    heading += ["mean first token s"]
    lines = [row_of(heading), row_of(["---", *["---:"] * (len(heading) - 1)])]
    for row in summarise(turns):
        cells = [row.engine, f"{row.wall_seconds:.2f}", f"{row.tokens_per_second:,.0f}"]
        cells += [f"{row.mean_latency:.2f}", f"{row.p95_latency:.2f}"]
        lines.append(row_of([*cells, f"{row.mean_first_token:.2f}"]))
    return "\n".join(lines)


def ratio_table(case: Case, slots: int, comparisons: list[Comparison]) -> str:
    """Ratios with their smallest and largest round, and what they should be."""
    heading = ["", "throughput", "mean latency", "mean first token", "wanted"]
    lines = [row_of(heading), row_of(["---", *["---:"] * 3, "---"])]
    for each in comparisons:
        target = TARGETS.get((each.ours, case.name, each.peer))
        asked = target is not None and slots in target.slots
        cells = [f"{each.ours} to {each.peer}", str(each.throughput), str(each.latency)]
        cells += [str(each.first_token), each.verdict(target) if target and asked else "-"]
        lines.append(row_of(cells))
    return "\n".join(lines)


def notes(
    case: Case, slots: int, turns: list[dict[str, Any]], ceilings: dict[str, float]
) -> list[str]:
    """What the numbers rest on: rounds, neighbours, and the client's own lateness."""
    rows = summarise(turns)
    told = [f"Rounds: {min(row.rounds for row in rows)}."]
    for row in rows:
        expected = expected_rate(case.name, load_name(slots), row.engine, ceilings)
        if expected is not None and row.tokens_per_second < VOID_BELOW * expected:
            share = row.tokens_per_second / expected
            told.append(f"Void: {row.engine} reached {share:.0%} of what it is known for.")
    told.append(f"Others took at most {max(turn['others'] for turn in turns):.1%} of the machine.")
    late = [turn["client_late_seconds"] for turn in turns if "client_late_seconds" in turn]
    if late:
        p95, most = (1000 * max(each[key] for each in late) for key in ("p95", "largest"))
        told.append(f"The HTTP client woke late by {p95:.1f} ms (p95), {most:.1f} ms (largest).")
    return told


if __name__ == "__main__":
    print_results(__doc__, markdown)
