"""What --speculate can ask for, and the Speculation that it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from farthing.core import SPECULATION_RULES, SPECULATIONS, RequestError

if TYPE_CHECKING:
    from farthing.backends import Backend
    from farthing.engine.speculate import Speculation
    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

Way = Literal["off", "lookup", "draft", "self"]


@dataclass(frozen=True)
class Drafting:
    """How tokens are guessed ahead, and by which rule guesses are taken.

    `source` is the draft model to load, or the scheme of the target's copy.
    """

    way: Way
    source: str = ""
    rule: str = SPECULATION_RULES[0]

    @property
    def has_model(self) -> bool:
        """Whether a second model guesses."""
        return self.way in ("draft", "self")


def drafting_of(speculate: str, rule: str = SPECULATION_RULES[0]) -> Drafting:
    """What `--speculate` and `--speculate-rule` ask for. Raises `RequestError` for what is none."""
    if rule not in SPECULATION_RULES:
        known = ", ".join(SPECULATION_RULES)
        raise RequestError(f"speculate_rule must be one of {known}, not {rule!r:.40}")
    if speculate in SPECULATIONS:
        return Drafting("off" if speculate == "off" else "lookup", rule=rule)
    name, equals, source = speculate.partition("=")
    if equals and source:
        if name == "draft":
            return Drafting("draft", source, rule)
        if name == "self":
            return Drafting("self", source, rule)
    known = ", ".join(SPECULATIONS)
    raise RequestError(
        f"speculate must be one of {known}, draft=MODEL or self=SCHEME, not {speculate!r:.80}"
    )


def speculation_of(drafting: Drafting, draft: Backend | None = None) -> Speculation | None:
    """What guesses in an engine, None for nothing; `draft` runs the second model."""
    if drafting.way == "off":
        return None
    from farthing.engine.speculate import Speculation

    if draft is None:
        from farthing.engine.lookup import LookupDrafter

        return Speculation(LookupDrafter(), rule=drafting.rule)
    from farthing.engine.draft_model import ModelDrafter

    drafter = ModelDrafter(draft, keeps_chances=drafting.rule == "leviathan")
    return Speculation(drafter, costly=drafter, rule=drafting.rule)


def refuse_larger(draft: Model, target: Model) -> None:
    """Raises `RequestError` for a draft that has more weights than its target."""
    sizes = [
        sum(prod(weight.shape) for weight in model.program.weights.values())
        for model in (draft, target)
    ]
    if sizes[0] > sizes[1]:
        raise RequestError(
            f"the draft {draft.name} has {sizes[0] / 1e6:,.1f}M parameters, more than the "
            f"{sizes[1] / 1e6:,.1f}M of {target.name}, for which it would guess: name a smaller "
            "model, or change their places"
        )


def refuse_other_tokens(draft: Tokenizer, target: Tokenizer) -> None:
    """Raises `RequestError`, naming the first token that differs, unless the draft's are among
    the target's: the same bytes under the same ids, of which it may lack the last.
    """
    count = min(draft.vocabulary_size, target.vocabulary_size)
    for token in range(count):
        own, other = draft.token_bytes(token), target.token_bytes(token)
        if own != other or draft.is_special(token) != target.is_special(token):
            raise RequestError(
                f"the draft has another tokenizer than its target: token {token} is {own!r:.60} "
                f"and not {other!r:.60}; name a draft with the target's tokenizer"
            )
    if draft.vocabulary_size > count:
        raise RequestError(
            f"the draft has another tokenizer than its target: token {count} is "
            f"{draft.token_bytes(count)!r:.60}, and the target has only {count} tokens; name a "
            "draft with the target's tokenizer"
        )
