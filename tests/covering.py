"""Parameters of tests that many combinations of three factors would make too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


def covering(*factors: Collection[Any]) -> list[tuple[Any, Any, Any]]:
    """As few of the combinations of three factors as hold every two values of different ones."""
    order = sorted(range(3), key=lambda place: -len(factors[place]))
    first, second, third = ([*factors[place]] for place in order)
    found = []
    for row, one in enumerate(first):
        for column, other in enumerate(second):
            values = dict(zip(order, (one, other, third[(row + column) % len(third)]), strict=True))
            found.append((values[0], values[1], values[2]))
    return found
