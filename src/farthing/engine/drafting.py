"""What --speculate can ask for, and the Speculation that it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from farthing.core import SPECULATION_RULES, SPECULATIONS, RequestError
from farthing.engine.draft_copy import copy_in, read_bytes, unexpanded
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model

if TYPE_CHECKING:
    from farthing.backends import Backend
    from farthing.core import ActivationMode
    from farthing.engine.speculate import Speculation
    from farthing.files.checkpoint import Checkpoint
    from farthing.files.progress import Progress
    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

MOST_TRAFFIC = 1 << 24
"""Tokens of recent texts that may be kept."""

LOOKUPS = tuple(each for each in SPECULATIONS if each != "off")

Way = Literal["off", "lookup", "draft", "self"]


@dataclass(frozen=True)
class Drafting:
    """How tokens are guessed ahead, and by which rule guesses are taken.

    `source` is the draft model to load, or the scheme of the target's copy; `traffic` the tokens of
    recent texts that are looked up in besides the text itself.
    """

    way: Way
    source: str = ""
    rule: str = SPECULATION_RULES[0]
    traffic: int = 0

    @property
    def has_model(self) -> bool:
        """Whether a second model guesses."""
        return self.way in ("draft", "self")


def drafting_of(speculate: str, rule: str = SPECULATION_RULES[0], traffic: int = 0) -> Drafting:
    """What `--speculate`, `--speculate-rule` and `--lookup-traffic` ask for.

    Raises `RequestError` for what is none, for traffic where nothing is looked up, and for a rule
    of guesses where there are none.
    """
    if rule not in SPECULATION_RULES:
        known = ", ".join(SPECULATION_RULES)
        raise RequestError(f"--speculate-rule must be one of {known}, not {rule!r:.40}")
    if type(traffic) is not int or not 0 <= traffic <= MOST_TRAFFIC:
        raise RequestError(
            f"--lookup-traffic is from 0 (none) to {MOST_TRAFFIC:,} tokens, not {traffic!r:.40}"
        )
    if traffic and speculate not in LOOKUPS:
        raise RequestError(
            "--lookup-traffic is for guesses that are looked up (--speculate "
            f"{' or '.join(LOOKUPS)}), and --speculate is {speculate!r:.80}: leave one of them out"
        )
    if speculate == "off" and rule != SPECULATION_RULES[0]:
        raise RequestError(
            f"--speculate-rule {rule} says which guesses are taken, and with --speculate off there "
            "are none: leave one of them out"
        )
    if speculate in SPECULATIONS:
        return Drafting("off" if speculate == "off" else "lookup", rule=rule, traffic=traffic)
    name, equals, source = speculate.partition("=")
    if equals and source:
        if name == "draft":
            return Drafting("draft", source, rule)
        if name == "self":
            return Drafting("self", source, rule)
    known = ", ".join(SPECULATIONS)
    raise RequestError(
        f"--speculate must be one of {known}, draft=MODEL or self=SCHEME, not {speculate!r:.80}"
    )


@dataclass(frozen=True)
class Draft:
    """A model that guesses: a file's, or without a `checkpoint` a copy of the target."""

    model: Model
    checkpoint: Checkpoint | None = None


def draft_of(
    drafting: Drafting, target: Model, activations: ActivationMode | None, progress: Progress
) -> Draft | None:
    """The second model, of which no weight is read yet; None where none guesses.

    Raises what `resolve`, `open_checkpoint`, `load_model`, `refuse_as_costly` and `copy_in` raise.
    """
    if drafting.way == "self":
        return Draft(copy_in(target, drafting.source, activations))
    if drafting.way != "draft":
        return None
    checkpoint = open_checkpoint(resolve(drafting.source, progress))
    draft = load_model(checkpoint)
    refuse_as_costly(draft, target, activations)
    return Draft(draft, checkpoint)


def speculation_of(drafting: Drafting, draft: Backend | None = None) -> Speculation | None:
    """What guesses in an engine, None for nothing; `draft` runs the second model."""
    if drafting.way == "off":
        return None
    from farthing.engine.speculate import Speculation

    if draft is None:
        from farthing.engine.lookup import LookupDrafter
        from farthing.engine.recent import RecentTexts

        recent = RecentTexts(drafting.traffic) if drafting.traffic else None
        return Speculation(LookupDrafter(recent), rule=drafting.rule)
    from farthing.engine.draft_model import ModelDrafter

    drafter = ModelDrafter(draft, keeps_chances=drafting.rule == "leviathan")
    return Speculation(drafter, costly=drafter, rule=drafting.rule)


def refuse_as_costly(draft: Model, target: Model, activations: ActivationMode | None) -> None:
    """Raises `RequestError` for a draft that has more weights than its target, or of which a step
    reads as many bytes with these activations: none of its guesses could save anything.
    """
    refuse_larger(draft, target)
    own, other = read_bytes(draft, activations), read_bytes(target, activations)
    if own >= other:
        raise RequestError(
            f"the draft {draft.name} reads {own / 1e6:,.1f} MB of weights for a guess, no less "
            f"than the {other / 1e6:,.1f} MB that a step of {target.name} reads: "
            f"{unexpanded(activations)}name a smaller model, or one of fewer bits (farthing "
            "quantize), or look up (ngram)"
        )


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


def refuse_other_tokens(
    draft: Tokenizer, target: Tokenizer, called: tuple[str, str] = ("draft", "target")
) -> None:
    """Raises `RequestError`, naming the first token that differs, unless the draft's are among
    the target's: the same bytes under the same ids, of which it may lack the last. `called` is what
    a person knows the two by.
    """
    own_role, other_role = called
    count = min(draft.vocabulary_size, target.vocabulary_size)
    for token in range(count):
        own, other = draft.token_bytes(token), target.token_bytes(token)
        if own != other or draft.is_special(token) != target.is_special(token):
            raise RequestError(
                f"the {own_role} has another tokenizer than its {other_role}: token {token} is "
                f"{own!r:.60} and not {other!r:.60}; name a {own_role} with the {other_role}'s "
                "tokenizer"
            )
    if draft.vocabulary_size > count:
        raise RequestError(
            f"the {own_role} has another tokenizer than its {other_role}: token {count} is "
            f"{draft.token_bytes(count)!r:.60}, and the {other_role} has only {count} tokens; name "
            f"a {own_role} with the {other_role}'s tokenizer"
        )
