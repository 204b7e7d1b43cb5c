"""Markdown tables of what batching.py measured.

python benchmarks/batching_table.py batching.json
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from farthing.engine.simulate import Batching, Clock
from summary import Ratio
from table import print_results, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

THROUGHPUT, GAIN = "tokens/s", "gain"
WANTED_DIFFERENCE = 0.15

CLOCKS = (
    Clock.ARRIVAL_TO_FIRST_TOKEN,
    Clock.ARRIVAL_TO_LAST_TOKEN,
    Clock.ARRIVAL_TO_RETURN,
    Clock.ADMISSION_TO_RETURN,
)
"""Those that are shown; from admission to the last token nobody waits for anybody."""


def markdown(results: dict[str, Any]) -> str:
    """What was served beside its simulation, then what is gained over draws, simulated."""
    rounds = results["rounds"]
    others = max(round_["others"] for round_ in rounds)
    machine = results["machine"]
    about_served = (
        f"Served, and in brackets by simulated: medians of {len(rounds)} rounds; latencies are "
        f"means in milliseconds. {verdict(rounds)} {machine['cpu']}, {machine['cores']} cores, "
        f"{results['threads']} threads; others took at most {others:.1%} of the machine in a round."
    )
    about_spreads = (
        "Continuous by static throughput, static by continuous mean latency: medians over draws, "
        "and the middle nine tenths of them. Padded: members of a batch that ended cost on. The "
        "pair: the share of draws with 1.5 to 1.7 times the throughput and, from arrival to "
        "return, more than ten times lower latency."
    )
    spreads = spread_table(results["spreads"])
    return "\n\n".join([served_table(rounds), about_served, spreads, about_spreads]) + "\n"


def served_table(rounds: Sequence[dict[str, Any]]) -> str:
    lines = [row_of(["arrivals", "", THROUGHPUT, *CLOCKS]), row_of(["---"] * 2 + ["---:"] * 5)]
    for arrivals in rounds[0]["arrivals"]:
        for way in (*Batching, GAIN):
            cells = []
            for figure in (THROUGHPUT, *CLOCKS):
                served, ratio = compared(rounds, arrivals, way, figure)
                if way == GAIN:
                    told = f"{served:.2f}x"
                else:
                    told = f"{served * (1 if figure == THROUGHPUT else 1000):,.0f}"
                cells.append(f"{told} ({ratio.middle:.2f})")
            lines.append(row_of([arrivals, way, *cells]))
    return "\n".join(lines)


def compared(
    rounds: Sequence[dict[str, Any]], arrivals: str, way: str, figure: str
) -> tuple[float, Ratio]:
    """The median of what was served, and its ratio to what was simulated in the same round."""
    pairs = [round_["arrivals"][arrivals][way] for round_ in rounds]
    served = [pair["served"][figure] for pair in pairs]
    ratios = [pair["served"][figure] / pair["simulated"][figure] for pair in pairs]
    return median(served), Ratio(median(ratios), min(ratios), max(ratios))


def verdict(rounds: Sequence[dict[str, Any]]) -> str:
    """Which figures of a way of batching are further from the simulation than they may be."""

    def found() -> Iterator[str]:
        for arrivals in rounds[0]["arrivals"]:
            for way in Batching:
                for figure in (THROUGHPUT, *CLOCKS):
                    _, ratio = compared(rounds, arrivals, way, figure)
                    if abs(ratio.middle - 1) > WANTED_DIFFERENCE:
                        yield f"{arrivals}, {way}, {figure}: {ratio}"

    far = list(found())
    if not far:
        return f"All are within {WANTED_DIFFERENCE:.0%}."
    return f"Further than {WANTED_DIFFERENCE:.0%}: {'; '.join(far)}."


def spread_table(rows: Sequence[dict[str, Any]]) -> str:
    heading = ["cost of a step", "prompts", "arrivals", "draws", THROUGHPUT, *CLOCKS, "the pair"]
    lines = [row_of(heading), row_of(["---"] * 3 + ["---:"] * 7)]
    for row in rows:
        cells = [
            row["cost"] + (", padded" if row["padded"] else ""),
            f"{row['prompt']} tokens" if row["prompt"] > 1 else "1 token",
            row["arrivals"],
            f"{row['draws']:,}",
            spread_text(row["throughput"]),
        ]
        cells += [spread_text(row["latency"][clock]) for clock in CLOCKS]
        lines.append(row_of([*cells, f"{row['pair'][Clock.ARRIVAL_TO_RETURN]:.1%}"]))
    return "\n".join(lines)


def spread_text(spread: dict[str, float]) -> str:
    return f"{spread['middle']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"


if __name__ == "__main__":
    print_results(__doc__, markdown)
