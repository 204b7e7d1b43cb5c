"""The tokenizer of a model folder as the metadata of a GGUF file: what `gguf_vocabulary.py` reads.

A tokenizer.json can say more than GGUF. What it says is matched, step by step, with what a GGUF
reader will do, and anything else is refused. In the end both are asked for the tokens of the same
awkward texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError, UnsupportedModelError
from farthing.files.gguf_writer import (
    flag_field,
    floats_field,
    integers_field,
    metadata_of,
    number_field,
    text_field,
    texts_field,
)
from farthing.text.byte_level import CHARACTERS_OF_BYTES
from farthing.text.chat import load_chat_template
from farthing.text.gguf_check import check_same_tokens
from farthing.text.gguf_vocabulary import (
    CONTROL_WHATEVER_THE_TYPE,
    END_OF_ANSWER,
    TokenType,
    tokenizer_from_gguf,
)
from farthing.text.merge_scores import scores_of_merges
from farthing.text.pretokenizers import name_of_pre_tokenizer
from farthing.text.sentencepiece import SPACE
from farthing.text.tokenizer_json import BYTE_TOKENS, load_machine, tokenizer_from_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.files.safetensors import SafetensorsFolder
    from farthing.text.tokenizer import Tokenizer

_NFC = (
    "the folder brings text into Unicode's form NFC first, which a GGUF file cannot say: text that "
    "is not in it has other tokens, as in every GGUF file of this family"
)
_TO_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
"""Finds nothing where spaces have been replaced before, as in Gemma's."""


@dataclass(frozen=True)
class GGUFTokenizer:
    """Metadata records (`tokenizer.*`), and what a person should know of them."""

    fields: Mapping[str, bytes]
    remarks: tuple[str, ...] = ()


def gguf_tokenizer(folder: SafetensorsFolder, rows: int) -> GGUFTokenizer:
    """The tokenizer of a model folder whose embedding has `rows` rows.

    Raises `FileFormatError` for a damaged tokenizer, and `UnsupportedModelError` for one that does
    what a GGUF file cannot say.
    """
    where = folder.folder / "tokenizer.json"
    tokenizer = tokenizer_from_folder(folder)
    read = _Description(json.loads(load_machine(where).to_str()), rows, where)
    fields = {
        **read.vocabulary_fields(),
        **_special_fields(tokenizer, read),
        **_template_fields(folder, tokenizer),
    }
    try:
        made = tokenizer_from_gguf(metadata_of(fields, where), str(where))
    except FarthingError as error:
        raise UnsupportedModelError(f"{error}. {_ADVICE}") from error
    check_same_tokens(tokenizer, made, rows, f"{where}: ", _ADVICE)
    remarks: tuple[str, ...] = (_NFC,) if read.normalises else ()
    forced = CONTROL_WHATEVER_THE_TYPE & read.plain_texts()
    remarks += tuple(
        f"readers of GGUF files take {text} for a control token, so that in plain text it has "
        "other tokens than the folder has for it"
        for text in sorted(forced)
    )
    return GGUFTokenizer(fields, remarks)


_ADVICE = "Write a folder instead, by an OUT without .gguf"


class _Description:
    """A tokenizer.json, as its library writes it again, checked for what a GGUF cannot say.

    `ids` leads from text to id, with added tokens; `normalises`: texts become NFC first.
    """

    def __init__(self, description: dict[str, Any], rows: int, where: Path) -> None:
        self._where, self._model = where, description["model"]
        self._description = description
        if self._model["type"] != "BPE":
            raise self._unsayable(f"its model is {self._model['type']}, not BPE")
        for key, neutral in (
            ("dropout", (None, 0.0)),
            ("continuing_subword_prefix", (None, "")),
            ("end_of_word_suffix", (None, "")),
        ):
            if self._model.get(key) not in neutral:
                raise self._unsayable(f"its model has {key} = {self._model[key]!r:.40}")
        self._merges = [(left, right) for left, right in self._model["merges"]]
        self._added = self._checked_added(rows)
        ids = {**self._model["vocab"], **{token["content"]: token["id"] for token in self._added}}
        self.ids: dict[str, int] = {text: each for text, each in ids.items() if each < rows}
        special = {token["content"] for token in description["added_tokens"] if token["special"]}
        beyond = [
            text
            for text, each in self._model["vocab"].items()
            if each >= rows and text not in special
        ]
        if beyond:
            raise self._unsayable(
                f"the token {beyond[0]!r:.60} is beyond the {rows} rows of the embedding"
            )
        # What no text and no row of the vocabulary has: llama.cpp's converter fills up so, too.
        self._texts = [f"[PAD{number}]" for number in range(rows)]
        self._types = [TokenType.UNUSED] * rows
        for text, token_id in self.ids.items():
            self._texts[token_id] = text
            self._types[token_id] = TokenType.NORMAL
        for token in self._added:
            kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
            # Of spaces: merged like any other, since they are replaced only after the match.
            if token["special"] or SPACE not in token["content"]:
                self._types[token["id"]] = kind
        self.normalises = False

    def vocabulary_fields(self) -> dict[str, bytes]:
        """The records of the tokens and how text is cut into them."""
        mentioned = json.dumps(self._description["decoder"])
        fields = self._byte_level() if "ByteLevel" in mentioned else self._sentencepiece()
        fields |= {
            "tokens": texts_field("tokenizer.ggml.tokens", self._texts),
            "token_type": integers_field("tokenizer.ggml.token_type", self._types),
        }
        return {f"tokenizer.ggml.{key}": record for key, record in fields.items()}

    def plain_texts(self) -> set[str]:
        """The texts of all tokens that are not control tokens."""
        return {text for text, each in self.ids.items() if self._types[each] != TokenType.CONTROL}

    def _byte_level(self) -> dict[str, bytes]:
        self.normalises = self._description["normalizer"] == {"type": "NFC"}
        if self._description["normalizer"] is not None and not self.normalises:
            raise self._unsayable(f"its normalizer is {_kind(self._description['normalizer'])}")
        lacks = any(character not in self.ids for character in CHARACTERS_OF_BYTES)
        if self._model.get("byte_fallback") or (lacks and self._model.get("unk_token")):
            raise self._unsayable("it writes what it has no token for as an unknown token")
        name = name_of_pre_tokenizer(
            self._description["pre_tokenizer"], bool(self._model.get("ignore_merges"))
        )
        if name is None:
            raise self._unsayable(
                "its pre_tokenizer cuts words by a rule that llama.cpp has no name for"
            )
        if any(" " in part for merge in self._merges for part in merge):
            raise self._unsayable("a merge has a space inside")
        return {
            "model": text_field("tokenizer.ggml.model", "gpt2"),
            "pre": text_field("tokenizer.ggml.pre", name),
            "merges": texts_field("tokenizer.ggml.merges", [*map(" ".join, self._merges)]),
        }

    def _sentencepiece(self) -> dict[str, bytes]:
        normalizer = self._description["normalizer"]
        steps = [normalizer]
        if _kind(normalizer) == "Sequence":
            steps = normalizer["normalizers"]
        adds_space = steps == [_PREPEND, _TO_SPACE]
        if not adds_space and steps != [_TO_SPACE]:
            raise self._unsayable(
                f"its normalizer is {_kind(normalizer)}, where a GGUF's tokenizer replaces spaces, "
                "with or without one in front of a text and of all that follows a special token"
            )
        if self._description["pre_tokenizer"] not in (None, _AT_SPACES):
            raise self._unsayable(
                f"its pre_tokenizer is {_kind(self._description['pre_tokenizer'])}"
            )
        if self._model.get("ignore_merges"):
            raise self._unsayable("its model has ignore_merges")
        if not self._model.get("byte_fallback") or any(t not in self.ids for t in BYTE_TOKENS):
            raise self._unsayable("it has no token for each byte")
        for text in BYTE_TOKENS:
            self._types[self.ids[text]] = TokenType.BYTE
        unknown = self.ids.get(self._model.get("unk_token") or "")
        if unknown is not None:
            self._types[unknown] = TokenType.UNKNOWN
        merged = (TokenType.NORMAL, TokenType.USER_DEFINED)
        plain = {text: each for text, each in self.ids.items() if self._types[each] in merged}
        whole = {text for text in plain if self._types[plain[text]] == TokenType.USER_DEFINED}
        scores = scores_of_merges(plain, self._merges, whole, len(self._texts), str(self._where))
        fields = {
            "model": text_field("tokenizer.ggml.model", "llama"),
            "pre": text_field("tokenizer.ggml.pre", "default"),
            "scores": floats_field("tokenizer.ggml.scores", scores),
            "add_space_prefix": flag_field("tokenizer.ggml.add_space_prefix", adds_space),
        }
        if unknown is not None:
            key = "tokenizer.ggml.unknown_token_id"
            fields["unknown_token_id"] = number_field(key, unknown)
        return fields

    def _checked_added(self, rows: int) -> list[dict[str, Any]]:
        """The added tokens that the embedding has a row for."""
        kept: list[dict[str, Any]] = []
        for token in self._description["added_tokens"]:
            text = token["content"]
            for flag in ("single_word", "lstrip", "rstrip"):
                if token[flag]:
                    raise self._unsayable(f"the token {text!r:.60} is marked {flag}")
            if not token["special"] and token["normalized"] and self._description["normalizer"]:
                raise self._unsayable(f"the token {text!r:.60} is matched in normalised text")
            if token["id"] < rows:
                kept.append(token)
            elif not token["special"]:
                raise self._unsayable(
                    f"the token {text!r:.60} is beyond the {rows} rows of the embedding"
                )
        return kept

    def _unsayable(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._where}: {what}, which a GGUF file has no way to say. {_ADVICE}"
        )


def _special_fields(tokenizer: Tokenizer, read: _Description) -> dict[str, bytes]:
    """What begins a text, and ends an answer."""
    named = {
        name: read.ids[text]
        for name, key in (("eos", "eos_token"), ("padding", "pad_token"), ("unknown", "unk_token"))
        if (text := tokenizer.named_tokens.get(key)) in read.ids
    }
    if tokenizer.bos_id is not None:
        named["bos"] = tokenizer.bos_id
    known = {token.id for token in tokenizer.special_tokens if token.text in END_OF_ANSWER}
    ends = sorted(tokenizer.eos_ids - known - {named.get("eos", -1)})
    if "eos" not in named and tokenizer.eos_ids:
        named["eos"] = ends.pop(0) if ends else min(tokenizer.eos_ids)
    named |= dict(zip(("eot", "eom"), ends, strict=False))
    records = {
        key: number_field(key, token_id)
        for key, token_id in (
            (f"tokenizer.ggml.{name}_token_id", token_id) for name, token_id in named.items()
        )
    }
    key = "tokenizer.ggml.add_bos_token"
    return {**records, key: flag_field(key, tokenizer.adds_bos)}


def _template_fields(folder: SafetensorsFolder, tokenizer: Tokenizer) -> dict[str, bytes]:
    template = load_chat_template(folder, tokenizer)
    if template is None:
        return {}
    key = "tokenizer.chat_template"
    fields = {key: text_field(key, template.source)}
    if template.tool_source is not None:
        names = "tokenizer.chat_templates"
        fields[names] = texts_field(names, ["tool_use"])
        fields[f"{key}.tool_use"] = text_field(f"{key}.tool_use", template.tool_source)
    return fields


def _kind(part: object) -> str:
    return str(part.get("type")) if isinstance(part, dict) else "absent"
