"""Small model folders whose tokenizer.json is of each kind that is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from farthing.files.checkpoint import open_checkpoint
from farthing.text import Tokenizer, load_tokenizer
from farthing.text.byte_level import CHARACTERS_OF_BYTES

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = {text: i for i, text in enumerate(CHARACTERS_OF_BYTES)}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_SPM_VOCABULARY = {
    **{f"<0x{byte:02X}>": byte for byte in range(256)},
    **{text: 256 + i for i, text in enumerate(["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁", "[", "]"])},
}
_SPM_MODEL = {
    "type": "BPE",
    "vocab": _SPM_VOCABULARY,
    "merges": ["a b", "▁ ab", "▁ a", "▁ ▁"],
    "byte_fallback": True,
    "fuse_unk": True,
    "unk_token": None,
}
_REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_FUSE = [{"type": "ByteFallback"}, {"type": "Fuse"}]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


KINDS: dict[str, dict[str, Any]] = {
    "byte-level": {
        "pre_tokenizer": BYTES,
        "decoder": BYTES,
        "model": {"type": "BPE", "vocab": {**LETTERS, "ab": 256}, "merges": ["a b"]},
    },
    # Llama 2 as first converted: the space is put before every part of the text.
    "prepend": {
        "normalizer": _sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, _TO_MARK),
        "decoder": _sequence("decoders", _REPLACE, *_FUSE, _STRIP),
        "model": _SPM_MODEL,
    },
    # Mistral v0.3: only the beginning of a text gets a space.
    "metaspace-first": {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        },
        "decoder": _sequence("decoders", _REPLACE, *_FUSE, _STRIP),
        "model": _SPM_MODEL,
    },
    # Gemma: no space is added.
    "replace": {
        "normalizer": _TO_MARK,
        "decoder": _sequence("decoders", _REPLACE, *_FUSE),
        "model": _SPM_MODEL,
    },
}
SPECIAL = {"<s>": True, "</s>": True, "<|im_end|>": True, "</think>": False}


def added_tokens(first_id: int, **flags: bool) -> list[dict[str, Any]]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": first_id + i, "content": text, **plain, "special": special, **flags}
        for i, (text, special) in enumerate(SPECIAL.items())
    ]


def description_of(kind: str, **changed: object) -> dict[str, Any]:
    description = {"version": "1.0", **KINDS[kind]}
    description["added_tokens"] = added_tokens(len(description["model"]["vocab"]))
    return {**description, **changed}


def write_folder(path: Path, description: object, **files: object) -> Path:
    path.mkdir(exist_ok=True)
    save_file({"x": np.zeros(1, np.float32)}, path / "model.safetensors")
    for name, content in {
        "config": {"model_type": "llama"},
        "tokenizer": description,
        "tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"},
        **files,
    }.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def load_folder(path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(path))
