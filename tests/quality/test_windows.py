"""Windows: where they lie, what of them is scored, and the one token that begins them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from engine.scripted import tokenizer as byte_tokenizer
from farthing.core import RequestError
from farthing.files.checkpoint import open_checkpoint
from farthing.quality.texts import Text, held_out_text
from farthing.quality.windows import cut_windows, scored_in
from farthing.text.load import load_tokenizer
from farthing.text.tokenizer import Tokenizer

BYTES = byte_tokenizer()
BOS = 257


def beginning(bos: bool) -> Tokenizer:
    """The byte tokenizer, of a model that wants a first token or of one that does not."""
    return Tokenizer(BYTES.vocabulary, [], bos_id=BOS, adds_bos=bos)


def text_of(content: str) -> Text:
    return Text("a text", content, "0" * 64)


def as_llama_cpp(ids: list[int], bos: bool, length: int, count: int) -> list[list[int]]:
    """The chunks of llama.cpp's perplexity tool: one stream cut evenly, first tokens replaced."""
    stream = [BOS, *ids] if bos else ids
    chunks = [stream[i * length : (i + 1) * length] for i in range(count)]
    return [[BOS, *chunk[1:]] if bos else chunk for chunk in chunks]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("length", [8, 9, 32, 256])
def test_windows_lie_where_the_peers_tool_puts_them(bos: bool, length: int) -> None:
    windows = cut_windows(beginning(bos), held_out_text(), 400, length)
    ids = beginning(bos).encode(held_out_text().content[:20_000], add_special_tokens=False)
    assert windows.token_ids.tolist() == as_llama_cpp(ids, bos, length, windows.count)
    assert windows.scored >= 400
    assert windows.scored == windows.count * scored_in(length)


@given(st.booleans(), st.integers(8, 64), st.integers(1, 300))
def test_a_window_begins_with_exactly_one_first_token_where_the_model_wants_one(
    bos: bool, length: int, tokens: int
) -> None:
    windows = cut_windows(beginning(bos), held_out_text(), tokens, length, fewest=2)
    first = windows.token_ids == BOS
    assert first[:, 0].all() == bos
    assert not first[:, 1:].any()
    assert windows.length == length
    assert windows.token_ids.dtype == np.int32


def test_no_token_of_the_text_is_scored_twice_and_only_second_halves_are() -> None:
    content = "".join(chr(65 + i % 26) for i in range(2000))
    windows = cut_windows(beginning(False), text_of(content), 500, 100)
    assert windows.first_scored == 51
    places = np.arange(windows.count)[:, None] * 100 + np.arange(51, 100)
    scored = windows.token_ids[:, windows.first_scored :]
    assert scored.tolist() == [[65 + place % 26 for place in row] for row in places.tolist()]


def test_the_bytes_that_the_scored_tokens_stand_for_are_counted() -> None:
    # Its one merged token, a space and a t, has two bytes.
    tokenizer = load_tokenizer(open_checkpoint(tiny.shared("llama")))
    windows = cut_windows(tokenizer, text_of("ä the tea " * 200), 200, 40)
    rows = windows.token_ids[:, windows.first_scored :].tolist()
    expected = [len(b"".join(map(tokenizer.token_bytes, row))) for row in rows]
    assert windows.scored_bytes.tolist() == expected
    assert max(expected) > scored_in(40)


def test_no_more_of_a_long_text_is_read_than_is_scored() -> None:
    read: list[int] = []

    class Counting(Tokenizer):
        def encode(self, text: str, *args: bool, **options: bool) -> list[int]:  # type: ignore[override]
            read.append(len(text))
            return super().encode(text, *args, **options)

    short = cut_windows(Counting(BYTES.vocabulary, []), held_out_text(), 100, 32)
    assert sum(read) < 10_000
    whole = cut_windows(Counting(BYTES.vocabulary, []), held_out_text(), 50_000, 32)
    assert (whole.token_ids[: short.count] == short.token_ids).all()


def test_a_text_that_is_too_short_says_how_much_there_is_and_what_is_needed() -> None:
    with pytest.raises(RequestError, match=r"too short: it has 500 tokens.*32.*need 1,024"):
        cut_windows(beginning(False), text_of("a" * 500), 480, 32)
    with pytest.raises(RequestError, match="too short"):  # one token in 1,024 is missing
        cut_windows(beginning(False), text_of("a" * 1023), 480, 32)
    assert cut_windows(beginning(False), text_of("a" * 1024), 480, 32).count == 32
    # The first token of each window takes the place of one of the text's, the very first's none.
    assert cut_windows(beginning(True), text_of("a" * 1023), 480, 32).count == 32


@pytest.mark.parametrize(("tokens", "length"), [(0, 256), (-5, 256), (100, 7), (100, 0)])
def test_windows_without_sense_are_refused(tokens: int, length: int) -> None:
    with pytest.raises(RequestError, match="at least"):
        cut_windows(beginning(False), held_out_text(), tokens, length)
