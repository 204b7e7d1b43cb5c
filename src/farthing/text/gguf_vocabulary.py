"""A tokenizer from a GGUF file's metadata (the keys `tokenizer.ggml.*`).

What the keys mean, and what holds where one is absent, follows llama.cpp's llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.text.byte_level import ByteLevelVocabulary
from farthing.text.pretokenizers import build_pre_tokenizer, pre_tokenizer_rule
from farthing.text.sentencepiece import ScoredVocabulary
from farthing.text.special_tokens import SpecialToken
from farthing.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.text.tokenizer import Vocabulary

END_OF_ANSWER = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts of tokens that end an answer whatever else a file says: many files name only one such."""

CONTROL_WHATEVER_THE_TYPE = END_OF_ANSWER | {"</s>"}
"""Many files give these a wrong type. `</s>` is HTML in Gemma's, so it does not end an answer."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def tokenizer_from_gguf(metadata: Mapping[str, object], where: str = "the model file") -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes; `where` names the file in messages.

    Raises `FileFormatError` when the keys contradict each other or the vocabulary is damaged, and
    `UnsupportedModelError` when there is no tokenizer or it is of a kind that is not known.
    """
    fields = _Fields(metadata, where)
    kind = fields.text("model")
    if kind is None or kind in ("none", "no_vocab"):
        raise UnsupportedModelError(
            f"{where} holds no tokenizer (no tokenizer.ggml.model): use a file converted with its "
            "vocabulary"
        )
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"{where}: the tokenizer model {kind!r:.40} is not known; known are gpt2 (byte-level "
            "BPE) and llama (SentencePiece BPE)"
        )
    tokens = _read_tokens(fields)
    vocabulary: Vocabulary
    if kind == "gpt2":
        # An absent name means the file predates the key, and llama.cpp reads it by the default.
        rule = pre_tokenizer_rule(fields.text("pre") or "default", where)
        adds_bos, adds_space = rule.adds_bos, False
        vocabulary = ByteLevelVocabulary(
            tokens.texts,
            tokens.ids,
            fields.strings("merges"),
            build_pre_tokenizer(rule),
            ignore_merges=rule.ignore_merges,
            silent_ids=tokens.silent_ids,
            control_ids=tokens.of_type(TokenType.CONTROL, TokenType.UNKNOWN),
            where=where,
        )
    else:
        adds_bos, adds_space = True, fields.flag("add_space_prefix", True)
        vocabulary = _scored_vocabulary(fields, tokens, adds_space)
    named = {
        f"{name}_token": fields.token_id(f"{key}_token_id", len(tokens.texts))
        for name, key in _NAMED_TOKENS.items()
    }
    bos_id = named["bos_token"]
    adds_bos = fields.flag("add_bos_token", adds_bos)
    if adds_bos and bos_id is None and "tokenizer.ggml.add_bos_token" in metadata:
        raise FileFormatError(
            f"{where}: tokenizer.ggml.add_bos_token is set and there is no "
            "tokenizer.ggml.bos_token_id: the file was written by a broken converter"
        )
    end_ids = {each.id for each in tokens.special if each.text in END_OF_ANSWER}
    if "<|return|>" in tokens.ids and "<|call|>" in tokens.ids:
        # In the harmony format <|end|> closes a message inside an answer.
        end_ids.discard(tokens.ids.get("<|end|>", -1))
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        end_id = fields.token_id(key, len(tokens.texts))
        if end_id is not None:
            end_ids.add(end_id)
    return Tokenizer(
        vocabulary,
        tokens.special,
        bos_id=bos_id,
        adds_bos=adds_bos,
        eos_ids=end_ids,
        named_tokens={
            name: tokens.texts[token_id] for name, token_id in named.items() if token_id is not None
        },
        strips_leading_space=adds_space,
    )


_NAMED_TOKENS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


@dataclass(frozen=True)
class _Tokens:
    """`texts[i]` and `types[i]` belong to token i, and `ids` leads back from its text."""

    texts: list[str]
    types: NDArray[np.int64]
    ids: dict[str, int]

    def of_type(self, *types: TokenType) -> list[int]:
        token_ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return token_ids

    @property
    def silent_ids(self) -> frozenset[int]:
        """Tokens that stand for no bytes."""
        return frozenset(self.of_type(TokenType.UNDEFINED, TokenType.UNUSED))

    @cached_property
    def special(self) -> list[SpecialToken]:
        return [
            SpecialToken(token_id, self.texts[token_id], control=kind != TokenType.USER_DEFINED)
            for kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
            for token_id in self.of_type(kind)
        ]


def _read_tokens(fields: _Fields) -> _Tokens:
    texts = fields.strings("tokens")
    if not texts:
        raise FileFormatError(f"{fields.where}: tokenizer.ggml.tokens is empty")
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        twice = next(text for i, text in enumerate(texts) if ids[text] != i)
        raise FileFormatError(
            f"{fields.where}: the token {twice!r:.80} stands twice in tokenizer.ggml.tokens: the "
            "vocabulary is damaged"
        )
    types = fields.numbers("token_type", len(texts), TokenType.NORMAL).astype(np.int64)
    for text in CONTROL_WHATEVER_THE_TYPE & ids.keys():
        types[ids[text]] = TokenType.CONTROL
    if "" in ids:
        types[ids.pop("")] = TokenType.UNUSED
    return _Tokens(texts, types, ids)


def _scored_vocabulary(fields: _Fields, tokens: _Tokens, adds_space: bool) -> ScoredVocabulary:
    byte_ids: dict[int, int] = {}
    for token_id in tokens.of_type(TokenType.BYTE):
        text = tokens.texts[token_id]
        try:
            byte = bytes.fromhex(text.removeprefix("<0x").removesuffix(">"))
        except ValueError:
            byte = b""
        if len(byte) != 1 or text != f"<0x{byte.hex().upper()}>":
            raise FileFormatError(
                f"{fields.where}: the byte token {token_id} is {text!r:.40} and must look like "
                "<0x0A>: the vocabulary is damaged"
            )
        byte_ids[byte[0]] = token_id
    unknown_id = fields.token_id("unknown_token_id", len(tokens.texts))
    if unknown_id is None:
        if len(byte_ids) < 256:
            raise FileFormatError(
                f"{fields.where}: the vocabulary has {len(byte_ids)} of the 256 byte tokens and no "
                "unknown token, so that some text could not be written: the file is damaged"
            )
        unknown_id = byte_ids[0]
    mergeable_ids = dict(tokens.ids)
    # Control and byte tokens are left out, so that no merge of plain text can forge one.
    for token_id in tokens.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE):
        mergeable_ids.pop(tokens.texts[token_id], None)
    return ScoredVocabulary(
        tokens.texts,
        fields.numbers("scores", len(tokens.texts), None).tolist(),
        mergeable_ids=mergeable_ids,
        byte_ids=byte_ids,
        unknown_id=unknown_id,
        silent_ids=tokens.silent_ids,
        adds_space=adds_space,
    )


class _Fields:
    """The keys `tokenizer.ggml.*`, each checked for its type when read."""

    def __init__(self, metadata: Mapping[str, object], where: str) -> None:
        self._metadata = metadata
        self.where = where

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, value, "a string")

    def flag(self, key: str, absent: bool) -> bool:
        value = self._get(key)
        if value is None:
            return absent
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise self._wrong(key, value, "true or false")

    def token_id(self, key: str, count: int) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise self._wrong(key, value, "a token id")
        if not 0 <= value < count:
            raise FileFormatError(
                f"{self.where}: tokenizer.ggml.{key} is {value}, and the vocabulary has {count} "
                "tokens: the file was written by a broken converter"
            )
        return int(value)

    def strings(self, key: str) -> list[str]:
        value = self._get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            strings = list(value)
            if set(map(type, strings)) <= {str}:
                self._check_unicode(key, strings)
                return strings
        raise self._wrong(key, value, "an array of strings")

    def numbers(self, key: str, count: int, absent: int | None) -> NDArray[np.generic]:
        value = self._get(key)
        if value is None and absent is not None:
            return np.full(count, absent)
        numbers = np.asarray(value)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf" or numbers.size != count:
            raise self._wrong(key, value, f"an array of {count} numbers, one a token")
        if np.isnan(numbers).any():
            raise self._wrong(key, value, "free of NaN")
        return numbers

    def _get(self, key: str) -> object:
        return self._metadata.get(f"tokenizer.ggml.{key}")

    def _check_unicode(self, key: str, strings: list[str]) -> None:
        try:
            "".join(strings).encode()
        except UnicodeEncodeError:
            raise FileFormatError(
                f"{self.where}: tokenizer.ggml.{key} holds text that is not valid Unicode: the "
                "file is damaged or was written by a broken converter"
            ) from None

    def _wrong(self, key: str, value: object, wanted: str) -> FileFormatError:
        found = "absent" if value is None else f"{value!r:.60}"
        return FileFormatError(
            f"{self.where}: tokenizer.ggml.{key} is {found} and must be {wanted}: the file is "
            "damaged or was written by a broken converter"
        )
