"""The stream decoder, against decoding everything at once."""

from __future__ import annotations

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.text import StreamDecoder, Tokenizer
from farthing.text.special_tokens import SpecialToken


class _Pieces:
    """A vocabulary whose tokens are these byte strings."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @property
    def size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def _tokenizer(pieces: list[bytes], strips_leading_space: bool = False) -> Tokenizer:
    """The pieces, and one control token after them."""
    end = SpecialToken(len(pieces), "<end>", control=True)
    return Tokenizer(
        _Pieces([*pieces, b""]), [end], eos_ids=[end.id], strips_leading_space=strips_leading_space
    )


def _cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Before the stop string that ends first, the longest of several that end together."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def _stream(decoder: StreamDecoder, ids: list[int]) -> list[str]:
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


some_bytes = st.one_of(
    st.binary(max_size=3),
    st.sampled_from("é € 🐍 𝔘 ab aab \n".encode().split(b" ")),
    st.sampled_from([b"\xf0\x9f", b"\x90", b"\x8d", b"\xe2\x82", b"\xac", b"\xc3", b"\xff", b" "]),
    st.text("ab", min_size=1, max_size=4).map(str.encode),
)
stop_strings = st.lists(
    st.text("ab", min_size=1, max_size=5) | st.text("é€🐍 \ufffd", min_size=1, max_size=2),
    max_size=4,
)


@given(st.lists(some_bytes, max_size=25), stop_strings)
def test_pieces_join_to_the_whole_text_cut_at_the_first_stop(
    pieces: list[bytes], stops: list[str]
) -> None:
    tokenizer = _tokenizer(pieces)
    ids = list(range(len(pieces)))
    decoder = StreamDecoder(tokenizer, stops)
    text, stopped = _cut(tokenizer.decode(ids), stops)
    assert "".join(_stream(decoder, ids)) == text
    assert decoder.stopped == stopped


@given(st.text("ab€🐍"), stop_strings, st.data())
def test_how_a_text_falls_into_tokens_makes_no_difference(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[a:b] for a, b in pairwise(cuts)]
    decoder = StreamDecoder(_tokenizer(pieces), stops)
    shown = "".join(_stream(decoder, list(range(len(pieces)))))
    assert (shown, decoder.stopped) == _cut(text, stops)


@given(st.lists(some_bytes, max_size=25), stop_strings)
def test_nothing_is_ever_shown_that_must_be_taken_back(
    pieces: list[bytes], stops: list[str]
) -> None:
    tokenizer = _tokenizer(pieces)
    decoder = StreamDecoder(tokenizer, stops)
    shown = ""
    for token_id in range(len(pieces)):
        shown += decoder.push(token_id)
        so_far = b"".join(pieces[: token_id + 1])
        # Whatever comes next, what was shown stays the beginning of the text.
        for more in (b"", b"\x8d", b"b", b"ab\xc3", "🐍".encode()):
            text, _ = _cut((so_far + more).decode("utf-8", "replace"), stops)
            assert text.startswith(shown)


def test_half_a_character_is_held_back_until_it_is_whole() -> None:
    snake = "🐍".encode()
    decoder = StreamDecoder(_tokenizer([snake[:1], snake[1:3], snake[3:], b"x"]))
    assert [decoder.push(i) for i in (0, 1, 2, 3)] == ["", "", "🐍", "x"]


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    decoder = StreamDecoder(_tokenizer([b"\xf0\x9f", b"a", b"\xc3"]))
    assert [decoder.push(i) for i in (0, 1, 2)] == ["", "\ufffda", ""]
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_half_a_stop_string_is_held_back_until_it_is_decided() -> None:
    decoder = StreamDecoder(
        _tokenizer([b"x\n", b"Us", b"e", b"\nUser", b":", b"more"]), ["\nUser:"]
    )
    assert [decoder.push(i) for i in range(6)] == ["x", "", "", "\nUse", "", ""]
    assert decoder.stopped == "\nUser:"
    assert decoder.finish() == ""


def test_of_overlapping_stop_strings_the_one_complete_first_wins() -> None:
    decoder = StreamDecoder(_tokenizer([b"1abcd2"]), ["abcd", "bc"])
    assert decoder.push(0) == "1a"
    assert decoder.stopped == "bc"
    decoder = StreamDecoder(_tokenizer([b"1abcd2"]), ["bc", "abc"])
    assert decoder.push(0) == "1"
    assert decoder.stopped == "abc"


def test_stop_strings_watched_later_do_not_look_back() -> None:
    decoder = StreamDecoder(_tokenizer([b"ab", b"c", b"abc"]))
    assert decoder.push(0) == "ab"
    decoder.watch(["abc"])
    assert [decoder.push(1), decoder.push(2)] == ["c", ""]
    assert decoder.stopped == "abc"


def test_control_tokens_are_shown_only_when_asked_for() -> None:
    tokenizer = _tokenizer([b"a", b"\xc3", b"\xa9"])
    assert _stream(StreamDecoder(tokenizer), [0, 3]) == ["a", "", ""]
    assert _stream(StreamDecoder(tokenizer, skip_special_tokens=False), [0, 3]) == [
        *("a", "<end>", "")
    ]
    # A control token that is left out does not come between the halves of a character.
    assert _stream(StreamDecoder(tokenizer), [1, 3, 2]) == ["", "", "é", ""]


@pytest.mark.parametrize(
    "pieces", [[b" a", b" b"], [b"", b" ", b" b"], [b"  ", b" "], [b"a", b" "]]
)
def test_a_continuation_keeps_the_space_that_a_whole_text_loses(pieces: list[bytes]) -> None:
    tokenizer = _tokenizer(pieces, strips_leading_space=True)
    ids = list(range(len(pieces)))
    joined = b"".join(pieces).decode()
    assert "".join(_stream(StreamDecoder(tokenizer), ids)) == joined
    whole = "".join(_stream(StreamDecoder(tokenizer, continuation=False), ids))
    assert whole == tokenizer.decode(ids) == joined.removeprefix(" ")


def test_an_empty_stop_string_and_an_unknown_id_are_refused() -> None:
    with pytest.raises(RequestError, match="must not be empty"):
        StreamDecoder(_tokenizer([b"a"]), [""])
    with pytest.raises(RequestError, match="outside the vocabulary"):
        StreamDecoder(_tokenizer([b"a"])).push(7)


def test_time_is_linear_in_the_text_even_while_a_stop_string_is_half_there() -> None:
    tokenizer = _tokenizer([b"a", b"b"])

    def seconds(tokens: int) -> float:
        decoder = StreamDecoder(tokenizer, ["a" * 200 + "b", "ba" * 50 + "c"])
        start = process_time()
        for _ in range(tokens):
            decoder.push(0)
        return process_time() - start

    seconds(1000)
    # Decoding everything anew for each token would be a hundredfold.
    assert seconds(40_000) < 40 * max(seconds(4_000), 0.01)
