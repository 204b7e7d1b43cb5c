"""What answers must keep to: how soon they begin, and how fast they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farthing.core import RequestError

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_LONGEST = 86_400.0


@dataclass(frozen=True)
class Objective:
    """Seconds to the first token, and from each token to the next; None where none is asked."""

    ttft: float | None = None
    tpot: float | None = None

    def met(self, ttft: float, tpot: float) -> bool:
        """Whether such times keep to it."""
        return (self.ttft is None or ttft <= self.ttft) and (self.tpot is None or tpot <= self.tpot)

    def __str__(self) -> str:
        parts = (("ttft", self.ttft), ("tpot", self.tpot))
        shown = (f"{name}={shown_time(value)}" for name, value in parts if value is not None)
        return ",".join(shown).replace(" ", "")


NAMED = {
    "patient": Objective(30.0, 0.1),
    "server": Objective(2.0, 0.1),
    "interactive": Objective(0.5, 0.03),
}
"""By the names that `farthing serve` has, too; the last two are MLPerf Inference's limits for a
server of a model of 8 billion parameters.
"""


def objective(text: str) -> Objective:
    """Reads `ttft=2s,tpot=100ms`, one of the two, or a name of `NAMED`. Raises `RequestError`."""
    if text in NAMED:
        return NAMED[text]
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = _TIME.fullmatch(value)
        if name not in ("ttft", "tpot") or name in found or match is None:
            *others, last = NAMED
            raise RequestError(
                f"--slo {text!r:.60}: {part.strip()!r:.40} is no limit; write ttft=2s,tpot=100ms "
                f"(times in s or ms), one of these, {', '.join(others)} or {last}"
            )
        seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
        if not 0 < seconds <= _LONGEST:
            raise RequestError(f"--slo {part.strip()!r:.40} must be above 0 and at most a day")
        found[name] = seconds
    return Objective(**found)


def shown_time(seconds: float) -> str:
    """For people: three digits, in ms below a second."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:,.3g} s"
