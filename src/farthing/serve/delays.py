"""What can be in the way of a request, and how long it will be: limits of its key, and the queue.

Each function is given the request that would be accepted (`entry`), and what comes `before` it in
the line of those who were told to come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from farthing.serve.accepted import Accepted, Account, Entry, Load
    from farthing.serve.forecast import Forecast

SOONEST = 0.1
"""Seconds: nobody is told to come back earlier."""

_AIM = 0.9
"""Clients are told to come back when they will have to wait for this part of the limit."""

_OPEN = 0.5
"""While the wait is shorter than this part of the limit, whoever comes is let in: the machine must
not run dry for the sake of those who may come back."""

_TOLERANCE = 0.3
"""For each time that it came back as it was told, a client may wait so much longer than the limit,
as a part of that: clients give up after a few times."""

_SHARE_LEFT = 2.0
"""A key of average weight may have so many times the tokens queued that still fit: so there is
always room for another key's (dynamic thresholds, Choudhury and Hahne 1998)."""


class Delay(NamedTuple):
    """`seconds` until something is not in the way any more, and what that is."""

    seconds: float
    reason: str
    message: str


def by_rate(account: Account, entry: Entry, before: Load) -> Iterator[Delay]:
    """The key's requests and tokens of this minute."""
    now, key = entry.arrived, entry.key
    if account.requests is not None:
        seconds = account.requests.wait(1.0, now, before.requests)
        if seconds > 0:
            yield Delay(
                max(seconds, SOONEST),
                "requests_per_minute",
                f"this key may make {key.requests_per_minute} requests a minute "
                "(requests_per_minute in the file of keys)",
            )
    if account.tokens is not None:
        seconds = account.tokens.wait(entry.load.tokens, now, before.tokens)
        if seconds > 0:
            yield Delay(
                max(seconds, SOONEST),
                "tokens_per_minute",
                f"this key may use {key.tokens_per_minute} tokens a minute "
                "(tokens_per_minute in the file of keys)",
            )


def by_number(
    account: Account, entry: Entry, before: Load, forecast: Forecast, wait: float
) -> Iterator[Delay]:
    """The key's requests at a time, of which the first to end make room for others."""
    most = entry.key.most_running
    if most is None or len(account.entries) + before.requests < most:
        return
    step = forecast.pace.step_seconds
    ends = sorted(each.lacking * step + (0.0 if each.begun else wait) for each in account.entries)
    rounds, at = divmod(int(len(ends) + before.requests - most), len(ends) or 1)
    own = entry.load.output_tokens / entry.load.answers * step
    seconds = (ends[at] if ends else 0.0) + rounds * own
    yield Delay(
        max(seconds, SOONEST),
        "most_running",
        f"this key may have {most} requests at a time (most_running in the file of keys), and "
        f"has {len(account.entries)}",
    )


def by_queue(
    accepted: Accepted,
    account: Account,
    entry: Entry,
    before: Load,
    wait: float,
    limit: int,
    weights: Mapping[str, float],
) -> Iterator[Delay]:
    """The tokens that wait: the key's and all. Who finds none waiting is not in anybody's way."""
    own, ahead = entry.key.most_queued_tokens, account.queued + before.prompt_tokens
    of_key = (
        f"this key may have {own} tokens of prompts waiting (most_queued_tokens in the file of "
        f"keys), and has {account.queued}"
    )
    of_all = (
        f"{accepted.queued} tokens of prompts wait, and with this one there were more than the "
        f"{limit} of --queue-tokens"
    )
    for excess, reason, message in (
        (
            ahead + entry.queued - own if own is not None and account.queued else 0.0,
            "most_queued_tokens",
            of_key,
        ),
        (
            _excess(accepted, account, entry, before, limit, weights),
            "queue_tokens",
            of_all,
        ),
    ):
        if excess > 0:
            # They leave evenly until the wait is over.
            seconds = wait * min(1.0, excess / ahead) if ahead else wait
            yield Delay(max(seconds, SOONEST), reason, message)


def by_wait(here: float, wait: float, most: float, kept: int) -> Iterator[Delay]:
    """The wait, which may be `most` seconds for a newcomer.

    It is `here` seconds by what is accepted, and `wait` with those in line before the request.
    Its client came back `kept` times as it was told to: then nobody in line is before it.
    """
    if kept:
        late = here > most * (1 + _TOLERANCE * kept)
    else:
        late = here > most * _OPEN and wait > most
    if late:
        yield Delay(
            max(wait - _AIM * most, SOONEST),
            "wait",
            f"this request would wait about {wait:.1f} seconds before it begins, and {most:g} are "
            "the most (--most-wait-seconds, or --slo)",
        )


def _excess(
    accepted: Accepted,
    account: Account,
    entry: Entry,
    before: Load,
    limit: int,
    weights: Mapping[str, float],
) -> float:
    """How many tokens too many there were; where several keys are, each leaves room for others."""
    if not accepted.queued:
        return 0.0
    excess = accepted.queued + before.prompt_tokens + entry.queued - limit
    if len(weights) < 2:
        return excess
    usual = sum(weights.values()) / len(weights)
    share = _SHARE_LEFT * weights.get(entry.key.name, 1.0) / usual
    own = account.queued + before.prompt_tokens + entry.queued
    # Both sides change as the key's own tokens leave.
    return max(excess, (own - share * (limit - accepted.queued)) / (1 + share))
