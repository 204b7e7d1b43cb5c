"""Texts too long for a context are refused before they are encoded, and no others are."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.text import ChatTemplate, Tokenizer
from farthing.text.special_tokens import SpecialToken
from text.json_folders import KINDS, description_of, load_folder, write_folder

if TYPE_CHECKING:
    from pathlib import Path

texts = st.lists(
    st.sampled_from(
        ["=", "\n", "\t", "▁", "🐍", "日", "a", "the", "</s>", "<|im_end|>", "<s>", "▁▁"]
    ).flatmap(lambda piece: st.integers(1, 200).map(lambda times: piece * times))
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    max_size=6,
).map("".join)


@pytest.fixture(params=["smollm2", "gemma3", "qwen", "scored", *sorted(KINDS)])
def any_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    if request.param not in KINDS:
        return request.getfixturevalue(f"{request.param}_tokenizer")
    folder = write_folder(tmp_path_factory.mktemp("folder"), description_of(request.param))
    return load_folder(folder)


def test_no_text_is_refused_that_has_as_many_tokens_as_allowed(any_tokenizer: Tokenizer) -> None:
    @given(texts, st.booleans())
    def check(text: str, parse_special: bool) -> None:
        try:
            ids = any_tokenizer.encode(text, parse_special=parse_special)
        except RequestError:  # a character that the vocabulary lacks
            return
        most = any_tokenizer.encode(text, parse_special=parse_special, most_tokens=len(ids))
        assert most == ids

    check()


@pytest.mark.parametrize("name", ["smollm2", "gemma3", "scored", "qwen"])
def test_a_text_that_cannot_fit_costs_next_to_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(f"{name}_tokenizer")
    text = "word " * 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="10000000 characters, which make at least"):
            tokenizer.encode(text, most_tokens=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_the_separators_of_a_chat_do_not_count(qwen_tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", qwen_tokenizer)
    chat: list[dict[str, Any]] = [{"role": "user", "content": "<|im_end|>" * 50}]
    ids = template.encode(chat)
    assert template.encode(chat, most_tokens=len(ids)) == ids
    with pytest.raises(RequestError, match="500 characters, which make at least"):
        template.encode(chat, most_tokens=1)


def test_where_a_token_swallows_white_space_nothing_is_known_beforehand(
    qwen_tokenizer: Tokenizer,
) -> None:
    swallowing = Tokenizer(
        qwen_tokenizer._vocabulary, [SpecialToken(0, "<x>", True, strips_right=True)]
    )
    text = "<x>" + " " * 100_000
    assert swallowing.encode(text, parse_special=True, most_tokens=1) == [0]


def test_where_a_normaliser_drops_text_nothing_is_known_beforehand(tmp_path: Path) -> None:
    squeezing = {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}
    description = description_of("byte-level", normalizer=squeezing)
    tokenizer = load_folder(write_folder(tmp_path, description))
    assert len(tokenizer.encode("a" * 100_000, most_tokens=10)) == 1
