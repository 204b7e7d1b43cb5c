"""Tables of what load.py measured, and whether farthing reached what it should.

python benchmarks/load_table.py load.json
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from points import (
    CASES,
    FARTHING,
    LLAMA,
    OPENVINO,
    SLOTS,
    VOID_BELOW,
    Case,
    expected_rate,
    load_name,
)
from summary import Ratio, median_ceilings
from table import facts, missing, print_results, row_of


@dataclass(frozen=True)
class Target:
    """What farthing's throughput and mean latency should be, by a peer's."""

    throughput: float
    latency: float | None = None


TARGETS = {
    ("q4_1", LLAMA): Target(7.0),
    ("q4_1", OPENVINO): Target(1.8, 0.6),
    ("q4_0", LLAMA): Target(3.0),
}


@dataclass(frozen=True)
class Row:
    """Medians over the rounds of one engine; ratios are farthing's by this one's, in a round."""

    engine: str
    rounds: int
    wall_seconds: float
    tokens_per_second: float
    mean_latency: float
    p95_latency: float
    mean_first_token: float
    throughput: Ratio | None
    latency: Ratio | None

    def verdict(self, target: Target) -> str:
        """Whether the medians of the ratios are what they should be."""
        if self.throughput is None or self.latency is None:
            return "not measured"
        wanted = [(f"{target.throughput:g}x", self.throughput.middle >= target.throughput)]
        if target.latency is not None:
            wanted.append((f"latency {target.latency:g}x", self.latency.middle <= target.latency))
        return ", ".join(f"{text}: {'yes' if reached else 'no'}" for text, reached in wanted)


def summarise(turns: list[dict[str, Any]]) -> list[Row]:
    """A row for each engine, of the turns of one case with one number of slots."""
    rows = []
    ours = {turn["round"]: turn for turn in turns if turn["engine"] == FARTHING}
    for engine in dict.fromkeys(turn["engine"] for turn in turns):
        own = [turn for turn in turns if turn["engine"] == engine]
        pairs = [(ours[turn["round"]], turn) for turn in own if turn["round"] in ours]
        if engine == FARTHING:
            pairs = []
        latencies = [fmean(a["latency_seconds"]) / fmean(b["latency_seconds"]) for a, b in pairs]
        throughputs = [b["wall_seconds"] / a["wall_seconds"] for a, b in pairs]
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
                throughput=spread(throughputs) if pairs else None,
                latency=spread(latencies) if pairs else None,
            )
        )
    return rows


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
                parts.append(load_table(case, slots, turns, ceilings))
    return "\n\n".join([*parts, *facts(results), *missing(results)]) + "\n"


def load_table(
    case: Case, slots: int, turns: list[dict[str, Any]], ceilings: dict[str, float]
) -> str:
    """Medians; ratios with their smallest and largest round, and what they should be."""
    heading = ["engine", "wall s", "output tokens/s", "mean latency s", "p95 latency s"]
    heading += ["mean first token s", "farthing's throughput", "farthing's mean latency", "wanted"]
    lines = [row_of(heading), row_of(["---", *["---:"] * (len(heading) - 1)])]
    rows = summarise(turns)
    notes = [f"Rounds: {min(row.rounds for row in rows)}."]
    for row in rows:
        target = TARGETS.get((case.name, row.engine))
        cells = [row.engine, f"{row.wall_seconds:.2f}", f"{row.tokens_per_second:,.0f}"]
        cells += [f"{row.mean_latency:.2f}", f"{row.p95_latency:.2f}"]
        cells += [f"{row.mean_first_token:.2f}"]
        cells += [str(ratio or "-") for ratio in (row.throughput, row.latency)]
        lines.append(row_of([*cells, "-" if target is None else row.verdict(target)]))
        expected = expected_rate(case.name, load_name(slots), row.engine, ceilings)
        if expected is not None and row.tokens_per_second < VOID_BELOW * expected:
            share = row.tokens_per_second / expected
            notes.append(f"Void: {row.engine} reached {share:.0%} of what it is known for.")
    notes.append(f"Others took at most {max(turn['others'] for turn in turns):.1%} of the machine.")
    late = [turn["client_late_seconds"] for turn in turns if "client_late_seconds" in turn]
    if late:
        p95, most = (1000 * max(each[key] for each in late) for key in ("p95", "largest"))
        notes.append(f"The HTTP client woke late by {p95:.1f} ms (p95), {most:.1f} ms (largest).")
    return "\n".join([f"**{case.label}, {slots} slots**", "", *lines, "", " ".join(notes)])


if __name__ == "__main__":
    print_results(__doc__, markdown)
