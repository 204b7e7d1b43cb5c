"""What a soak found, and whether it is as it must be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

import numpy as np

MIB = 1 << 20
MOST_GROWTH, MOST_GROWTH_SHARE = 4 * MIB, 0.01
"""Memory is flat when its median over the last quarter of the time is at most so much, or this
part, above that over the second quarter."""


class Latencies:
    """A histogram over the logarithm of seconds: percentiles to 3 %, and it never grows."""

    _FIRST, _LAST, _PER_DECADE = -6, 5, 40

    def __init__(self) -> None:
        self._counts = np.zeros((self._LAST - self._FIRST) * self._PER_DECADE, np.int64)

    def add(self, seconds: float) -> None:
        place = int((math.log10(max(seconds, 1e-9)) - self._FIRST) * self._PER_DECADE)
        self._counts[min(max(place, 0), len(self._counts) - 1)] += 1

    def percentile(self, part: float) -> float | None:
        """The middle of the bin that this percentage of all values reaches; None without any."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), part / 100 * total))
        return float(10 ** ((place + 0.5) / self._PER_DECADE + self._FIRST))


@dataclass(frozen=True)
class Sample:
    """One look at the process; `seconds` since the overload began."""

    seconds: float
    resident_bytes: int
    waiting: int
    running: int


@dataclass
class Report:
    """What a soak found. `lost` answers did not end, `repeated` ones ended more than once."""

    seconds: float = 0.0
    steps: int = 0
    requests_per_second: float = 0.0
    offered_per_second: float = 0.0
    submitted: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    repeated: int = 0
    failures: list[str] = field(default_factory=list)
    preemptions: int = 0
    recomputed_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    left_over: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, dict[str, float | None]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def growth(self) -> int:
        """Resident bytes that came in addition; see `growth`."""
        return growth(self.samples)

    @property
    def most_growth(self) -> int:
        """What still counts as flat."""
        return most_growth(self.samples)

    def complaints(self) -> list[str]:
        """What is not as it must be."""
        wrong = {
            f"{self.lost} answers never ended": self.lost > 0,
            f"{self.repeated} answers ended more than once": self.repeated > 0,
            f"{self.submitted} answers were asked for, {sum(self.ended.values())} ended": (
                self.submitted != sum(self.ended.values())
            ),
            f"requests failed, the first with: {''.join(self.failures[:1])}": bool(self.failures),
            f"the engine is idle, and yet has {self.left_over}": any(self.left_over.values()),
            "nothing was preempted: the cache was not too small": self.preemptions == 0,
            f"memory grew by {self.growth / MIB:.1f} MiB": self.growth > self.most_growth,
        }
        return [text for text, is_wrong in wrong.items() if is_wrong]


def growth(samples: list[Sample]) -> int:
    """Resident bytes: the median of the last quarter of the time less that of the second."""
    return int(_median(samples, 0.75, 1.0) - _median(samples, 0.25, 0.5))


def most_growth(samples: list[Sample]) -> int:
    """What still counts as flat."""
    return max(MOST_GROWTH, int(MOST_GROWTH_SHARE * _median(samples, 0.25, 0.5)))


def _median(samples: list[Sample], first: float, last: float) -> float:
    end = samples[-1].seconds
    return median(
        sample.resident_bytes for sample in samples if first * end <= sample.seconds <= last * end
    )


def sparkline(values: list[float], width: int = 60) -> str:
    """The means of `width` stretches, from the lowest to the highest, in eight heights."""
    means = [float(np.mean(each)) for each in np.array_split(values, min(width, len(values)))]
    low, high = min(means), max(means)
    step = (high - low) / 7 or 1.0
    return "".join("▁▂▃▄▅▆▇█"[int((mean - low) / step)] for mean in means)


def show(report: Report) -> None:
    """What was found, and whether it is as it must be."""
    print(
        f"{report.seconds:.0f} s, {report.steps:,} steps; {report.requests_per_second:.1f} "
        f"requests a second can be answered, {report.offered_per_second:.1f} arrived"
    )
    ended = ", ".join(f"{reason} {count:,}" for reason, count in report.ended.items())
    print(f"{report.submitted:,} answers asked for; ended: {ended}")
    print(
        f"{report.preemptions:,} preemptions, {report.recomputed_tokens:,} tokens computed again; "
        f"{report.reused_tokens:,} tokens reused, {report.generated_tokens:,} generated"
    )
    for name, values in report.latencies.items():
        told = ", ".join(
            f"{part} {'-' if value is None else f'{value:.3f}'}" for part, value in values.items()
        )
        print(f"{name.replace('_', ' ')}: {told} s")
    for name, scale in (("resident_bytes", MIB), ("waiting", 1), ("running", 1)):
        values = [getattr(sample, name) / scale for sample in report.samples]
        unit = "MiB " if scale == MIB else ""
        print(f"{sparkline(values)} {name}: {unit}{min(values):,.0f} to {max(values):,.0f}")
    print(
        f"memory: {report.growth / MIB:+.2f} MiB from the second quarter to the last (medians); "
        f"up to {report.most_growth / MIB:.1f} is flat"
    )
    for complaint in report.complaints() or ["all as it must be"]:
        print(complaint)
