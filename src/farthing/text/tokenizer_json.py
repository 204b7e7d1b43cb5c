"""A tokenizer from a folder as the Hugging Face hub keeps it.

`tokenizer.json` holds the vocabulary and its rules, which the `tokenizers` library runs; the files
`tokenizer_config.json` and `generation_config.json` say what begins a text and ends an answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Machine

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.text.byte_level import (
    CHARACTERS_OF_BYTES,
    ByteCheck,
    bytes_of_token,
    ids_of,
    spell_out,
)
from farthing.text.gguf_vocabulary import END_OF_ANSWER
from farthing.text.sentencepiece import SPACE
from farthing.text.special_tokens import SpecialToken
from farthing.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from farthing.files.safetensors import SafetensorsFolder

MAX_FILE_BYTES = 256 << 20
"""The largest tokenizer.json in use has 35 MB."""
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTE_OF_TOKEN = {text: bytes([byte]) for byte, text in enumerate(BYTE_TOKENS)}
_FIRST, _NEVER = '"prepend_scheme": "first"', '"prepend_scheme": "never"'


def tokenizer_from_folder(folder: SafetensorsFolder) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises `FileFormatError` when tokenizer.json is missing or a file is damaged, and
    `UnsupportedModelError` when tokenizer.json describes a kind of vocabulary that is not known.
    """
    path = folder.folder / "tokenizer.json"
    machine = load_machine(path)
    special = _special_tokens(machine, path)
    ids = {token.text: token.id for token in special}
    named = _named_tokens({**folder.special_tokens_map, **folder.tokenizer_config}, folder.folder)
    bos_id = machine.token_to_id(named["bos_token"]) if "bos_token" in named else None
    if bos_id is None:
        bos_id = next(iter(_token_ids(folder.config, "bos_token_id", "config.json")), None)
    end_ids = {
        *_token_ids(folder.generation_config, "eos_token_id", "generation_config.json"),
        *_token_ids(folder.config, "eos_token_id", "config.json"),
        *(ids[text] for text in END_OF_ANSWER if text in ids),
    }
    if "eos_token" in named:
        eos_id = machine.token_to_id(named["eos_token"])
        end_ids |= set() if eos_id is None else {eos_id}
    adds_bos = folder.tokenizer_config.get("add_bos_token")
    if not isinstance(adds_bos, bool):
        # Then it is tokenizer.json's post-processor that says what stands before a text.
        adds_bos = bos_id is not None and machine.encode("").ids[:1] == [bos_id]
    vocabulary = JsonVocabulary(machine, special, folder.config, path)
    return Tokenizer(
        vocabulary,
        special,
        bos_id=bos_id,
        adds_bos=adds_bos,
        eos_ids=end_ids,
        named_tokens=named,
        strips_leading_space=vocabulary.strips_leading_space,
    )


class JsonVocabulary:
    """The vocabulary of a tokenizer.json, control tokens left aside."""

    def __init__(
        self,
        machine: Machine,
        special: Sequence[SpecialToken],
        config: Mapping[str, object],
        path: Path,
    ) -> None:
        # A stored truncation or padding would change prompts without a word.
        machine.no_truncation()
        machine.no_padding()
        machine.encode_special_tokens = True
        self._machine = machine
        self._continuing = machine
        ids = machine.get_vocab(with_added_tokens=True).values()
        rows = config.get("vocab_size")
        self._size = max(max(ids, default=-1) + 1, rows if isinstance(rows, int) else 0)
        decoder = _state(machine.decoder)
        self._byte_level = _mentions(decoder, "ByteLevel")
        if not self._byte_level and SPACE not in json.dumps(decoder, ensure_ascii=False):
            raise UnsupportedModelError(
                f"{path}: its decoder is {_kinds(decoder)}, and farthing reads byte-level BPE and "
                "SentencePiece vocabularies: take a text-generation model"
            )
        self._bytes: ByteCheck | None = None
        if self._byte_level and getattr(machine.model, "unk_token", None) is None:
            self._bytes = ByteCheck(
                bytes(
                    byte
                    for byte, character in enumerate(CHARACTERS_OF_BYTES)
                    if machine.token_to_id(character) is not None
                )
            )
        self.strips_leading_space = _strips_leading_space(decoder)
        self._spelled = {token.id: self._spell(token.text) for token in special}
        if _FIRST in json.dumps(_state(machine.pre_tokenizer)):
            # What follows a special token is not first, but looks so once it is cut out.
            description = json.loads(machine.to_str())
            never = json.dumps(description["pre_tokenizer"]).replace(_FIRST, _NEVER)
            description["pre_tokenizer"] = json.loads(never)
            self._continuing = Machine.from_str(json.dumps(description))
            self._continuing.encode_special_tokens = True

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return self._size

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """See `Vocabulary.encode`."""
        if self._bytes is not None:
            self._bytes.check(text)
        machine = self._machine if at_start else self._continuing
        return spell_out(ids_of(machine, text), self._spelled)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Vocabulary.token_bytes`."""
        text = self._machine.id_to_token(token_id)
        if text is None:
            return b""
        if self._byte_level:
            return bytes_of_token(text)
        return _BYTE_OF_TOKEN.get(text) or text.replace(SPACE, " ").encode()

    def longest_token(self) -> int | None:
        """See `Vocabulary.longest_token`."""
        added = self._machine.get_added_tokens_decoder().values()
        stripping = any(token.lstrip or token.rstrip for token in added)
        # Without the check of bytes, one unknown token may stand for any number of characters.
        if self._bytes is None or self._machine.normalizer is not None or stripping:
            return None
        return max(map(len, self._machine.get_vocab(with_added_tokens=True)))

    def _spell(self, text: str) -> list[int]:
        names = CHARACTERS_OF_BYTES if self._byte_level else BYTE_TOKENS
        ids = (self._machine.token_to_id(names[byte]) for byte in text.encode())
        return [token_id for token_id in ids if token_id is not None]


def load_machine(path: Path) -> Machine:
    """What the library makes of a tokenizer.json. Raises `FileFormatError` for one it refuses."""
    if not path.is_file():
        raise FileFormatError(
            f"{path.parent} has no tokenizer.json: fetch it too, or save one with transformers' "
            "AutoTokenizer(...).save_pretrained"
        )
    if path.stat().st_size > MAX_FILE_BYTES:
        raise FileFormatError(f"{path} is larger than the {MAX_FILE_BYTES} bytes that are read")
    try:
        return Machine.from_file(str(path))
    except BaseException as error:
        # The library raises a bare Exception, and for some input a panic outside that family.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise FileFormatError(f"{path} cannot be used ({error}): fetch it again") from error


def _special_tokens(machine: Machine, path: Path) -> list[SpecialToken]:
    special: list[SpecialToken] = []
    for token_id, token in machine.get_added_tokens_decoder().items():
        # The library itself finds the added tokens that are not special.
        if not token.special:
            continue
        if token.single_word:
            raise UnsupportedModelError(
                f"{path}: the special token {token.content!r:.80} is marked single_word, which "
                "farthing does not read"
            )
        special.append(
            SpecialToken(
                token_id,
                token.content,
                control=True,
                strips_left=token.lstrip,
                strips_right=token.rstrip,
            )
        )
    return special


def _named_tokens(settings: Mapping[str, object], folder: Path) -> dict[str, str]:
    named: dict[str, str] = {}
    for key, value in settings.items():
        # {"content": ...} is how an added token is written out.
        text = value.get("content") if isinstance(value, dict) else value
        if not key.endswith("_token") or not isinstance(text, str):
            continue
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise FileFormatError(
                f"{folder}: {key} is {text!r:.60}, which is not valid Unicode: fetch "
                "tokenizer_config.json and special_tokens_map.json again"
            )
        named[key] = text
    return named


def _token_ids(settings: Mapping[str, object], key: str, where: str) -> list[int]:
    value = settings.get(key)
    given = value if isinstance(value, list) else [] if value is None else [value]
    ids = [each for each in given if type(each) is int and each >= 0]
    if len(ids) == len(given):
        return ids
    raise FileFormatError(f"{where}: {key} is {value!r:.60} and must be a token id or a list")


def _state(part: Any) -> object:
    """A part of the library's tokenizer as tokenizer.json writes it; None for an absent part."""
    return None if part is None else json.loads(part.__getstate__())


def _parts(state: object) -> list[Mapping[str, object]]:
    """A decoder's steps: those of a sequence, or itself."""
    if not isinstance(state, dict):
        return []
    steps = state.get("decoders", [state])
    return [step for step in steps if isinstance(step, dict)]


def _mentions(state: object, kind: str) -> bool:
    return any(part.get("type") == kind for part in _parts(state))


def _kinds(state: object) -> str:
    return ", ".join(str(part.get("type")) for part in _parts(state)) or "absent"


def _strips_leading_space(decoder: object) -> bool:
    for part in _parts(decoder):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start"):
            return True
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never":
            return True
    return False
