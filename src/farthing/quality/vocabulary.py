"""Whether two models give probabilities to the same tokens, so that these can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.quality.texts import calibration_text

if TYPE_CHECKING:
    from farthing.text.tokenizer import Tokenizer

_SAMPLE_CHARACTERS = 20_000


@dataclass(frozen=True)
class Vocabulary:
    """What a model called `name` gives probabilities to: `size` tokens, and what they stand for."""

    name: str
    size: int
    tokenizer: Tokenizer


def require_same_tokenizer(ours: Vocabulary, theirs: Vocabulary) -> None:
    """Raises `RequestError` where two models do not give probabilities to the same tokens."""
    if ours.size == theirs.size and _same_tokens(ours.tokenizer, theirs.tokenizer, ours.size):
        return
    raise RequestError(
        f"{ours.name} and {theirs.name} have different tokenizers, so neither their perplexities "
        "nor their distributions can be compared: measure each against a reference of its own, "
        "and compare bits per byte"
    )


def _same_tokens(ours: Tokenizer, theirs: Tokenizer, size: int) -> bool:
    """Whether ids stand for the same bytes, and a text is cut and begun alike."""
    if (ours.adds_bos, ours.bos_id) != (theirs.adds_bos, theirs.bos_id):
        return False
    # Tokens that a model has no row for have no probabilities.
    known = range(min(size, ours.vocabulary_size))
    if len(known) != min(size, theirs.vocabulary_size):
        return False
    if any(ours.token_bytes(each) != theirs.token_bytes(each) for each in known):
        return False
    sample = calibration_text().content[:_SAMPLE_CHARACTERS]
    return ours.encode(sample) == theirs.encode(sample)
