"""Holds a model against a peer's greedy answers: which next tokens does it choose otherwise?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LogitsFunction = Callable[[Sequence[int]], NDArray[np.float32]]
"""From a sequence's token ids to its logits at every position, (tokens, vocabulary)."""


@dataclass(frozen=True)
class Difference:
    """A position where the model prefers `chosen` to the peer's token.

    `gap` is the model's logit of `chosen` above that of the peer's token; `peer_gap` is the
    peer's log-probability of its token above its second best.
    """

    prompt: str
    step: int
    chosen: int
    peer: int
    gap: float
    peer_gap: float

    def __str__(self) -> str:
        return (
            f"{self.prompt[:32]!r:36} step {self.step:2}: {self.chosen:6} for the peer's "
            f"{self.peer:6}, gap {self.gap:.4f}, the peer's {self.peer_gap:.4f}"
        )


def compare(
    logits: LogitsFunction,
    golden: Mapping[str, Any],
    prompt_ids: Sequence[int],
    banned: Collection[int] = (),
) -> list[Difference]:
    """The differences on one prompt, the model being fed the peer's tokens.

    `golden` is an entry of a goldens file's `greedy`; `banned` are tokens that the peer was told
    not to choose (its ends of sequence).
    """
    steps = golden["steps"]
    tokens = [step["id"] for step in steps]
    fed = [*prompt_ids, *tokens[:-1]]
    scores = logits(fed)[len(prompt_ids) - 1 :].astype(np.float64)
    scores[:, list(banned)] = -np.inf
    differences = []
    for index, (step, row) in enumerate(zip(steps, scores, strict=True)):
        chosen = int(row.argmax())
        if chosen != step["id"]:
            best, second = step["top"]
            gap, peer_gap = row[chosen] - row[step["id"]], best[1] - second[1]
            differences.append(
                Difference(golden["prompt"], index, chosen, step["id"], float(gap), peer_gap)
            )
    return differences


def listed(differences: Iterable[Difference]) -> str:
    """The differences, the widest gap first, for a failing test's message."""
    return "\n".join(map(str, sorted(differences, key=lambda each: -each.gap)))
