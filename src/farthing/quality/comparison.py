"""Two candidates that were measured against one reference, compared in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.quality.battery import flips
from farthing.quality.figures import perplexity_ratio
from farthing.quality.intervals import estimate
from farthing.quality.significance import sign_flip_test

if TYPE_CHECKING:
    from farthing.files.receipt import Estimate
    from farthing.quality.battery import Flips
    from farthing.quality.measure import Measurement


@dataclass(frozen=True)
class Comparison:
    """The second against the first.

    `kl` is the second's mean divergence less the first's, `perplexity_ratio` the second's
    perplexity over the first's; the p-values are two-sided, of the differences by window, and not
    corrected for other comparisons (`significance.holm`). `flips` are the battery's, None where
    one of the two was not asked.
    """

    kl: Estimate
    kl_p_value: float
    perplexity_ratio: Estimate
    perplexity_p_value: float
    flips: Flips | None

    @property
    def kl_differs(self) -> bool:
        """Whether the divergences differ by more than their interval."""
        return not self.kl.low <= 0 <= self.kl.high

    @property
    def perplexity_differs(self) -> bool:
        """Whether the perplexities differ by more than their interval."""
        return not self.perplexity_ratio.low <= 1 <= self.perplexity_ratio.high


def compare_measurements(first: Measurement, second: Measurement) -> Comparison:
    """Compares two measurements on the same windows against the same reference.

    Raises `RequestError` for two that do not speak of the same.
    """
    for what, expected, found in (
        ("text or windows", first.text, second.text),
        ("reference", first.reference.tensors, second.reference.tensors),
        ("way to compute the reference", first.reference.precision, second.reference.precision),
    ):
        if expected != found:
            raise RequestError(
                f"the two measurements have not the same {what}: measure both models again, alike"
            )
    kl = second.scores.kl.mean(axis=1) - first.scores.kl.mean(axis=1)
    nll = (second.scores.nll - first.scores.nll).mean(axis=1)
    return Comparison(
        kl=estimate(kl),
        kl_p_value=sign_flip_test(kl),
        perplexity_ratio=perplexity_ratio(second.scores.nll, first.scores.nll),
        perplexity_p_value=sign_flip_test(nll),
        flips=_flips(first, second),
    )


def _flips(first: Measurement, second: Measurement) -> Flips | None:
    """None unless both were asked the same number of questions."""
    one, other = first.candidate.answers, second.candidate.answers
    if one is None or other is None or len(one.right) != len(other.right):
        return None
    return flips(one, other)
