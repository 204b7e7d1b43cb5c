"""The answer of /usage."""

from __future__ import annotations

from typing import Literal

import msgspec


class UsageSums(msgspec.Struct, kw_only=True):
    """`cached_tokens` of the prompts needed no computing; `cost` is of the `machine_seconds`."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    machine_seconds: float
    cost: float


class UsageEntry(UsageSums, kw_only=True):
    """What a key used of a model in a day, in UTC."""

    day: str
    key: str
    model: str


class UsageReport(msgspec.Struct, kw_only=True):
    """From the day `since` to the day `until`, both included.

    Not `lasting`: it is kept in memory, and lost when the server ends.
    """

    object: Literal["usage"] = "usage"
    since: str
    until: str
    currency: str
    price_per_hour: float
    lasting: bool
    data: list[UsageEntry]
    total: UsageSums
