"""The tokenizer that everything else uses: text to token ids and back.

It owns what every model's vocabulary needs (special tokens, the one beginning-of-sequence token,
the way back to text); a `Vocabulary` turns a fragment without special tokens into ids.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from farthing.core import ContextLengthError, RequestError
from farthing.text.special_tokens import SpecialTokenMatcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farthing.text.special_tokens import SpecialToken


class Vocabulary(Protocol):
    """How plain text becomes ids, and what bytes an id stands for."""

    @property
    def size(self) -> int:
        """One more than the largest id."""

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of a text in which no special token is to be found.

        `at_start`: nothing stands before it, so a vocabulary that begins texts with a space may.
        Raises `RequestError` when it has no way to express a character.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token that is not special; empty for an id without a token."""

    def longest_token(self) -> int | None:
        """The most characters that one token stands for; None where a text may lose some first."""


class Tokenizer:
    """Text to ids and back, for one model.

    `bos_id` is None for a model without such a token; `adds_bos` says whether a text begins with
    it. `eos_ids` are all tokens that end an answer. `named_tokens` are the texts of the special
    tokens that chat templates call by name (`bos_token`, `eos_token`, ...). `strips_leading_space`:
    the vocabulary begins every text with a space that is not the text's own.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        special_tokens: Iterable[SpecialToken],
        *,
        bos_id: int | None = None,
        adds_bos: bool = False,
        eos_ids: Iterable[int] = (),
        named_tokens: Mapping[str, str] | None = None,
        strips_leading_space: bool = False,
    ) -> None:
        special_tokens = tuple(special_tokens)
        self._vocabulary = vocabulary
        self._special = {token.id: token for token in special_tokens}
        self._plain_matcher = SpecialTokenMatcher(t for t in special_tokens if not t.control)
        self._full_matcher = SpecialTokenMatcher(special_tokens)
        self._control_matcher = SpecialTokenMatcher(t for t in special_tokens if t.control)
        self.bos_id = bos_id
        self.adds_bos = adds_bos and bos_id is not None
        self.eos_ids = frozenset(eos_ids)
        self.named_tokens = dict(named_tokens or {})
        self.strips_leading_space = strips_leading_space
        self._strips = any(token.strips_left or token.strips_right for token in special_tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        """What plain text is encoded with."""
        return self._vocabulary

    @property
    def special_tokens(self) -> list[SpecialToken]:
        """All special tokens, by id."""
        return sorted(self._special.values(), key=lambda token: token.id)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id."""
        return self._vocabulary.size

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        parse_special: bool = False,
        separator: str | None = None,
        most_tokens: int | None = None,
    ) -> list[int]:
        """The ids of a text.

        `add_special_tokens` puts the model's beginning-of-sequence token in front where the model
        wants one and the text does not already begin with it. `parse_special` reads the text of a
        control token as that token, else it is plain text. A `separator` is a character that keeps
        special tokens from being matched across it (see `break_up_special_tokens`) and is itself
        dropped. A text that has more than `most_tokens` by its length alone is refused before
        time and memory go into it; a shorter one may still have more.
        Raises `RequestError` then, when the text is not valid Unicode, or holds a character that
        the vocabulary cannot express.
        """
        if most_tokens is not None and len(text) > most_tokens:
            self._check_length(text, separator, most_tokens)
        _check_unicode(text)
        ids: list[int] = []
        matcher = self._full_matcher if parse_special else self._plain_matcher
        for piece in matcher.split(text, separator):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            fragment = piece.replace(separator, "") if separator else piece
            if fragment:
                ids += self._vocabulary.encode(fragment, at_start=not ids)
        wanted = self.bos_id if add_special_tokens and self.adds_bos else None
        if wanted is not None and ids[:1] != [wanted]:
            ids.insert(0, wanted)
        return ids

    def _check_length(self, text: str, separator: str | None, most_tokens: int) -> None:
        longest = self._longest_token
        length = len(text) - (text.count(separator) if separator else 0)
        if longest is not None and length > most_tokens * longest:
            raise ContextLengthError(
                f"the prompt has {length} characters, which make at least "
                f"{-(-length // longest)} tokens, and {most_tokens} are the most; shorten the "
                "prompt or load with a longer context"
            )

    @cached_property
    def _longest_token(self) -> int | None:
        longest = self._vocabulary.longest_token()
        if longest is None or self._strips:
            return None
        return max(longest, *(len(token.text) for token in self._special.values()), 1)

    def break_up_special_tokens(self, text: str, separator: str) -> str:
        """The text with `separator`, which must not occur in it, put into every control token.

        For text that is not trusted and goes into a longer one: `encode` with `parse_special` and
        the same `separator` reads it as plain text.
        """
        return self._control_matcher.break_up(text, separator)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, continuation: bool = False
    ) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD.

        `skip_special_tokens` leaves control tokens out. A `continuation` of other text keeps the
        space it begins with, where a whole text loses the one that the vocabulary put there.
        Raises `RequestError` for an id outside the vocabulary.
        """
        parts = b"".join(
            self.token_bytes(each)
            for each in ids
            if not (skip_special_tokens and self.is_special(each))
        )
        if self.strips_leading_space and not continuation:
            parts = parts.removeprefix(b" ")
        return parts.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id that has no token.

        Raises `RequestError` when the id is outside the vocabulary.
        """
        special = self._special.get(token_id)
        if special is not None:
            return special.text.encode()
        if not 0 <= token_id < self.vocabulary_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary: give ids from 0 to "
                f"{self.vocabulary_size - 1}"
            )
        return self._vocabulary.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token, which steers the model and is no part of its text."""
        special = self._special.get(token_id)
        return special is not None and special.control


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds half a surrogate pair (U+{ord(text[error.start]):04X} at character "
            f"{error.start}), which is not valid Unicode: send the whole character"
        ) from None
