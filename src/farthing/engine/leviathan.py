"""The optional rule for guesses: a text's distribution stays what it is, though not each text.

A guess that was drawn from a distribution q, where the target has p, is taken with probability
min(1, p / q); where it is not, the token is drawn from (p - q)+, normalised (Leviathan, Kalman and
Matias 2023, "Fast inference from transformers via speculative decoding"; Chen et al. 2023). What
comes out is distributed as p, and a guess is taken with probability 1 - TV(p, q), the most that any
rule can do. Both p and q are what a token is drawn from in the end: after mask, bias, penalties,
temperature, top-k, top-p and min-p. A guess that was looked up has q = 1.

This is a definition in numpy over logits, and slower than the native sampler. Its noise is apart
from the sampler's, which the draft has used: words 1 and 2 of the counter's last part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from farthing.engine.sampler import (
    gumbel_noise,
    log_probabilities,
    philox,
    probabilities,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.core import SamplingRows, StepResult
    from farthing.engine.step import Step

_ACCEPTANCE, _RESIDUAL = 1, 2
"""Streams of noise; 0 is the sampler's."""


def leviathan_rows(
    step: Step, sampling: SamplingRows, result: StepResult, logits: NDArray[np.float32]
) -> StepResult:
    """A step's result, with the rule's token in each row that a guess follows.

    `logits` are (R, vocabulary). A guess that is taken is the token of the row before it, which is
    how the scheduler knows that it was right; one that is not is never that token.
    """
    tokens, logprob = result.tokens.copy(), result.logprob.copy()
    place = 0
    for row, (sequence, drafted) in enumerate(zip(step.wanted[1:], step.drafted[1:], strict=True)):
        place = place + 1 if drafted >= 0 else 0
        if drafted < 0 or tokens[row] < 0:
            continue
        target = probabilities(logits[row], sampling, row)
        chances = step.drafts[sequence].chances
        draft = np.zeros(len(target))
        if chances:
            draft[: len(chances[place - 1])] = chances[place - 1]
        else:
            draft[drafted] = 1.0
        where = int(sampling.seed[row]), int(sampling.choice[row]), int(sampling.position[row])
        tokens[row] = decide(target, draft, drafted, *where)
        if sampling.logprobs[row] >= 0:
            logprob[row] = log_probabilities(logits[row])[tokens[row]]
    return replace(result, tokens=tokens, logprob=logprob)


def decide(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    guess: int,
    seed: int,
    choice: int,
    position: int,
) -> int:
    """The token where `guess` was drawn from `draft`: the guess itself, or another.

    Both distributions are (vocabulary,) float64; the other three arguments are the noise's.
    """
    if _uniform(seed, choice, position) * draft[guess] < target[guess]:
        return guess
    rest = np.maximum(target - draft, 0.0)
    left = np.flatnonzero(rest)
    if not len(left):  # they are the same but for rounding
        return guess
    noise = gumbel_noise(seed, choice, position, left, stream=_RESIDUAL)
    return int(left[np.argmax(np.log(rest[left]) + noise)])


def _uniform(seed: int, choice: int, position: int) -> float:
    """Between 0 and 1, both excluded."""
    counter = np.array([[0], [position], [choice], [_ACCEPTANCE]], np.uint64)
    word = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[0, 0]
    return (float(word) + 0.5) * 2.0**-32
