"""What is reported of scores: perplexity, bits per byte, divergence, agreement, each estimated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from farthing.files.receipt import DivergenceFacts, Estimate
from farthing.quality.intervals import estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.quality.scoring import Scores
    from farthing.quality.windows import Windows

_MOST_NATS = 690.0


def perplexity(nll: NDArray[np.float64]) -> Estimate:
    """The exponential of the mean of `nll`, (windows, tokens), in nats."""
    return estimate(nll.mean(axis=1), _exponential)


def perplexity_ratio(nll: NDArray[np.float64], reference: NDArray[np.float64]) -> Estimate:
    """One perplexity over another, paired by window: what a window's text does to both cancels.

    Means something only for the same tokens: never across tokenizers.
    """
    return estimate((nll - reference).mean(axis=1), _exponential)


def bits_per_byte(nll: NDArray[np.float64], windows: Windows) -> Estimate:
    """Bits for a byte of text: the figure that may be compared across tokenizers."""
    return estimate(nll.sum(axis=1) / math.log(2), per=windows.scored_bytes.astype(np.float64))


def divergence(scores: Scores) -> DivergenceFacts:
    """The mean with its interval, the 99.9th percentile and the largest, over all positions."""
    kl = scores.kl
    return DivergenceFacts(
        estimate(kl.mean(axis=1)), float(np.quantile(kl, 0.999)), float(kl.max())
    )


def probability_rms(scores: Scores) -> Estimate:
    """The root mean square change of the probability of the text's own token."""
    change = np.exp(-scores.nll) - np.exp(-scores.reference_nll)
    return estimate((change**2).mean(axis=1), np.sqrt)


def agreement(scores: Scores) -> Estimate:
    """The share of positions where both models have the same most likely token."""
    return estimate(scores.agrees.mean(axis=1))


def _exponential(nats: NDArray[np.float64]) -> NDArray[np.float64]:
    """A number even for a destroyed model, whose perplexity is more than a float can hold."""
    return np.exp(np.minimum(nats, _MOST_NATS))
