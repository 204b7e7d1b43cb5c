"""What is to be distilled, and how: everything that is decided before a teacher writes a word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from farthing.core import RequestError
from farthing.files.formats import spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.models.load import Model
    from farthing.quality.texts import Text

DRAFT_LAYERS = 2
HEAD_TOKENS = 8192
PASSES = 3
MOST_HOURS = MOST_PASSES = 10_000


@dataclass(frozen=True)
class DistillWish:
    """A draft, or a small student, of a teacher.

    `layers` are the teacher's that it begins with, ascending; `head_tokens` is how many tokens its
    head has, None for all. Either `tokens` are written by the teacher and read `passes` times, or
    everything takes about `hours`. `prompts` are used in place of those that come with farthing.
    A student's loss has `temperature`, `hard_share` of the written tokens themselves, and where
    `reverse` the divergence the other way round. `scheme` is the format of its matrices.
    """

    kind: Literal["draft", "student"]
    layers: tuple[int, ...]
    head_tokens: int | None
    tokens: int | None = None
    hours: float | None = None
    passes: int = PASSES
    prompts: Sequence[Text] = ()
    temperature: float = 1.0
    hard_share: float = 0.0
    reverse: bool = False
    scheme: str = "INT8_ROW"
    seed: int = 0
    threads: int = 1

    def check(self, teacher: Model) -> None:
        """Raises `RequestError` for what the teacher cannot give, or what is no amount."""
        total = teacher.config.layers
        ascending = all(a < b for a, b in zip(self.layers, self.layers[1:], strict=False))
        if not self.layers or not ascending or self.layers[0] < 0 or self.layers[-1] >= total:
            raise RequestError(
                f"{teacher.name} has layers 0 to {total - 1}: name some of them in ascending "
                f"order, not {', '.join(map(str, self.layers)) or 'none':.80}"
            )
        if self.kind == "draft" and len(self.layers) >= total:
            raise RequestError(
                f"{teacher.name} has {total} layers, and a draft must have fewer to be cheaper: "
                "name some of them (--layers)"
            )
        vocabulary = teacher.program.vocabulary_size
        if self.head_tokens is not None and not 0 < self.head_tokens <= vocabulary:
            raise RequestError(
                f"a head of {teacher.name} has from 1 to {vocabulary:,} tokens, not "
                f"{self.head_tokens:,}"
            )
        if (self.tokens is None) == (self.hours is None):
            raise RequestError("say either how many tokens to learn from, or how many hours")
        if self.tokens is not None and self.tokens < 1:
            raise RequestError(f"there must be tokens to learn from, not {self.tokens}")
        if self.hours is not None and not 0 < self.hours <= MOST_HOURS:
            raise RequestError(
                f"hours are a number above 0 and at most {MOST_HOURS:,}, not {self.hours:g}"
            )
        if not 0 < self.temperature <= 100 or not math.isfinite(self.temperature):
            raise RequestError(f"a temperature is above 0 and at most 100, not {self.temperature}")
        if not 0 <= self.hard_share <= 1:
            raise RequestError(f"a share is from 0 to 1, not {self.hard_share}")
        if not 1 <= self.passes <= MOST_PASSES:
            raise RequestError(
                f"the text is read at least once and at most {MOST_PASSES:,} times, not "
                f"{self.passes:,}"
            )

    def facts(self) -> dict[str, Any]:
        """All of it as plain JSON, by what a person calls it."""
        return {
            "kind": self.kind,
            "layers": list(self.layers),
            "head-tokens": self.head_tokens,
            "tokens": self.tokens,
            "hours": self.hours,
            "passes": self.passes,
            "prompts": [text.sha256 for text in self.prompts],
            "temperature": self.temperature,
            "hard-share": self.hard_share,
            "reverse": self.reverse,
            "scheme": self.scheme,
            "seed": self.seed,
            "threads": self.threads,
        }


def told_change(name: str, was: object, now: object) -> str:
    """One of the `facts` that differs between two wishes, in the words of the command line."""
    match name:
        case "kind":
            return f"it was --{was} and is --{now}"
        case "prompts":
            return "--prompts had other text"
        case "reverse":
            return f"--reverse-kl was {_shown(was)} and is {_shown(now)}"
        case "scheme":
            was, now = (spelling(str(each)) for each in (was, now))
    return f"--{name} was {_shown(was)} and is {_shown(now)}"


def _shown(value: object) -> str:
    match value:
        case None | False:
            return "not given"
        case True:
            return "given"
        case float():
            text = f"{value:g}"
        case list():
            # With a comma at the end it is a list to the command line, however short.
            text = ",".join(map(str, value)) + ("," if len(value) == 1 else "")
        case _:
            text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
