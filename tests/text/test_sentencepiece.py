"""Merging by scores, against the peer and against the rule written out."""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.text import tokenizer_from_gguf
from farthing.text.sentencepiece import SPACE, ScoredVocabulary

if TYPE_CHECKING:
    from farthing.text import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _vocabulary(scores: dict[str, float], adds_space: bool = False) -> ScoredVocabulary:
    texts = ["<unk>", *BYTES, *scores]
    return ScoredVocabulary(
        texts,
        [0.0] * 257 + list(scores.values()),
        mergeable_ids={text: token_id for token_id, text in enumerate(texts) if token_id > 256},
        byte_ids={byte: 1 + byte for byte in range(256)},
        unknown_id=0,
        silent_ids=frozenset(),
        adds_space=adds_space,
    )


def _merge_by_the_rule(text: str, scores: dict[str, float]) -> list[str]:
    """Merges the best-scored pair, the leftmost of equals, looking at all of them each time."""
    symbols = list(text.replace(" ", SPACE))
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            return symbols
        _, place = min(pairs)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


pieces = st.text(f"ab{SPACE}é", min_size=1, max_size=5)


@given(
    st.dictionaries(pieces, st.integers(-3, 3).map(float), max_size=25),
    st.text("ab é", max_size=30),
)
def test_merges_are_those_of_the_rule_written_out(scores: dict[str, float], text: str) -> None:
    vocabulary = _vocabulary(scores)
    texts = ["<unk>", *BYTES, *scores]
    expected = [
        token
        for symbol in _merge_by_the_rule(text, scores)
        for token in ([symbol] if symbol in scores else [BYTES[b] for b in symbol.encode()])
    ]
    first = [texts[token_id] for token_id in vocabulary.encode(text, at_start=True)]
    assert first == expected
    # The second time the words come out of the cache.
    assert [texts[token_id] for token_id in vocabulary.encode(text, at_start=True)] == expected


@pytest.mark.parametrize("case", [0, 1, 2])
def test_tokens_equal_the_peers_unless_text_would_become_a_control_token(
    case: int, peer: dict[str, Any]
) -> None:
    recorded = peer["scored"][case]
    tokenizer = tokenizer_from_gguf(recorded["metadata"])
    forged = 0
    for text, ids in zip(peer["strings"], recorded["plain"], strict=True):
        mine = tokenizer.encode(text, add_special_tokens=False)
        if any(tokenizer.is_special(token_id) for token_id in ids):
            # The peer's merges formed <s> out of plain text; ours must not.
            assert "<s>" in text
            assert not any(tokenizer.is_special(token_id) for token_id in mine)
            forged += 1
        else:
            assert mine == ids
    assert forged <= 1


@pytest.mark.parametrize("case", [0, 1, 2])
def test_chat_text_equals_the_peers_but_for_a_doubled_bos(case: int, peer: dict[str, Any]) -> None:
    recorded = peer["scored"][case]
    tokenizer = tokenizer_from_gguf(recorded["metadata"])
    for text, ids in zip(peer["strings"], recorded["chat"], strict=True):
        expected = ids[1:] if ids[:2] == [1, 1] else ids
        assert tokenizer.encode(text, parse_special=True) == expected


@pytest.mark.parametrize("case", [0, 1, 2])
def test_decoded_text_equals_the_peers(case: int, peer: dict[str, Any]) -> None:
    recorded = peer["scored"][case]
    tokenizer = tokenizer_from_gguf(recorded["metadata"])
    for ids, text in zip(recorded["plain"], recorded["decoded"], strict=True):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_text_begins_with_a_space_that_decoding_takes_away(scored_tokenizer: Tokenizer) -> None:
    ids = scored_tokenizer.encode("the", add_special_tokens=False)
    assert scored_tokenizer.token_bytes(ids[0]).startswith(b" ")
    assert scored_tokenizer.decode(ids) == "the"
    assert scored_tokenizer.decode(ids, continuation=True) == " the"
    for text in (" the", "  the", ""):
        assert scored_tokenizer.decode(scored_tokenizer.encode(text)) == text


def test_bytes_stand_in_for_what_is_no_token() -> None:
    vocabulary = _vocabulary({"a": 0.0})
    ids = vocabulary.encode("a🐍", at_start=True)
    assert ids == [257, *(1 + byte for byte in "🐍".encode())]
    assert b"".join(map(vocabulary.token_bytes, ids)).decode() == "a🐍"


def test_a_long_text_without_spaces_takes_no_quadratic_time() -> None:
    vocabulary = _vocabulary({"a" * length: -float(length) for length in range(1, 20)})

    def seconds(characters: int) -> float:
        start = process_time()
        vocabulary.encode("a" * characters, at_start=True)
        return process_time() - start

    seconds(1000)
    # Quadratic time would be a hundredfold.
    assert seconds(100_000) < 40 * max(seconds(10_000), 0.01)
