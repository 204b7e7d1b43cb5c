"""How a model is to be stored: everything that is decided before its weights are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError
from farthing.files.formats import spelling
from farthing.forge.methods import NEEDS_TEXT, check_methods, weighs_search
from farthing.forge.schemes import spelled
from farthing.quality.texts import held_out_text

if TYPE_CHECKING:
    from farthing.forge.calibrate import Calibration
    from farthing.forge.methods import Method
    from farthing.forge.patterns import Rule
    from farthing.forge.receipt import ReceiptWish


_LONGEST_LABEL = 200
"""Characters that a receipt has for it."""


@dataclass(frozen=True)
class Wish:
    """How a model is to be stored: its matrices in the format `scheme`.

    `keep` has other schemes for the matrices that its patterns match. `methods` need a
    `calibration`, but for rotation; without methods it weighs the search of the formats that search
    for their scales. With `receipt` the result is measured, and carries what was found.
    """

    scheme: str
    keep: tuple[Rule, ...] = ()
    methods: tuple[Method, ...] = ()
    calibration: Calibration | None = None
    receipt: ReceiptWish | None = None

    def check(self) -> None:
        """Raises `FarthingError` where one of these has nothing to do with the others."""
        check_methods(self.methods, self.scheme)
        needing = [method for method in self.methods if method in NEEDS_TEXT]
        if needing and self.calibration is None:
            raise FarthingError(f"{needing[0]} needs a calibration text: give one, or default")
        searching = {self.scheme, *(rule.scheme for rule in self.keep)}
        if self.calibration is not None and not needing and not any(map(weighs_search, searching)):
            raise FarthingError(
                f"nothing here is calibrated: {spelling(self.scheme)} leaves nothing to "
                "choose; add a method that calibrates, or leave the calibration text out"
            )
        if self.receipt is not None and self.calibration is not None:
            text = held_out_text() if self.receipt.text is None else self.receipt.text
            if text.sha256 == self.calibration.sha256:
                raise FarthingError(
                    f"{text.name} cannot be both the text to calibrate with and the text that the "
                    "receipt is measured on: give another one for one of the two"
                )

    @property
    def label(self) -> str:
        """The scheme in one line, with those of single matrices, for a receipt."""
        rules = [f"{rule.pattern}={spelled(rule.scheme)}" for rule in self.keep]
        label = ", ".join((spelling(self.scheme), *rules))
        if len(label) <= _LONGEST_LABEL:
            return label
        return f"{spelling(self.scheme)}, others by {len(rules)} patterns"

    def facts(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        calibration = self.calibration
        return {
            "scheme": self.scheme,
            "keep": [[rule.pattern, rule.scheme] for rule in self.keep],
            "methods": [str(method) for method in self.methods],
            "calibration": None if calibration is None else calibration.sha256,
            "receipt": self.receipt is not None,
        }
