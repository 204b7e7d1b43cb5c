"""What tokens cost: the price of the machine for an hour, shared out by the time that they take."""

from __future__ import annotations

from dataclasses import dataclass

_MILLION = 1_000_000
_HOUR = 3600.0


@dataclass(frozen=True)
class Prices:
    """For a million tokens each, in whatever money the hour is paid in.

    A cached token is one of a prompt that the cache had: what it costs is that the others attend
    to it.
    """

    prompt: float
    cached: float
    generated: float


def prices(
    per_hour: float, prompt_seconds: float, cached_seconds: float, generated_seconds: float
) -> Prices:
    """Prices where a token of each kind keeps the machine busy for so many seconds."""
    million = per_hour / _HOUR * _MILLION
    return Prices(million * prompt_seconds, million * cached_seconds, million * generated_seconds)
