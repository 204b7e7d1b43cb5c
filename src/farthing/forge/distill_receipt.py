"""What a distilled model carries with it: who taught it, from which text, how far it came."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from farthing import __version__
from farthing.files.receipt import printable, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from farthing.files.receipt import Receipt
    from farthing.forge.distill_wish import DistillWish
    from farthing.forge.gain import Gain
    from farthing.forge.trainer import Point

RECEIPT_FILE = "farthing_distillation.json"
CURVE_FILE = "curve.svg"
VERSION = 1


@dataclass(frozen=True)
class Distilled:
    """What became of a wish.

    `teacher` is its name and `tensors` the digest of its tensors; `head_tokens` how many tokens the
    head has. `text_sha256` is the hash of the training text's token ids, of which the teacher wrote
    `text_tokens`; `held_out_tokens` were written to be measured on. `seconds` were spent writing
    and training. `gain` is a draft's, `receipt` a student's, who is measured as a quantised model
    is; the other one is None.
    """

    wish: DistillWish
    path: Path
    teacher: str
    tensors: str
    head_tokens: int
    text_sha256: str
    text_tokens: int
    held_out_tokens: int
    steps: int
    history: Sequence[Point]
    seconds: float
    bytes: int
    gain: Gain | None
    receipt: Receipt | None

    @property
    def last(self) -> Point:
        """The state when training ended."""
        return self.history[-1]

    def facts(self) -> dict[str, Any]:
        """All of it as plain JSON, the history included."""
        gain = self.gain
        return {
            "version": VERSION,
            "farthing": __version__,
            "teacher": {"name": printable(self.teacher), "tensors": self.tensors},
            "settings": self.wish.facts(),
            "text": {
                "sha256": self.text_sha256,
                "tokens": self.text_tokens,
                "held_out_tokens": self.held_out_tokens,
            },
            "head_tokens": self.head_tokens,
            "steps": self.steps,
            "tokens_learnt_from": self.last.tokens,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "held_out": {
                "divergence": self.last.divergence,
                "acceptance": self.last.acceptance,
                "agreement": self.last.agreement,
            },
            "gain": None if gain is None else asdict(gain),
            "quality": None if self.receipt is None else json.loads(to_json(self.receipt)),
            # Before the first step there is no loss, and JSON has no NaN.
            "history": [
                {**asdict(point), "loss": point.loss if point.step else None}
                for point in self.history
            ],
        }

    def to_json(self) -> str:
        """The receipt as it is stored."""
        return json.dumps(self.facts(), indent=2) + "\n"
