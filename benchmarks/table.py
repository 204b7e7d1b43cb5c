"""Markdown tables of what peers.py measured.

python benchmarks/table.py results.json
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from points import CASES, FARTHING, LABELS, LLAMA, STEP_LOOP
from summary import median_ceilings, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from summary import Row


def markdown(results: dict[str, Any]) -> str:
    """A table for each case, then what the numbers belong to, and what is missing and why."""
    parts = [
        case_table(list(rows)) for _, rows in groupby(summarise(results), lambda row: row.case)
    ]
    return "\n\n".join([*parts, *facts(results), *missing(results)]) + "\n"


def case_table(rows: list[Row]) -> str:
    """Medians in tokens per second; ratios with their smallest and largest round."""
    case = rows[0].case
    engines = [name for name in case.engines if any(name in row.rates for row in rows)]
    peers = [name for name in engines if name != FARTHING]
    columns = [FARTHING, STEP_LOOP, *peers]
    heading = ["", *columns]
    heading += [f"to {LLAMA}", "to the best peer"] if len(peers) > 1 else [f"to {LLAMA}"]
    lines = [row_of(heading), row_of(["---", *["---:"] * (len(heading) - 1)])]
    for row in rows:
        best = row.best_peer
        cells = [LABELS[row.point.name] + (" (void)" if row.void else "")]
        cells += [f"{row.rates[name]:,.0f}" if name in row.rates else "-" for name in columns]
        cells.append(str(row.ratios.get(LLAMA, "-")))
        if len(peers) > 1:
            cells.append("-" if best is None else f"{row.ratios[best]} {best}")
        lines.append(row_of(cells))
    rounds = sorted({row.rounds for row in rows})
    note = f"Rounds: {', '.join(map(str, rounds))}. "
    note += f"Others took at most {max(row.others for row in rows):.1%} of the machine in a turn."
    voids = [f"Void: {LABELS[row.point.name]}: {'; '.join(row.void)}." for row in rows if row.void]
    return "\n".join([f"**{case.label}**", "", *lines, "", note, *voids])


def row_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def facts(results: dict[str, Any]) -> list[str]:
    """The machine, and its ceilings in the same run."""
    machine = results["machine"]
    told = f"{machine['cpu']}, {machine['cores']} cores, {results['threads']} threads, "
    told += f"farthing {results['version']}."
    ceilings = median_ceilings(results)
    if ceilings:
        told += " Ceilings, medians: "
        told += ", ".join(f"{name} {value:.3g}" for name, value in ceilings.items()) + "."
    return [told]


def missing(results: dict[str, Any]) -> list[str]:
    """One line for each engine that is not in a table where it belongs."""
    lines = [
        f"- {CASES[each['case']].label}{where(each)}: {each['engine']} is missing: "
        f"{each['why'].splitlines()[-1][:200]}"
        for each in results["missing"]
        if each["why"]
    ]
    return ["\n".join(lines)] if lines else []


def where(absence: dict[str, Any]) -> str:
    return f", {LABELS[absence['point']]}" if absence["point"] else ""


def print_results(description: str, as_markdown: Callable[[dict[str, Any]], str]) -> None:
    """A command that prints the tables of a file of results again."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("results", type=Path)
    print(as_markdown(json.loads(parser.parse_args().results.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    print_results(__doc__, markdown)
