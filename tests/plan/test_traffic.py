"""How many tokens users keep in the cache: texts of one length, and of lengths that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.plan.traffic import fixed_traffic, read_lengths, traffic_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("users", "context"), [(32, 2048), (64, 1024), (128, 512)])
def test_only_the_sum_of_tokens_counts(users: int, context: int) -> None:
    assert fixed_traffic(context).tokens(users) == 65_536


def test_texts_take_whole_blocks() -> None:
    assert fixed_traffic(295).tokens(1) == 320
    assert fixed_traffic(295).tokens(3) == 960


def test_a_shared_prefix_stands_in_the_cache_once_in_whole_blocks() -> None:
    traffic = fixed_traffic(1000, shared=500)
    blocks, shared = 32, 15
    assert traffic.tokens(1) == 32 * blocks
    assert traffic.tokens(10) == 32 * (shared + 10 * (blocks - shared))
    assert fixed_traffic(1000, shared=31).tokens(10) == fixed_traffic(1000).tokens(10)


def test_an_answer_is_a_quarter_of_the_context_at_most() -> None:
    assert [fixed_traffic(context).answer for context in (64, 1024, 8192)] == [16, 256, 256]
    assert fixed_traffic(1024, answer=1000).prompt == 24


def test_parts_that_leave_no_prompt_are_refused() -> None:
    with pytest.raises(RequestError, match="leave nothing of a context of 1,024"):
        fixed_traffic(1024, answer=512, shared=512)


def test_equal_lengths_are_a_little_less_than_texts_at_their_end() -> None:
    traffic = traffic_of([(320, 320)] * 5, "x")
    assert (traffic.context, traffic.prompt, traffic.answer) == (640, 320, 320)
    assert traffic.resident == 480
    assert 32 * 15 <= traffic.tokens(1) <= 640
    assert traffic.tokens(1000) < 1000 * 640


def test_what_running_texts_hold_is_what_a_simulation_holds() -> None:
    """Texts one after another in every slot, looked at at random moments."""
    rng = np.random.default_rng(1)
    lengths = [(int(p), int(a)) for p, a in rng.integers(1, 800, (300, 2))]
    traffic = traffic_of(lengths, "x")
    moments = np.array(
        [32 * -(-(prompt + made) // 32) for prompt, answer in lengths for made in range(answer)]
    )
    assert traffic.resident == pytest.approx(moments.mean(), rel=0.03)
    assert traffic.deviation == pytest.approx(moments.std(), rel=0.05)
    users = 24
    held = rng.choice(moments, (20_000, users)).sum(1)
    exceeded = (held > traffic.tokens(users)).mean()
    assert 0.0 < exceeded < 0.004


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=30),
    st.integers(1, 200),
)
def test_never_more_than_all_at_their_longest_and_never_less_than_one(
    lengths: list[tuple[int, int]], users: int
) -> None:
    traffic = traffic_of(lengths, "x")
    longest = 32 * -(-traffic.context // 32)
    assert longest <= traffic.tokens(users) <= users * longest
    assert traffic.tokens(users) % 32 == 0
    assert traffic.tokens(users) <= traffic.tokens(users + 1)


def test_a_file_of_lengths_may_be_numbers_or_usage_entries(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(
        "# prompt answer\n512 128\n\n300,20  # short\n1\t2\n"
        '{"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}\n'
    )
    assert read_lengths(path) == [(512, 128), (300, 20), (1, 2), (7, 9)]


@pytest.mark.parametrize(
    "line",
    [
        "512",
        "1 2 3",
        "0 5",
        "-1 5",
        "a b",
        "1.5 2",
        "{",
        '{"prompt_tokens": 1}',
        "[1, 2]",
        '{"prompt_tokens": true, "completion_tokens": 1}',
        "99999999999999 1",
        "[" * 5000,
    ],
    ids=lambda line: line[:12],
)
def test_a_line_that_is_neither_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(f"1 2\n{line}\n")
    with pytest.raises(RequestError, match="line 2: .* is not two counts of tokens"):
        read_lengths(path)


def test_files_that_hold_no_lengths_are_refused(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("# nothing\n")
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="has no request"):
        read_lengths(empty)
    with pytest.raises(RequestError, match="--lengths .* is not UTF-8 text"):
        read_lengths(binary)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RequestError, match="--lengths .* cannot be read"):
            read_lengths(path)


def test_a_prompt_that_is_no_longer_than_what_all_share_is_refused() -> None:
    with pytest.raises(RequestError, match="--shared-prefix"):
        traffic_of([(100, 5), (50, 5)], "x", shared=64)
