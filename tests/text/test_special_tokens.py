"""Special tokens in text, and text that must not become special tokens."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FileFormatError
from farthing.text.special_tokens import SpecialToken, SpecialTokenMatcher

SEPARATOR = "\ufdd0"


def _matcher(*texts: str) -> SpecialTokenMatcher:
    return SpecialTokenMatcher(SpecialToken(i, text, True) for i, text in enumerate(texts))


@pytest.mark.parametrize(
    ("tokens", "text", "pieces"),
    [
        (["<a>"], "", []),
        (["<a>"], "x<a>y", ["x", 0, "y"]),
        (["<a>"], "<a><a>", [0, 0]),
        (["<a>"], "<a<a>", ["<a", 0]),
        (["<a>", "<a>>"], "<a>>", [1]),
        (["ab", "bcd"], "abcd", [0, "cd"]),
        (["\n", "\n\n\n"], "\n\n\n\n\n", [1, 0, 0]),
        ([".*", "[", "^"], "a.*b[^", ["a", 0, "b", 1, 2]),
        ([], "text", ["text"]),
        ([""], "text", ["text"]),
    ],
)
def test_the_leftmost_and_longest_token_is_matched(
    tokens: list[str], text: str, pieces: list[str | int]
) -> None:
    assert list(_matcher(*tokens).split(text)) == pieces


def test_a_token_that_strips_swallows_the_white_space_beside_it() -> None:
    tokens = [
        SpecialToken(0, "<l>", True, strips_left=True),
        SpecialToken(1, "<r>", True, strips_right=True),
    ]
    pieces = list(SpecialTokenMatcher(tokens).split("a \n<l> b <r>\t\n c <r>  "))
    assert pieces == ["a", 0, " b ", 1, "c ", 1]


def test_an_overlong_special_token_is_refused() -> None:
    with pytest.raises(FileFormatError, match="600 characters"):
        _matcher("<" * 600)


short_text = st.text("ab<|>", max_size=8)


@given(st.lists(short_text.filter(bool), min_size=1, max_size=5), st.text("ab<|>"))
def test_splitting_finds_what_a_regular_expression_finds(tokens: list[str], text: str) -> None:
    longest_first = sorted(set(tokens), key=len, reverse=True)
    ids = {token: i for i, token in enumerate(longest_first)}
    expected: list[str | int] = [
        ids.get(piece, piece) if odd else piece
        for odd, piece in enumerate(re.split(f"({'|'.join(map(re.escape, longest_first))})", text))
        for odd in [odd % 2]
        if piece
    ]
    assert list(_matcher(*longest_first).split(text)) == expected


@given(st.lists(short_text.filter(bool), min_size=1, max_size=5), short_text, short_text)
def test_a_broken_up_text_matches_nowhere_and_is_otherwise_the_same(
    tokens: list[str], text: str, following: str
) -> None:
    matcher = _matcher(*set(tokens))
    broken = matcher.break_up(text, SEPARATOR)
    assert broken.replace(SEPARATOR, "") == text
    position = 0
    for piece in matcher.split(broken + following, SEPARATOR):
        length = len(piece) if isinstance(piece, str) else len(list(set(tokens))[piece])
        assert isinstance(piece, str) or position >= len(broken)
        position += length


def test_text_without_special_tokens_is_left_as_it_is() -> None:
    assert _matcher("<|im_end|>").break_up("a < b and <|im_start|>", SEPARATOR) == (
        "a < b and <|im_start|>"
    )
