"""What an overload found, and whether it is as it must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from soak_report import MIB, Sample, growth, most_growth, sparkline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from serving.crowd import Outcome

ALONE, FULL, OVERLOAD = "alone", "full", "overload"

REFUSED_WITHIN = 0.020
"""Seconds for a refusal, by the server's own clock each, by the client's nearly all."""

RIGHT_WITHIN, RIGHT_SHARE = 0.30, 0.90
"""So many of those who come back as told are let in at once, and could not have come earlier, or
better have come later, by more than this part of the time that they were told."""

KEPT = 1.3
"""A key keeps its latency when its mean is at most so many times that beside a full machine."""


@dataclass(frozen=True)
class Times:
    """Seconds; NaN where there is none."""

    count: int
    mean: float
    median: float
    p95: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Times:
        """What is told of these."""
        found = np.array(list(values), float)
        if not len(found):
            return cls(0, *[float("nan")] * 5)
        cuts = (float(each) for each in np.percentile(found, (50, 95, 99)))
        return cls(len(found), float(found.mean()), *cuts, float(found.max()))

    def __str__(self) -> str:
        parts = (self.median, self.p95, self.p99, self.largest)
        median, p95, p99, largest = (f"{1000 * each:,.1f}" for each in parts)
        return f"median {median}, p95 {p95}, p99 {p99}, largest {largest} ms of {self.count:,}"


@dataclass
class Report:
    """What an overload found; rates are in requests a second.

    `unanswered` clients still waited when it was over. Of the clients that came back as told,
    `at_first_return` were let in the first time, and `right` within the bounds; `spared` is which
    part of the time told they could have come earlier. `good` are the latencies and the times to
    the first token of the key that asks now and then, by phase.
    """

    seconds: float = 0.0
    capacity: float = 0.0
    offered: float = 0.0
    answered: float = 0.0
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unanswered: int = 0
    exit_code: int = 0
    refused_by_client: Times = field(default_factory=lambda: Times.of(()))
    refused_by_server: Times = field(default_factory=lambda: Times.of(()))
    slow_refusals: int = 0
    told_seconds: Times = field(default_factory=lambda: Times.of(()))
    returned: int = 0
    at_first_return: int = 0
    right: int = 0
    spared: Times = field(default_factory=lambda: Times.of(()))
    waited: Times = field(default_factory=lambda: Times.of(()))
    good: dict[str, dict[str, Times]] = field(default_factory=dict)
    good_refused: int = 0
    scrapes: list[float] = field(default_factory=list)
    client_late_seconds: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def finish(
        self,
        outcomes: Mapping[str, list[Outcome]],
        requests: Mapping[str, dict[str, Any]],
        most_wait: float,
    ) -> None:
        """Takes what became of the clients of each key, and what the server logged of requests."""
        for key, all_of_key in outcomes.items():
            own = [each for each in all_of_key if each.phase == OVERLOAD]
            self.keys[key] = {
                "clients": len(own),
                "answered": sum(each.id is not None for each in own),
                "refused once": sum(bool(each.told) for each in own),
                "refusals": sum(len(each.told) for each in own),
                "tokens": sum(each.tokens for each in own if each.id is not None),
            }
            for each in all_of_key:
                if each.fault is not None:
                    (self.faults if each.id is None else self.lost).append(f"{key}: {each.fault}")
        overloaded = [e for each in outcomes.values() for e in each if e.phase == OVERLOAD]
        seconds = [each for outcome in overloaded for each in outcome.refused]
        self.refused_by_client = Times.of(seconds)
        self.slow_refusals = sum(each > REFUSED_WITHIN for each in seconds)
        self.refused_by_server = Times.of(
            requests[id_]["seconds"] for outcome in overloaded for id_ in outcome.refusals
        )
        self._judge_returns(outcomes["obeying"], requests, most_wait)
        for phase in (ALONE, FULL, OVERLOAD):
            own = [e for e in outcomes["good"] if e.phase == phase and e.id is not None]
            self.good[phase] = {
                "latency": Times.of(each.latency for each in own),
                "first token": Times.of(each.first_token for each in own),
            }
        self.good_refused = sum(bool(each.told) for each in outcomes["good"])

    def _judge_returns(
        self, outcomes: list[Outcome], requests: Mapping[str, dict[str, Any]], most_wait: float
    ) -> None:
        """It would have been right to come so much later, or earlier, that the wait is the limit.

        So who waited for less could have come earlier by the rest, and who waited for longer should
        have come later.
        """
        returned = [each for each in outcomes if each.told and each.fault is None]
        self.returned = len(returned)
        self.told_seconds = Times.of(each.told[-1] for each in returned)
        spared, waited = [], []
        for each in returned:
            assert each.id is not None
            wait = requests[each.id]["queue_seconds"]
            first = len(each.told) == 1
            self.at_first_return += first
            waited.append(wait)
            error = (wait - most_wait) / each.told[-1]
            spared.append(max(0.0, -error))
            self.right += first and abs(error) <= RIGHT_WITHIN
        self.spared, self.waited = Times.of(spared), Times.of(waited)

    def kept(self, what: str) -> float:
        """The good key's mean latency or time to the first token, by that beside a full machine."""
        return self.good[OVERLOAD][what].mean / self.good[FULL][what].mean

    def complaints(self) -> list[str]:
        """What is not as it must be."""
        slow = self.refused_by_client.p99 > REFUSED_WITHIN
        slow_server = self.refused_by_server.largest > REFUSED_WITHIN
        share = self.right / self.returned if self.returned else 0.0
        grown = growth(self.samples)
        wrong = {
            f"{len(self.lost)} accepted requests were lost, the first: {self.lost[:1]}": self.lost,
            f"{len(self.faults)} faults, the first: {self.faults[:1]}": self.faults,
            f"{self.unanswered} clients had no answer at the end": self.unanswered,
            f"the server ended with {self.exit_code}": self.exit_code,
            "nobody was refused: this was no overload": not self.refused_by_client.count,
            f"a refusal took the server {1000 * self.refused_by_server.largest:.1f} ms": (
                slow_server
            ),
            f"one refusal in a hundred took {1000 * self.refused_by_client.p99:.1f} ms": slow,
            f"only {share:.0%} of those who came back were told the right time": (
                share < RIGHT_SHARE
            ),
            "the good key did not come in each phase": any(
                not times["latency"].count for times in self.good.values()
            ),
            f"the good key was refused {self.good_refused} times": self.good_refused,
            f"the good key's mean latency is {self.kept('latency'):.2f} times that beside a full "
            "machine": self.kept("latency") > KEPT,
            f"memory grew by {grown / MIB:.1f} MiB": grown > most_growth(self.samples),
        }
        return [text for text, is_wrong in wrong.items() if is_wrong]


def show(report: Report) -> None:
    """What was found, and whether it is as it must be."""
    print(
        f"{report.capacity:.1f} requests a second can be answered; for {report.seconds:.0f} s "
        f"{report.offered:.1f} came, and {report.answered:.1f} were answered"
    )
    for key, counts in report.keys.items():
        print(f"{key}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    late = ", ".join(f"{k} {1000 * v:.1f}" for k, v in report.client_late_seconds.items())
    print(f"refused, by the client: {report.refused_by_client}")
    slow = f"{report.slow_refusals:,} took longer than {1000 * REFUSED_WITHIN:.0f} ms"
    print(f"  {slow}; the client itself woke late by {late} ms")
    print(f"refused, by the server: {report.refused_by_server}")
    print(
        f"of {report.returned:,} that came back as told, {report.at_first_return:,} were let in at "
        f"once, {report.right:,} of them within {RIGHT_WITHIN:.0%}; told: {report.told_seconds}"
    )
    if report.spared.count:
        print(
            f"  they could have come earlier by {report.spared.median:.0%} of that (median), "
            f"{report.spared.p95:.0%} (p95); in the queue they waited: {report.waited}"
        )
    for what in ("latency", "first token"):
        told = ", ".join(
            f"{phase} {1000 * times[what].mean:,.0f} (p95 {1000 * times[what].p95:,.0f})"
            for phase, times in report.good.items()
        )
        print(f"the good key's {what}, mean ms: {told}; kept to {report.kept(what):.2f} times")
    print(f"/metrics: {Times.of(report.scrapes)}")
    for name, scale in (("resident_bytes", MIB), ("waiting", 1), ("running", 1)):
        values = [getattr(sample, name) / scale for sample in report.samples]
        unit = "MiB " if scale == MIB else ""
        print(f"{sparkline(values)} {name}: {unit}{min(values):,.0f} to {max(values):,.0f}")
    print(
        f"memory: {growth(report.samples) / MIB:+.2f} MiB from the second quarter to the last "
        f"(medians); up to {most_growth(report.samples) / MIB:.1f} is flat"
    )
    for complaint in report.complaints() or ["all as it must be"]:
        print(complaint)
