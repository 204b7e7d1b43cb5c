"""Which other precisions of a model may be chosen: those whose receipts say that little was lost.

A receipt counts by the worse end of its intervals, and only where it speaks of these weights and
was measured against MODEL, or against what MODEL itself was measured against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.files.receipt import ReceiptError, check_receipt, stored_receipt, tensors_digest

if TYPE_CHECKING:
    from farthing.files.checkpoint import Checkpoint
    from farthing.files.receipt import Receipt

USUAL_GATE = "perplexity=1.02"

_LIMIT = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(%?)")


@dataclass(frozen=True)
class Gate:
    """What a precision may lose against what it was measured against.

    At most this ratio of perplexities, this mean divergence in nats, and at least this agreement
    from 0 to 1; None where it does not matter.
    """

    perplexity: float | None = None
    kl: float | None = None
    agreement: float | None = None

    def failure(self, receipt: Receipt) -> str:
        """What a receipt shows that is not allowed, in words; else empty."""
        ratio, kl, agreement = receipt.perplexity_ratio, receipt.kl.mean, receipt.agreement
        if self.perplexity is not None and ratio.high > self.perplexity:
            return f"perplexity may be x {ratio.high:.4g}, allowed is x {self.perplexity:.4g}"
        if self.kl is not None and kl.high > self.kl:
            return f"KL may be {kl.high:.3g}, allowed is {self.kl:.3g}"
        if self.agreement is not None and agreement.low < self.agreement:
            return f"agreement may be {agreement.low:.1%}, wanted is {self.agreement:.1%}"
        return ""


def gate(text: str) -> Gate:
    """Reads `perplexity=1.02,kl=0.01,agreement=95%`, or some of these. Raises `RequestError`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = _LIMIT.fullmatch(value)
        if name not in ("perplexity", "kl", "agreement") or name in found or match is None:
            raise RequestError(
                f"--quality {text!r:.60}: {part.strip()!r:.40} is no limit; write "
                "perplexity=1.02,kl=0.01,agreement=95%, or some of these"
            )
        number = float(match[1]) / (100 if match[2] else 1)
        least, most = {"perplexity": (1.0, 1e6), "kl": (0.0, 1e6), "agreement": (0.0, 1.0)}[name]
        if not least <= number <= most:
            raise RequestError(f"--quality {part.strip()!r:.40} must be from {least:g} to {most:g}")
        found[name] = number
    return Gate(**found)


class Reference:
    """MODEL, as what candidates are measured against. Its weights are read for their digest."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `ReceiptError` where MODEL's own receipt is not sound."""
        self._digests = {tensors_digest(checkpoint)}
        receipt = stored_receipt(checkpoint)
        if receipt is not None and receipt.tensors in self._digests:
            self._digests.add(receipt.reference.tensors)

    def refusal(self, checkpoint: Checkpoint, wanted: Gate) -> str:
        """Why a candidate may not be chosen, in words; empty where it may. Reads its weights."""
        try:
            receipt = stored_receipt(checkpoint)
            if receipt is None:
                return "it has no receipt: farthing quantize writes one"
            check_receipt(receipt, checkpoint)
        except ReceiptError as error:
            return f"its receipt is refused: {error}"
        if receipt.reference.tensors not in self._digests:
            return f"its receipt is against {receipt.reference.name}, which has other weights"
        return wanted.failure(receipt)
