"""Guesses that are looked up: in the text itself, and in recent ones of the same key."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import engine, saying
from engine.test_speculate import facts
from farthing.core import Request, RequestError, SamplingParams
from farthing.engine.drafting import MOST_TRAFFIC, drafting_of
from farthing.engine.engine import Engine
from farthing.engine.lookup import LONGEST, LookupDrafter, Occurrences
from farthing.engine.recent import RecentTexts
from farthing.engine.sequence import Sequence
from farthing.engine.speculate import Speculation
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.plan.process import LOOKUP_TOKEN_BYTES
from tiny import build

if TYPE_CHECKING:
    from pathlib import Path

CANDIDATES = 16


def sequence_of(tokens: list[int], key: str = "") -> Sequence:
    return Sequence(Request("r", tuple(tokens), SamplingParams(), key=key), 10**6, frozenset())


def guesses(tokens: list[int], most: int = 4) -> list[int]:
    return LookupDrafter().propose([sequence_of(tokens)], [most])[0]


@pytest.mark.parametrize(
    ("tokens", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        ([1, 2, 3, 9, 1, 2, 4, 8, 1, 2], [4, 8, 1, 2]),  # the latest counts
        ([7, 1, 2, 3, 9, 9, 1, 2, 4, 9, 7, 1, 2], [3, 9, 9, 1]),  # the longest counts before it
        ([5, 6, 5, 6], [5, 6, 5, 6]),  # what repeats itself goes on to
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([1, 2], []),
        ([1], []),
    ],
)
def test_what_followed_before_is_guessed_to_follow_again(
    tokens: list[int], guess: list[int]
) -> None:
    assert guesses(tokens) == guess


def naive(text: list[int], wanted: list[int], known: int) -> tuple[int, int] | None:
    """Length and end of the best match, by comparing at every place; the oracle.

    What ends before `known` counts, and of the occurrences of the last pair the latest sixteen.
    """
    found: list[tuple[int, int]] = []
    for end in range(known, 1, -1):
        if len(found) == CANDIDATES or text[end - 2 : end] != wanted[-2:]:
            continue
        length = 2
        while length < min(LONGEST, end, len(wanted)) and (
            text[end - 1 - length] == wanted[-1 - length]
        ):
            length += 1
        found.append((length, end))
    return max(found) if found else None


@given(st.lists(st.integers(0, 3), min_size=2, max_size=120))
def test_the_longest_latest_run_is_found_as_by_comparing_everywhere(tokens: list[int]) -> None:
    index = Occurrences()
    for count in range(1, len(tokens) + 1):
        text = tokens[:count]
        index.take_in(text)
        found = index.find(text, text)
        expected = naive(text, text, count - 1) if count >= 2 else None
        assert (None if found is None else (found.length, found.end)) == expected


@given(st.lists(st.integers(0, 2), min_size=3, max_size=60), st.integers(1, 7))
def test_an_index_that_is_behind_finds_what_it_has_taken_in(tokens: list[int], most: int) -> None:
    index = Occurrences()
    taken = 0
    while taken < len(tokens) - 2:
        index.take_in(tokens, most)
        taken = min(taken + most, len(tokens) - 2)
        found = index.find(tokens, tokens)
        expected = naive(tokens, tokens, taken + 1)
        assert (None if found is None else (found.length, found.end)) == expected


def test_how_long_a_run_was_is_told_with_its_guess() -> None:
    drafter = LookupDrafter()
    long, short = sequence_of([1, 2, 3, 4, 5, 1, 2, 3, 4]), sequence_of([1, 2, 5, 1, 2])
    drafter.propose([long, short], [2, 2])
    assert [drafter.matched(each) for each in (long, short)] == [4, 2]


# --- recent texts


def following(texts: RecentTexts, key: str, wanted: list[int], most: int = 4) -> list[int]:
    return texts.following(key, wanted, 2, most)[1]


def test_a_text_that_ended_is_looked_up_by_the_next_of_its_key_alone() -> None:
    recent = RecentTexts(1000)
    recent.add("ann", [1, 2, 3, 4, 5, 6])
    assert following(recent, "ann", [9, 2, 3]) == [4, 5, 6]
    assert following(recent, "bob", [9, 2, 3]) == []
    assert following(recent, "", [9, 2, 3]) == []


def test_no_guess_goes_beyond_the_end_of_a_text() -> None:
    recent = RecentTexts(1000)
    recent.add("k", [1, 2, 3])
    recent.add("k", [7, 8, 9])
    assert following(recent, "k", [1, 2]) == [3]
    assert following(recent, "k", [2, 3]) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 5), max_size=40)), max_size=30
    ),
    st.integers(1, 200),
)
def test_recent_texts_never_hold_more_than_they_may_nor_another_keys(
    texts: list[tuple[str, list[int]]], most: int
) -> None:
    recent = RecentTexts(most)
    for key, tokens in texts:
        # Another key's tokens are others.
        own = [10 * "abc".index(key) + each for each in tokens]
        recent.add(key, own)
        assert recent.tokens <= most
        assert recent.tokens == sum(p.size for parts in recent._texts.values() for p in parts)
        for other in "abc":
            first = 10 * "abc".index(other)
            for pair in ([first, first], [first, first + 1], [first + 1, first]):
                guess = following(recent, other, pair)
                assert all(first <= token < first + 6 for token in guess)


def test_what_is_recent_outlasts_what_is_not() -> None:
    recent = RecentTexts(400)
    for number in range(20):
        recent.add("k", [*range(1000 * number, 1000 * number + 50)])
    assert following(recent, "k", [19_010, 19_011]) == [19_012, 19_013, 19_014, 19_015]
    assert following(recent, "k", [10, 11]) == []


def test_a_text_longer_than_all_that_is_kept_is_kept_by_its_end_and_across_its_parts() -> None:
    recent = RecentTexts(256)
    text = list(range(1000))
    recent.add("k", text)
    assert following(recent, "k", [997, 998]) == [999]
    held = [n for n in range(900, 990) if following(recent, "k", text[n : n + 5], 1) == [n + 5]]
    assert held == list(range(900, 990))  # none is lost where a part ends


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "9", MOST_TRAFFIC + 1])
def test_an_amount_of_traffic_that_is_none_is_refused(tokens: Any) -> None:
    with pytest.raises(RequestError, match="--lookup-traffic is from 0"):
        drafting_of("auto", traffic=tokens)


@pytest.mark.parametrize("way", ["off", "draft=x", "self=int4-row"])
def test_traffic_where_nothing_is_looked_up_is_refused(way: str) -> None:
    with pytest.raises(RequestError, match="--lookup-traffic is for guesses that are looked up"):
        drafting_of(way, traffic=100)
    assert drafting_of("ngram", traffic=100).traffic == 100


def test_recent_texts_take_no_more_memory_than_is_planned() -> None:
    """Every pair is new: the most that the index can grow to."""
    most = 20_000
    random = np.random.default_rng(1)
    texts = [random.integers(0, 2**17, 500).tolist() for _ in range(60)]
    tracemalloc.start()
    recent = RecentTexts(most)
    for text in texts:
        recent.add("k", text)
    taken, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recent.tokens > most * 3 / 4
    assert taken / most < LOOKUP_TOKEN_BYTES
    assert peak / most < 1.1 * LOOKUP_TOKEN_BYTES


def test_a_prompt_that_was_answered_is_guessed_from_its_answer_and_no_bit_changes() -> None:
    answer = "the quick brown fox jumps over the lazy dog"
    sampling = SamplingParams(max_tokens=40)
    with engine(saying(answer)) as plain:
        expected = plain.generate("say>", sampling)
    speculation = Speculation(LookupDrafter(RecentTexts(1000)), always=True)
    counts = []
    with engine(saying(answer), speculation=speculation) as one:
        for key in ("ann", "ann", "bob"):
            before = one.stats().counters.drafts.accepted
            [stream] = one.submit("say>", sampling, key=key)
            assert facts(stream.result()) == facts(expected)
            counts.append(one.stats().counters.drafts.accepted - before)
    assert counts[1] > 30
    assert counts[0] == counts[2] < 5


def test_recent_texts_are_counted_in_the_plan(tmp_path: Path) -> None:
    path = build("llama", tmp_path)
    reports = []
    for traffic in (0, 1000):
        model = load_model(open_checkpoint(path))
        reports.append(plan_memory(model, context_length=64, lookup_tokens=traffic).needed_bytes)
        with Engine.load(path, context_length=64, lookup_traffic=traffic) as one:
            first, again = (one.generate([1, 2, 3], SamplingParams(max_tokens=12)) for _ in "12")
            assert first.token_ids == again.token_ids
    assert reports[1] - reports[0] == 1000 * LOOKUP_TOKEN_BYTES
