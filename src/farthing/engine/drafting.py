"""What --speculate can ask for, and the Speculation that it becomes."""

from __future__ import annotations

from farthing.core import SPECULATIONS, RequestError
from farthing.engine.lookup import LookupDrafter
from farthing.engine.speculate import Speculation


def speculation_of(name: str) -> Speculation | None:
    """What one of `SPECULATIONS` asks for; raises `RequestError` for another name."""
    if name not in SPECULATIONS:
        known = ", ".join(SPECULATIONS)
        raise RequestError(f"speculate must be one of {known}, not {name!r:.40}")
    return None if name == "off" else Speculation(LookupDrafter())
