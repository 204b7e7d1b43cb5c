"""Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): each byte of the text is written as one character.

The merging itself is done by the Hugging Face `tokenizers` library.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Machine
from tokenizers import decoders, models

from farthing.core import FileFormatError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokenizers.pre_tokenizers import PreTokenizer


def _characters_of_bytes() -> str:
    """For each byte the character that stands for it: itself if printable, else from U+0100 on.

    Source: Radford et al. 2019, GPT-2's `bytes_to_unicode`.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(
        chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)
    )


CHARACTERS_OF_BYTES = _characters_of_bytes()
_SHORT = 2048
"""Characters that are encoded sooner than another thread notices."""

_SPLIT_AT_SPACE = methodcaller("split", " ")
_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(CHARACTERS_OF_BYTES)}


def bytes_of_token(token: str) -> bytes:
    """The bytes a byte-level token stands for; its UTF-8 when it is not made of byte characters."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


class ByteCheck:
    """Refuses text with a byte that the vocabulary lacks, which BPE would drop without a word."""

    def __init__(self, present: bytes) -> None:
        self._present = present

    def check(self, text: str) -> None:
        """Raises `RequestError` naming the first character that cannot be expressed."""
        if not text.encode().translate(None, self._present):
            return
        for character in text:
            if character.encode().translate(None, self._present):
                raise RequestError(
                    f"the model's vocabulary has no way to write U+{ord(character):04X}: "
                    "remove that character"
                )


def ids_of(machine: Machine, text: str) -> list[int]:
    """The ids of plain text.

    The library keeps Python's lock for as long as it encodes one text, which stops every other
    thread, and lets go of it for a list of texts: so a long text is a list of one.
    """
    if len(text) <= _SHORT:
        ids: list[int] = machine.encode(text, add_special_tokens=False).ids
    else:
        [encoding] = machine.encode_batch_fast([text], add_special_tokens=False)
        ids = encoding.ids
    return ids


def spell_out(ids: list[int], spelled: Mapping[int, list[int]]) -> list[int]:
    """The ids with those that `spelled` has replaced by the ids of their bytes.

    For control tokens: a careless vocabulary has merges that form one out of plain text.
    """
    if spelled.keys().isdisjoint(ids):
        return ids
    return [part for token_id in ids for part in spelled.get(token_id, (token_id,))]


class ByteLevelVocabulary:
    """A byte-level BPE vocabulary built from its tokens and its merges in order of rank.

    `texts[i]` is token i as stored and `ids` leads back; `silent_ids` are tokens without bytes,
    `control_ids` those that plain text must not become. None of it is kept: the library has it all.
    `ignore_merges`: a word that is itself a token is that token, whatever the merges say.
    Raises `FileFormatError` when a merge is malformed or names a token that is not there.
    """

    def __init__(
        self,
        texts: Sequence[str],
        ids: dict[str, int],
        merges: Sequence[str],
        pre_tokenizer: PreTokenizer,
        *,
        ignore_merges: bool,
        silent_ids: frozenset[int],
        control_ids: Iterable[int],
        where: str,
    ) -> None:
        self._size = len(texts)
        self._silent_ids = silent_ids
        try:
            # A merge's parts are tokens, whose strings are there already.
            known = {text: text for text in texts}.get
            pairs = [
                (known(left, left), known(right, right))
                for left, right in map(_SPLIT_AT_SPACE, merges)
            ]
            del known
        except ValueError:
            wrong = next(merge for merge in merges if merge.count(" ") != 1)
            raise FileFormatError(
                f"{where}: the merge {wrong!r:.80} is not two tokens with a space between: the "
                "vocabulary is damaged"
            ) from None
        try:
            model = models.BPE(vocab=ids, merges=pairs, ignore_merges=ignore_merges)
        except Exception as error:  # the library raises nothing more precise
            raise FileFormatError(
                f"{where}: the merges do not fit the vocabulary ({error}): the file is damaged or "
                "was written by a broken converter"
            ) from error
        self._machine = Machine(model)
        self._machine.pre_tokenizer = pre_tokenizer
        self._bytes = ByteCheck(
            bytes(byte for byte, character in enumerate(CHARACTERS_OF_BYTES) if character in ids)
        )
        self._spelled = {
            token_id: [
                ids[character]
                for character in map(CHARACTERS_OF_BYTES.__getitem__, texts[token_id].encode())
                if character in ids
            ]
            for token_id in control_ids
        }

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return self._size

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """See `Vocabulary.encode`."""
        self._bytes.check(text)
        return spell_out(ids_of(self._machine, text), self._spelled)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Vocabulary.token_bytes`."""
        text = None if token_id in self._silent_ids else self._machine.id_to_token(token_id)
        return b"" if text is None else bytes_of_token(text)

    def longest_token(self) -> int | None:
        """See `Vocabulary.longest_token`."""
        return max(map(len, self._machine.get_vocab()))

    def machine(self) -> Machine:
        """The library's tokenizer of this vocabulary, without special tokens: a new one."""
        machine = Machine.from_str(self._machine.to_str())
        machine.decoder = decoders.ByteLevel()
        return machine
