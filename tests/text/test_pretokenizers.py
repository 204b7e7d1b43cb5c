"""Pre-tokenizers against llama.cpp's recorded answers and against the models' published rules."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Machine

from farthing.core import UnsupportedModelError
from farthing.text import tokenizer_from_gguf
from farthing.text.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from farthing.text import Tokenizer

# Where llama.cpp approximates a published rule, which characters it gets wrong.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def _has_wide_space(text: str) -> bool:
    """llama.cpp reads white space beyond ASCII as a vertical tab in these rules."""
    return _WIDE_SPACE.search(text) is not None


def _has_case_or_mark_beyond_ascii(text: str) -> bool:
    """llama.cpp takes \\p{Lu} and \\p{Ll} for [A-Z] and [a-z], and leaves out \\p{M}."""
    return any(
        ord(each) > 127 and unicodedata.category(each) in ("Lu", "Ll", "Lt", "Mn", "Mc")
        for each in text
    )


APPROXIMATED = {
    "deepseek-coder": _has_wide_space,
    "deepseek-llm": _has_wide_space,
    "gpt-4o": _has_case_or_mark_beyond_ascii,
    "tekken": _has_case_or_mark_beyond_ascii,
}


def _tokenizer(metadata: dict[str, Any], name: str) -> Tokenizer:
    return tokenizer_from_gguf({**metadata, "tokenizer.ggml.pre": name})


def test_every_known_name_was_asked_of_the_peer(peer: dict[str, Any]) -> None:
    asked = {name for group in peer["byte_level"]["groups"] for name in group["names"]}
    assert asked == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_tokens_equal_the_peers(
    name: str, peer: dict[str, Any], byte_level_metadata: dict[str, Any]
) -> None:
    group = next(each for each in peer["byte_level"]["groups"] if name in each["names"])
    approximated = next((APPROXIMATED[n] for n in group["names"] if n in APPROXIMATED), None)
    tokenizer = _tokenizer(byte_level_metadata, name)
    different = [
        text
        for text, ids in zip(peer["strings"], group["plain"], strict=True)
        if tokenizer.encode(text, add_special_tokens=False) != ids
    ]
    assert [text for text in different if not (approximated and approximated(text))] == []
    assert bool(different) == (approximated is not None)


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_BYTES = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
_GPT2 = {**_BYTES, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
# As they stand in the tokenizer.json of these models.
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_GPT2],
    "smollm": [_DIGITS, _GPT2],
    "starcoder": [_DIGITS, _GPT2],
    "llama-bpe": [
        _split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "qwen2": [
        _split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "tekken": [
        _split(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "gpt-4o": [
        _split(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "deepseek-coder": [
        _split("[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split("[一-龥ࠀ-一가-\ud7ff]+"),
        _DIGITS,
        _BYTES,
    ],
    "deepseek-v3": [
        _split(r"\p{N}{1,3}"),
        _split("[一-龥\u3040-ゟ゠-ヿ]+"),
        _split(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
            "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
        ),
        _BYTES,
    ],
}
IGNORE_MERGES = ("llama-bpe", "tekken")


def _published(metadata: dict[str, Any], name: str) -> Machine:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    added = [
        {
            "id": token_id,
            "content": tokens[token_id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == 3,
        }
        for token_id, kind in enumerate(types)
        if kind != 1
    ]
    machine = Machine.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": PUBLISHED[name]},
                "decoder": _BYTES,
                "model": {
                    "type": "BPE",
                    "vocab": {text: i for i, text in enumerate(tokens) if types[i] == 1},
                    "merges": metadata["tokenizer.ggml.merges"],
                    "ignore_merges": name in IGNORE_MERGES,
                },
            }
        )
    )
    machine.encode_special_tokens = True
    return machine


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_tokens_equal_those_of_the_published_rule(
    name: str, peer: dict[str, Any], byte_level_metadata: dict[str, Any]
) -> None:
    tokenizer = _tokenizer(byte_level_metadata, name)
    machine = _published(byte_level_metadata, name)
    for text in peer["strings"]:
        assert tokenizer.encode(text, add_special_tokens=False) == machine.encode(text).ids, text

    @given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\r'sSlL1२éÉ/.")))
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == machine.encode(text).ids
        assert tokenizer.decode(ids) == text

    check()


@pytest.mark.parametrize(("name", "adds_bos"), [("llama-bpe", True), ("qwen2", False)])
def test_chat_text_equals_the_peers_but_for_a_doubled_bos(
    name: str, adds_bos: bool, peer: dict[str, Any], byte_level_metadata: dict[str, Any]
) -> None:
    tokenizer = _tokenizer(byte_level_metadata, name)
    bos = tokenizer.bos_id
    assert tokenizer.adds_bos == adds_bos
    for text, ids in zip(peer["strings"], peer["byte_level"]["chat"][name], strict=True):
        expected = ids[1:] if adds_bos and ids[:2] == [bos, bos] else ids
        assert tokenizer.encode(text, parse_special=True) == expected


def test_an_unknown_name_is_refused_with_the_known_ones(
    byte_level_metadata: dict[str, Any],
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'llama-bpe-2'.*Known are.*qwen2"):
        _tokenizer(byte_level_metadata, "llama-bpe-2")
