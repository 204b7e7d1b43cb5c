"""GGUF metadata that describes a tokenizer, and metadata that fails to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FarthingError, FileFormatError, RequestError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.text import Tokenizer, load_tokenizer, tokenizer_from_gguf
from farthing.text.byte_level import CHARACTERS_OF_BYTES
from make_vocabularies import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = list(CHARACTERS_OF_BYTES)


def _byte_level(**changed: object) -> dict[str, Any]:
    tokens = [*LETTERS, "ab", "<|im_end|>", "</think>"]
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * 257 + [3, 4],
        "merges": ["a b"],
        "eos_token_id": 257,
    }
    metadata |= changed
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def _scored(**changed: object) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    metadata: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-1.0, -2.0, -3.0],
        "token_type": [2, 3, 3, *[6] * 256, 1, 1, 1],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    metadata |= changed
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def test_a_tokenizer_written_to_a_file_reads_as_from_memory(tmp_path: Path) -> None:
    for name, metadata in (("bpe", _byte_level()), ("scored", _scored())):
        write_gguf(tmp_path / f"{name}.gguf", metadata)
        tokenizer = load_tokenizer(open_checkpoint(tmp_path / f"{name}.gguf"))
        expected = tokenizer_from_gguf(metadata)
        assert tokenizer.encode("abba a\n") == expected.encode("abba a\n")
        assert tokenizer.eos_ids == expected.eos_ids
        assert tokenizer.named_tokens == expected.named_tokens


def test_user_defined_tokens_are_matched_in_plain_text_and_control_tokens_when_asked() -> None:
    tokenizer = tokenizer_from_gguf(_byte_level())
    plain = tokenizer.encode("ab<|im_end|></think>")
    assert (plain[0], plain[-1]) == (256, 258)
    assert 257 not in plain
    assert tokenizer.decode(plain) == "ab<|im_end|></think>"
    parsed = tokenizer.encode("ab<|im_end|></think>", parse_special=True)
    assert parsed == [256, 257, 258]
    assert tokenizer.decode(parsed) == "ab</think>"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == "ab<|im_end|></think>"
    assert [tokenizer.is_special(token_id) for token_id in (256, 257, 258)] == [False, True, False]


def test_merges_form_no_control_token_out_of_plain_text() -> None:
    tokens = [*LETTERS, "<x", "<x>", "<x>a"]
    merges = ["< x", "<x >", "<x> a"]
    metadata = _byte_level(
        tokens=tokens, token_type=[1] * 257 + [3, 1], merges=merges, pre="bloom", eos_token_id=None
    )
    tokenizer = tokenizer_from_gguf(metadata)
    plain = tokenizer.encode("b<x>")
    assert tokenizer.decode(plain) == "b<x>"
    assert plain == [LETTERS.index(each) for each in "b<x>"]
    assert tokenizer.encode("b<x>", parse_special=True) == [LETTERS.index("b"), 257]
    assert tokenizer.encode("<x>a") == [258]


def test_one_bos_is_added_where_the_model_wants_it() -> None:
    wanted = tokenizer_from_gguf(_scored())
    assert wanted.encode("a") == [1, 261]
    assert wanted.encode("<s>a", parse_special=True) == [1, 261]
    assert wanted.encode("<s>a")[0] == 1
    assert wanted.decode(wanted.encode("<s>a")) == "<s>a"
    assert wanted.encode("a", add_special_tokens=False) == [261]
    assert tokenizer_from_gguf(_scored(add_bos_token=False)).encode("a") == [261]
    assert tokenizer_from_gguf(_scored(bos_token_id=None)).encode("a") == [261]
    asked = tokenizer_from_gguf(_byte_level(add_bos_token=True, bos_token_id=257))
    assert asked.encode("ab") == [257, 256]


@pytest.mark.parametrize(
    ("texts", "named", "expected"),
    [
        (["<|im_end|>"], {}, {"<|im_end|>"}),
        (["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {}, {"<|eot_id|>", "<|eom_id|>"}),
        (["<x>", "<y>", "<z>"], {"eot": "<y>", "eom": "<z>"}, {"<y>", "<z>"}),
        (["</s>"], {}, set()),
        (["<|return|>", "<|call|>", "<|end|>"], {}, {"<|return|>", "<|call|>"}),
        (["<|end|>"], {}, {"<|end|>"}),
    ],
)
def test_tokens_that_end_an_answer_are_known_by_key_and_by_text(
    texts: list[str], named: dict[str, str], expected: set[str]
) -> None:
    tokens = [*LETTERS, "<end>", *texts]
    keys = {f"{key}_token_id": tokens.index(text) for key, text in named.items()}
    tokenizer = tokenizer_from_gguf(
        _byte_level(
            tokens=tokens,
            token_type=[1] * 256 + [3] * (1 + len(texts)),
            merges=[],
            eos_token_id=256,
            **keys,
        )
    )
    found = {tokens[token_id] for token_id in tokenizer.eos_ids}
    assert found - {"<|end_of_text|>"} == expected | {"<end>"}


def test_a_byte_the_vocabulary_lacks_is_refused_not_dropped() -> None:
    tokens = ["" if text == CHARACTERS_OF_BYTES[4] else text for text in LETTERS]
    tokenizer = tokenizer_from_gguf(
        _byte_level(tokens=tokens, token_type=None, merges=[], eos_token_id=None)
    )
    assert tokenizer.decode(tokenizer.encode("a\x05b")) == "a\x05b"
    with pytest.raises(RequestError, match=r"U\+0004"):
        tokenizer.encode("a\x04b")


def test_half_a_surrogate_pair_is_refused(qwen_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D83D at character 2"):
        qwen_tokenizer.encode("ab\ud83d")


def test_an_id_outside_the_vocabulary_is_refused(qwen_tokenizer: Tokenizer) -> None:
    for token_id in (-1, qwen_tokenizer.vocabulary_size):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            qwen_tokenizer.decode([token_id])


def test_unused_tokens_are_silent() -> None:
    tokenizer = tokenizer_from_gguf(_byte_level(token_type=[1] * 256 + [5, 3, 4]))
    assert tokenizer.token_bytes(256) == b""
    tokens = [*LETTERS, "", "[PAD1]"]
    tokenizer = tokenizer_from_gguf(_byte_level(tokens=tokens, token_type=None, merges=[]))
    assert tokenizer.token_bytes(256) == b""


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({}, UnsupportedModelError, "holds no tokenizer"),
        (_byte_level(model="none"), UnsupportedModelError, "holds no tokenizer"),
        (_byte_level(model="bert"), UnsupportedModelError, "'bert' is not known; known are gpt2"),
        (_byte_level(model=7), FileFormatError, "model is 7 and must be a string"),
        (_byte_level(pre="new"), UnsupportedModelError, "pre-tokenizer 'new' is not known"),
        (_byte_level(tokens=None), FileFormatError, "tokens is absent and must be an array of"),
        (_byte_level(tokens=[]), FileFormatError, "tokens is empty"),
        (_byte_level(tokens=[1, 2]), FileFormatError, "must be an array of strings"),
        (_byte_level(tokens="abc"), FileFormatError, "must be an array of strings"),
        (_byte_level(tokens=[*LETTERS, "a", "b", "c"]), FileFormatError, "'a' stands twice"),
        (_byte_level(tokens=["\ud800"]), FileFormatError, "not valid Unicode"),
        (_byte_level(merges=None), FileFormatError, "merges is absent"),
        (_byte_level(merges=["ab"]), FileFormatError, "'ab' is not two tokens"),
        (_byte_level(merges=["a b c"]), FileFormatError, "'a b c' is not two tokens"),
        (_byte_level(merges=["a zz"]), FileFormatError, "do not fit the vocabulary"),
        (_byte_level(merges=["a c"]), FileFormatError, "do not fit the vocabulary"),
        (_byte_level(token_type=[1]), FileFormatError, "an array of 259 numbers"),
        (_byte_level(token_type=["a"] * 259), FileFormatError, "an array of 259 numbers"),
        (_byte_level(token_type=[[1]] * 259), FileFormatError, "an array of 259 numbers"),
        (_byte_level(eos_token_id=259), FileFormatError, "eos_token_id is 259, and the vocabulary"),
        (_byte_level(eos_token_id=-1), FileFormatError, "eos_token_id is -1"),
        (_byte_level(eos_token_id="x"), FileFormatError, "must be a token id"),
        (_byte_level(add_bos_token=True), FileFormatError, "no tokenizer.ggml.bos_token_id"),
        (_byte_level(add_bos_token=1), FileFormatError, "must be true or false"),
        (_scored(scores=None), FileFormatError, "scores is absent"),
        (_scored(scores=[0.0]), FileFormatError, "an array of 262 numbers"),
        (_scored(scores=[float("nan")] * 262), FileFormatError, "free of NaN"),
        (_scored(token_type=[6] * 262), FileFormatError, "must look like <0x0A>"),
        (_scored(token_type=[1] * 262, unknown_token_id=None), FileFormatError, "0 of the 256"),
    ],
)
def test_metadata_that_is_not_sound_is_one_clear_error(
    metadata: dict[str, Any], error: type[FarthingError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        tokenizer_from_gguf(metadata, "model.gguf")
    assert str(raised.value).startswith("model.gguf")


odd_values = st.one_of(
    st.none(),
    st.integers(-5, 300),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.text(max_size=3), max_size=5),
    st.lists(st.integers(-3, 8), min_size=259, max_size=259),
    st.lists(st.floats(width=32), min_size=262, max_size=262).map(np.float32),
    st.lists(st.sampled_from(["a b", "ab a", " ", "a", "b  a", "\ud800 a"]), max_size=3),
)
KEYS = (
    "model pre tokens token_type merges scores eos_token_id bos_token_id unknown_token_id "
    "padding_token_id add_bos_token add_space_prefix"
)


@given(
    st.sampled_from([_byte_level, _scored]),
    st.dictionaries(st.sampled_from(KEYS.split()), odd_values, max_size=4),
)
def test_any_metadata_gives_a_tokenizer_or_a_clear_error(
    build: Any, changed: dict[str, object]
) -> None:
    try:
        tokenizer = tokenizer_from_gguf(build(**changed))
    except FarthingError:
        return
    ids = tokenizer.encode("a b\né", add_special_tokens=False)
    assert all(0 <= token_id < tokenizer.vocabulary_size for token_id in ids)
    tokenizer.decode(ids)
