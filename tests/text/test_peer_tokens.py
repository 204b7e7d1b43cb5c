"""The two real models' tokens, against llama.cpp's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.text import Tokenizer

MISSING_FROM_SMOLLM2 = "\x04\x06\x13\x14\x16\x1d"
"""Their bytes are not in SmolLM2's vocabulary, nor are those that begin planes 4 to 11."""
smollm2_text = st.text(
    st.characters(
        exclude_categories=["Cs"], exclude_characters=MISSING_FROM_SMOLLM2, max_codepoint=0x3FFFF
    )
)


@pytest.mark.parametrize(
    ("name", "fixture"),
    [("smollm2-135m", "smollm2_tokenizer"), ("gemma3-270m", "gemma3_tokenizer")],
)
def test_tokens_equal_the_peers_on_all_recorded_strings(
    name: str,
    fixture: str,
    goldens: Callable[[str], dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(fixture)
    cases = goldens(name)["tokens"]
    different = [
        (case["text"], case["ids"], ids)
        for case in cases
        if (ids := tokenizer.encode(case["text"], add_special_tokens=False)) != case["ids"]
    ]
    assert len(cases) >= 2000
    assert different == []


@pytest.mark.parametrize(
    ("name", "fixture"),
    [("smollm2-135m", "smollm2_tokenizer"), ("gemma3-270m", "gemma3_tokenizer")],
)
def test_decoding_gives_back_every_recorded_string(
    name: str,
    fixture: str,
    goldens: Callable[[str], dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(fixture)
    for case in goldens(name)["tokens"]:
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]


def test_smollm2_decodes_what_it_encodes(smollm2_tokenizer: Tokenizer) -> None:
    @given(smollm2_text)
    def check(text: str) -> None:
        ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
        assert smollm2_tokenizer.decode(ids) == text

    check()


def test_gemma3_decodes_what_it_encodes_but_for_its_own_mark_of_a_space(
    gemma3_tokenizer: Tokenizer,
) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
    def check(text: str) -> None:
        ids = gemma3_tokenizer.encode(text, add_special_tokens=False)
        assert gemma3_tokenizer.decode(ids) == text

    check()


def test_only_gemma3_begins_a_text_with_a_token_of_its_own(
    smollm2_tokenizer: Tokenizer, gemma3_tokenizer: Tokenizer
) -> None:
    assert gemma3_tokenizer.encode("Hello") == [2, *gemma3_tokenizer.encode("Hello", False)]
    assert gemma3_tokenizer.encode("") == [2]
    assert smollm2_tokenizer.encode("Hello") == smollm2_tokenizer.encode("Hello", False)


def test_the_tokens_that_end_an_answer_are_known(
    smollm2_tokenizer: Tokenizer, gemma3_tokenizer: Tokenizer
) -> None:
    def texts(tokenizer: Tokenizer) -> set[bytes]:
        return {tokenizer.token_bytes(end) for end in tokenizer.eos_ids}

    assert texts(smollm2_tokenizer) == {b"<|im_end|>", b"<|endoftext|>"}
    assert texts(gemma3_tokenizer) == {b"<eos>", b"<end_of_turn>"}
