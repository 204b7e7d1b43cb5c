"""From single turns to medians, ratios and verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from points import CASES, FARTHING, POINTS, VOID_BELOW, Case, Point, expected_rate


@dataclass(frozen=True)
class Ratio:
    """farthing's rate by a peer's, round by round: the median, the smallest, the largest."""

    middle: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.smallest:.2f} to {self.largest:.2f})"


@dataclass(frozen=True)
class Row:
    """One case at one point: medians and ratios by label, and why it counts for nothing, if so.

    `others` is the largest part of the machine that others took during a turn.
    """

    case: Case
    point: Point
    rounds: int
    rates: dict[str, float]
    ratios: dict[str, Ratio]
    others: float
    void: tuple[str, ...]

    @property
    def best_peer(self) -> str | None:
        """The peer with the highest rate."""
        return max(self.ratios, key=lambda name: self.rates[name], default=None)


def median_ceilings(results: dict[str, Any]) -> dict[str, float]:
    """Medians of what was measured between the rounds."""
    names = {name for each in results["ceilings"] for name in each["ceilings"]}
    return {
        name: median(
            each["ceilings"][name] for each in results["ceilings"] if name in each["ceilings"]
        )
        for name in sorted(names)
    }


def summarise(results: dict[str, Any]) -> list[Row]:
    """A row for each case and point that has a round, in the order of points.py."""
    ceilings = median_ceilings(results)
    rows = []
    for case in CASES.values():
        for point in POINTS.values():
            turns = [
                turn
                for turn in results["turns"]
                if (turn["case"], turn["point"]) == (case.name, point.name)
            ]
            if turns:
                rows.append(_row(case, point, turns, ceilings))
    return rows


def _row(case: Case, point: Point, turns: list[dict[str, Any]], ceilings: dict[str, float]) -> Row:
    rounds: dict[int, dict[str, float]] = {}
    for turn in turns:
        rounds.setdefault(turn["round"], {}).update(turn["rates"])
    labels = list(dict.fromkeys(label for rates in rounds.values() for label in rates))
    medians = {
        label: median(rates[label] for rates in rounds.values() if label in rates)
        for label in labels
    }
    ratios, void = {}, []
    for peer in case.engines:
        pairs = [
            rates[FARTHING] / rates[peer]
            for rates in rounds.values()
            if FARTHING in rates and peer in rates
        ]
        if peer == FARTHING or not pairs:
            continue
        ratios[peer] = Ratio(median(pairs), min(pairs), max(pairs))
        expected = expected_rate(case.name, point.name, peer, ceilings)
        if expected is not None and medians[peer] < VOID_BELOW * expected:
            void.append(f"{peer} reached {medians[peer] / expected:.0%} of what it is known for")
    return Row(
        case=case,
        point=point,
        rounds=len(rounds),
        rates=medians,
        ratios=ratios,
        others=max(turn["others"] for turn in turns),
        void=tuple(void),
    )
