"""The receipt of a loaded model: held against its weights, and against how it is computed now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import Receipt, read_receipt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.engine.load import LoadReport


def checked_receipt(report: LoadReport) -> Receipt | None:
    """The receipt that lies with the loaded model; None without one. Reads all weights then.

    Raises `ReceiptError` for one that is not sound, or speaks of other weights.
    """
    if not report.has_receipt:
        return None
    with open_checkpoint(report.path) as checkpoint:
        return read_receipt(checkpoint)


def measured_otherwise(receipt: Receipt, report: LoadReport) -> str:
    """How the measurement was computed where that is not how the model runs now; else empty."""
    then = receipt.precision
    differences = [
        f"{what} {before}, not {now}"
        for what, before, now in (
            ("a cache of", then.kv_dtype, report.kv_dtype),
            ("products", _listed(then.computed), _listed(report.computed)),
            ("instructions", then.isa, report.isa),
        )
        if before != now
    ]
    return "; ".join(differences)


def _listed(computed: Mapping[str, str]) -> str:
    return ", ".join(sorted(computed.values()))
