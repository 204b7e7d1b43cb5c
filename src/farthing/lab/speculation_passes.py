"""Tokens a pass, from how often the guess at each place is right where those before it were.

On a text that the model itself wrote greedily, a draft's guess at a position is right where both
say the same, whatever was guessed before: so every position is a beginning of a draft of any
length, and what a pass would have given there is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.core import Request, SamplingParams
from farthing.engine.lookup import LookupDrafter
from farthing.engine.sequence import Sequence
from farthing.lab.speculation_formula import tokens_per_pass
from farthing.lab.table import Column, Expectation, Plot, Row, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

LENGTH = 8
_SHOWN = (1, 2, 4, 8)
"""Places and lengths of drafts that the table shows."""


def right_runs(agrees: Iterable[NDArray[np.bool_]], length: int = LENGTH) -> NDArray[np.int64]:
    """For each position that has `length` after it, how many guesses in a row are right."""
    runs = []
    for each in agrees:
        for start in range(len(each) - length + 1):
            wrong = np.flatnonzero(~each[start : start + length])
            runs.append(int(wrong[0]) if len(wrong) else length)
    return np.array(runs, np.int64)


def looked_up_runs(
    texts: Iterable[tuple[list[int], int]], length: int = LENGTH
) -> tuple[NDArray[np.int64], float]:
    """As `right_runs`, of guesses that are looked up; and the share of positions with any.

    A text is its tokens, and how many of these are the prompt.
    """
    runs, positions = [], 0
    for tokens, prompt in texts:
        request = Request("", tuple(tokens[:prompt]), SamplingParams())
        sequence = Sequence(request, len(tokens) + 1, frozenset())
        drafter = LookupDrafter()
        for known in range(prompt, len(tokens) - length + 1):
            sequence.tokens[:] = tokens[:known]
            [guess] = drafter.propose([sequence], [length])
            positions += 1
            if guess:
                wrong = [at for at, token in enumerate(guess) if token != tokens[known + at]]
                runs.append(wrong[0] if wrong else length)
    return np.array(runs, np.int64), len(runs) / positions if positions else 0.0


def acceptance_by_place(runs: NDArray[np.int64], length: int = LENGTH) -> list[float | None]:
    """How often the guess at each place was right where all before it were; None: never tested."""
    found: list[float | None] = []
    for place in range(length):
        tested = int((runs >= place).sum())
        found.append(float((runs > place).sum() / tested) if tested else None)
    return found


def counted_tokens(runs: NDArray[np.int64], guesses: int) -> float:
    """Tokens a pass of so many guesses gives on average: the right ones and one more."""
    return float(1 + np.minimum(runs, guesses).mean())


def passes_table(found: dict[str, tuple[NDArray[np.int64], float]], texts: int) -> Table:
    """By draft: acceptance by place, and tokens a pass counted and by one acceptance for all."""
    rows: list[Row] = []
    misses = []
    rising = []
    for name, (runs, share) in found.items():
        places = acceptance_by_place(runs)
        first = places[0] or 0.0
        counted = [counted_tokens(runs, guesses) for guesses in (4, 8)]
        formula = [tokens_per_pass(first, guesses) for guesses in (4, 8)]
        misses += [one / other - 1 for one, other in zip(formula, counted, strict=True)]
        later = [each for each in places[1:] if each is not None]
        if later and 0.02 < first < 0.98:
            rising.append(max(later) > first)
        pairs = [each for pair in zip(counted, formula, strict=True) for each in pair]
        rows.append((name, share, *(places[place - 1] for place in _SHOWN), *pairs))
    worst = max(misses, key=abs)
    return Table(
        "passes",
        f"Tokens a pass, on {texts} texts that the model wrote greedily",
        (
            Column("draft"),
            Column("guesses at", spec=".0%"),
            *(Column(f"right at place {place}", spec=".2f") for place in _SHOWN),
            Column("tokens of a pass with 4", spec=".2f"),
            Column("by the formula, 4", spec=".2f"),
            Column("tokens of a pass with 8", spec=".2f"),
            Column("by the formula, 8", spec=".2f"),
        ),
        tuple(rows),
        "One acceptance for all places (that of the first, in the formula) misses what is counted "
        f"by up to {abs(worst):.0%}, {'above' if worst > 0 else 'below'} it: a guess after right "
        "ones is another guess than the first.",
        Expectation(
            "right guesses come together: behind right ones a guess is right more often than the "
            "first",
            all(rising) if rising else None,
        ),
        plots=(
            Plot("bars", "draft", ("tokens of a pass with 4", "tokens of a pass with 8"), "names"),
        ),
    )
