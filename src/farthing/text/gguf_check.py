"""Whether two tokenizers that should be one are: asked for the tokens of the same awkward texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import RequestError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.text.tokenizer import Tokenizer

_TEXTS = (
    "",
    " ",
    "Hello world, it's THEIRS; we'LL say 'I'd' and don\u2019t.",
    "1 12 123 1234 12345 1234567890 3.14 1,000,000 \u00bd \u0663\u0664 \u2167",
    "\n\n\n a\n  b\n\tc\t\td\r\n\r\ne   f  \n   ",
    "!? ... ?! --- ___ === ((([{<>}]))) $%^&*+|~`@#\\/",
    "def f(x):\n    return x_1 + CamelCase(y)  # 'quoted' \"twice\"\n",
    "\u00e9cole \u00c9COLE stra\u00dfe \u0130stanbul na\u00efve",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u03ba\u03cc\u03c3\u03bc\u03b5 \u05e9\u05dc\u05d5\u05dd",
    "\u4e2d\u6587\u6f22\u5b57\u3002\u304b\u306a\u30ab\u30ca\uff0c\ud55c\uad6d\uc5b4",
    "\u0e44\u0e17\u0e22 \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f600\U0001f469\u200d\U0001f4bb \u2764\ufe0f \U0001d518 \u00a0\u3000\u200b\ufeff\u2028x",
    "<|im_start|>user\n[INST] </think> <tag attr='1'>",
)
"""All in Unicode's form NFC."""
_RUNS = (" ", "\n", "\t", "a", "0", "-", "=", ".", "\u00e9")
_RUN_LENGTHS = (*range(1, 40), 63, 64, 65, 127, 128, 129)
_MOST_SPECIAL = 256


def check_same_tokens(
    ours: Tokenizer, theirs: Tokenizer, size: int, where: str, advice: str
) -> None:
    """Raises `UnsupportedModelError` where `theirs` does not do what `ours` does.

    The ids below `size` must stand for the same bytes, and texts have the same tokens, but for
    those that `ours` has beyond them: no model has a row for these.
    """

    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{where}as a GGUF file, its tokenizer would have {what}. {advice}"
        )

    for token_id in range(size):
        if ours.token_bytes(token_id) != theirs.token_bytes(token_id):
            raise refuse(f"another text for the token {token_id}")
    if (ours.bos_id, ours.adds_bos) != (theirs.bos_id, theirs.adds_bos):
        raise refuse("another beginning of texts")
    if {each for each in ours.eos_ids if each < size} != theirs.eos_ids:
        raise refuse(
            f"other tokens that end an answer: {sorted(theirs.eos_ids)!s:.80} for "
            f"{sorted(ours.eos_ids)!s:.80}"
        )
    for text in _awkward(ours):
        for special in (False, True):
            wanted = _ids(ours, text, special)
            beyond = wanted is not None and max(wanted, default=0) >= size
            if not beyond and wanted != _ids(theirs, text, special):
                raise refuse(f"other tokens for the text {text!r:.80}")


def _awkward(tokenizer: Tokenizer) -> Iterator[str]:
    yield from _TEXTS
    yield from (run * length for run in _RUNS for length in _RUN_LENGTHS)
    for token in tokenizer.special_tokens[:_MOST_SPECIAL]:
        yield f"a {token.text} b{token.text}{token.text}\nc"


def _ids(tokenizer: Tokenizer, text: str, special: bool) -> list[int] | None:
    """The tokens; None for a text that the vocabulary cannot express."""
    try:
        return tokenizer.encode(text, parse_special=special)
    except RequestError:
        return None
