"""What a teacher writes, what is kept of it, and that a shard gives back what was put into it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.core import FarthingError, RequestError
from farthing.files.checkpoint import open_checkpoint
from farthing.forge import openings
from farthing.forge.lessons import (
    TOKEN_BYTES,
    Lessons,
    lesson_of,
    likeliest_tokens,
    read_shard,
    text_hash,
    write_shard,
)
from farthing.forge.openings import Openings, openings_of, shipped_openings
from farthing.forge.recorder import KEPT, Distribution
from farthing.forge.teacher import Teacher
from farthing.models.load import load_model
from farthing.quality.texts import Text, held_out_text
from farthing.text.load import load_tokenizer
from native_steps import logits_of, native

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.forge.lessons import Lesson

TEXTS = 6


def written(number: int = 1, threads: int = 2, temperature: float = 1.0) -> Lessons:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        model = load_model(checkpoint)
        with Teacher(checkpoint, model, threads, temperature) as teacher:
            prompts = [tuple(tiny.token_ids(5 + at, at)) for at in range(7)]
            found = teacher.write(
                Openings(prompts, prompts[:1]), number, TEXTS, 3, lambda tokens, seconds: True
            )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def lessons() -> Lessons:
    return written()


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    below = logits.astype(np.float64) / temperature
    weights = np.exp(below - below.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_what_is_kept_of_a_token_is_the_distribution_it_was_drawn_from(temperature: float) -> None:
    """As a prompt of the whole text gives it, which is the same to the bit."""
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        backend = native(load_model(checkpoint))
    found = written(temperature=temperature)
    for lesson in found.texts[:3]:
        rows = logits_of(backend, lesson.token_ids.tolist())[lesson.written - 1 : -1]
        p = softmax(rows)
        listed = np.take_along_axis(p, lesson.top_ids.astype(np.int64), axis=1)
        np.testing.assert_allclose(np.exp(lesson.top_logprobs.astype(float)), listed, rtol=6e-3)
        assert (listed.min(axis=1) >= np.sort(p, axis=1)[:, -KEPT]).all()
        totals = np.log((p ** (1 / temperature)).sum(axis=1))
        np.testing.assert_allclose(lesson.log_totals, totals, atol=1e-5)
    backend.close()


def test_a_shard_is_a_function_of_its_number_and_the_seed(lessons: Lessons) -> None:
    again = written(threads=1)
    assert text_hash(again.texts) == text_hash(lessons.texts)
    assert text_hash(written(number=2).texts) != text_hash(lessons.texts)
    assert len(lessons.texts) == TEXTS
    # The seventh opening is another shard's first.
    assert written(number=2).texts[0].token_ids[:11].tolist() == tiny.token_ids(11, 6)


def test_the_held_out_shard_has_openings_of_its_own() -> None:
    first = tuple(tiny.token_ids(5, 0))
    for lesson in written(number=0).texts:
        assert tuple(lesson.token_ids[: lesson.written].tolist()) == first


def test_a_shard_that_is_given_up_leaves_no_text_running() -> None:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        model = load_model(checkpoint)
        with Teacher(checkpoint, model, 1, 1.0) as teacher:
            prompts = Openings([(1, 2)], [(3,)])
            assert teacher.write(prompts, 1, 4, 0, lambda tokens, seconds: tokens < 20) is None
            found = teacher.write(prompts, 1, 2, 0, lambda tokens, seconds: True)
    assert found is not None
    assert len(found.texts) == 2


def test_a_shard_gives_back_what_was_put_into_it(lessons: Lessons, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard(path, lessons)
    found = read_shard(path)
    assert found.seconds == lessons.seconds
    for ours, theirs in zip(found.texts, lessons.texts, strict=True):
        assert ours.written == theirs.written
        for name in ("token_ids", "top_ids", "top_logprobs", "log_totals"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    written_tokens = found.written_tokens
    assert path.stat().st_size < TOKEN_BYTES * (written_tokens + 200) + 4096


def test_a_damaged_shard_is_told_and_what_to_do(lessons: Lessons, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard(path, lessons)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FarthingError, match="is damaged .* makes it again"):
        read_shard(path)


def test_a_full_disk_leaves_the_shard_that_was_there(
    lessons: Lessons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard"
    write_shard(path, lessons)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("farthing.files.replacing.os.fsync", full)
    with pytest.raises(FarthingError, match="is full: make room"):
        write_shard(path, lessons)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["shard"]


def test_the_head_has_the_tokens_that_are_likeliest_in_all() -> None:
    def lesson(*chances: dict[int, float]) -> Lesson:
        drawn = [
            Distribution(
                np.array([*each], np.int32), np.log([*each.values()]).astype(np.float16), 0.0
            )
            for each in chances
        ]
        return lesson_of([0], [1] * len(chances), drawn)

    texts = [lesson({5: 0.5, 3: 0.25}, {5: 0.125, 9: 0.5}), lesson({7: 0.375, 9: 0.25})]
    assert likeliest_tokens(texts, 2, 12) == (5, 9)
    assert likeliest_tokens(texts, 4, 12) == (3, 5, 7, 9)
    assert likeliest_tokens(texts, 5, 12) == (0, 3, 5, 7, 9)


# --- openings


def test_shipped_openings_are_many_fit_and_are_divided_once_and_for_all() -> None:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        tokenizer = load_tokenizer(checkpoint)
    found = shipped_openings(tokenizer, None, 400, 0)
    assert len(found.training) > 100
    assert 1 <= len(found.held_out) < len(found.training) / 10
    assert all(0 < len(each) <= 400 for each in (*found.training, *found.held_out))
    assert shipped_openings(tokenizer, None, 400, 0) == found
    assert shipped_openings(tokenizer, None, 400, 1) != found
    with pytest.raises(FarthingError, match="no prompt is short enough"):
        shipped_openings(tokenizer, None, 2, 0)


def test_no_opening_is_of_the_test_text() -> None:
    test_text = held_out_text().content
    assert all(each[:60] not in test_text for each in openings._CHARACTERS + openings._TASKS)
    pieces = list(openings._pieces(openings.calibration_text().content))
    assert len(pieces) > 50
    assert all(piece not in test_text for piece in pieces)


def test_prompts_of_files_are_their_lines(tmp_path: Path) -> None:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        tokenizer = load_tokenizer(checkpoint)
    text = Text("mine", "one\n\n two\nthree\n", "0" * 64)
    found = openings_of([text], tokenizer, None, 10, 0)
    texts = {tokenizer.decode(each) for each in (*found.training, *found.held_out)}
    assert texts == {"one", " two", "three"}
    assert len(found.held_out) == 1
    with pytest.raises(RequestError, match="line 4 of mine has 5 tokens"):
        openings_of([text], tokenizer, None, 4, 0)
    with pytest.raises(RequestError, match="there are 0 prompts"):
        openings_of([Text("empty", " \n\n", "1" * 64)], tokenizer, None, 4, 0)
    with pytest.raises(RequestError, match="text that models are tested on"):
        openings_of([held_out_text()], tokenizer, None, 4, 0)
