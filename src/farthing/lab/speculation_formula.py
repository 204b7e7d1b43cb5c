"""What speculation gains, by its formula: acceptance, cost and length against tokens a second.

A pass verifies `guesses` guesses of which each is right with probability `acceptance`, given that
those before it were, and yields the right ones and one token more. Against plain decoding it costs
the draft's share for each guess, and what verifying several tokens takes over one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from farthing.core import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

Shares = TypeVar("Shares", float, "NDArray[np.float64]")


@dataclass(frozen=True)
class Reference:
    """A figure that is quoted of speculation, and what it follows from."""

    acceptance: float
    guesses: int
    draft_cost: float
    gain: float


REFERENCES = (
    Reference(0.9, 8, 0.1, 3.40),
    Reference(0.3, 8, 0.1, 0.79),
    Reference(0.3, 4, 0.2, 0.79),
)
"""The third keeps 1.4 tokens a pass, which costs 1.8 of a plain one: it is slower than none."""


def tokens_per_pass(acceptance: float, guesses: int) -> float:
    """How many tokens a pass yields on average: (1 - a^(g+1)) / (1 - a), from 1 to g + 1.

    Raises `RequestError` for an acceptance outside 0 to 1, or fewer than no guesses.
    """
    if not 0 <= acceptance <= 1 or guesses < 0:
        raise RequestError(
            f"an acceptance is from 0 to 1 and guesses are 0 or more, not {acceptance}, {guesses}"
        )
    return sum(acceptance**place for place in range(guesses + 1))


def speed_up(acceptance: float, guesses: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens a second over those of plain decoding.

    `draft_cost` is the time of one guess and `verify_cost` that of the target's step over all of
    them, both over the time of a plain step. Raises `RequestError` as `tokens_per_pass` does, and
    for a cost that is none.
    """
    if draft_cost < 0 or verify_cost <= 0:
        raise RequestError(f"costs are above 0, not {draft_cost} a guess and {verify_cost} a pass")
    return tokens_per_pass(acceptance, guesses) / (verify_cost + guesses * draft_cost)


def best_length(acceptance: float, draft_cost: float, most: int, verify_slope: float = 0.0) -> int:
    """The number of guesses, from 0 to `most`, of the largest `speed_up`: the fewest on ties.

    Verifying one token more takes `verify_slope` of a plain step longer.
    """
    return max(
        range(most + 1),
        key=lambda guesses: (
            speed_up(acceptance, guesses, draft_cost, 1 + guesses * verify_slope),
            -guesses,
        ),
    )


def acceptance_bounds(variation: Shares) -> tuple[Shares, Shares]:
    """How often a guess that is drawn with the target's noise is right, at least and at most.

    `variation` is the total variation of the two distributions, or that of many pairs of them:
    (1 - TV) / (1 + TV) and 1 - TV, of which the latter is what the Leviathan rule reaches.
    """
    return (1 - variation) / (1 + variation), 1 - variation


def table(
    acceptances: Iterable[float], lengths: Iterable[int], draft_cost: float
) -> list[list[float]]:
    """`speed_up` for each acceptance (a row) and length (a column)."""
    columns = list(lengths)
    return [[speed_up(each, length, draft_cost) for length in columns] for each in acceptances]
