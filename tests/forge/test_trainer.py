"""Training: it learns, and goes on from a checkpoint as if nothing had happened, to the bit."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import tiny
from farthing.core import FarthingError
from farthing.forge import trainer as training
from farthing.forge.batches import cut, packed, reading_order, score_of_token
from farthing.forge.lessons import Lesson, lesson_of
from farthing.forge.recorder import distributions
from farthing.forge.trainer import Taught, Trainer, learning_rate, repeatable
from native_steps import logits_of, model_at, native

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 10


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    """Random texts, and what another random model says to them."""
    backend = native(model_at(tiny.shared("llama_bias")))
    found = []
    for seed in range(30):
        ids = tiny.token_ids(60, seed)
        drawn = distributions(logits_of(backend, ids)[9:-1] / 3, 1.0)
        found.append(lesson_of(ids[:10], ids[10:], drawn))
    backend.close()
    return found


def trainer(lessons: list[Lesson], taught: Taught | None = None, steps: int = STEPS) -> Trainer:
    student = model_at(tiny.shared("llama"))
    return Trainer(student, None, lessons[2:], lessons[:2], taught or Taught("draft", 5), steps)


def weights(found: Trainer) -> dict[str, bytes]:
    return {name: found.weights(name).tobytes() for name in found.parameters}


@pytest.mark.parametrize(
    "taught",
    [
        Taught("draft", 5),
        Taught("student", 5),
        Taught("student", 5, hard_share=0.2),
        Taught("student", 5, reverse=True),
    ],
)
def test_divergence_falls_and_acceptance_rises(
    lessons: list[Lesson], tmp_path: Path, taught: Taught
) -> None:
    with repeatable(1):
        found = trainer(lessons, taught)
        assert found.train(tmp_path / "c", lambda point, speed: None, lambda: False)
    first, last = found.history[0], found.history[-1]
    assert last.divergence < 0.9 * first.divergence
    assert last.acceptance > first.acceptance
    assert last.step == STEPS
    assert last.tokens == found.tokens > first.tokens == 0


@pytest.mark.parametrize("stop_after", [1, 7])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    lessons: list[Lesson], tmp_path: Path, stop_after: int
) -> None:
    with repeatable(1):
        whole = trainer(lessons)
        whole.train(tmp_path / "whole", lambda point, speed: None, lambda: False)
        first = trainer(lessons)
        stopped = first.train(
            tmp_path / "c", lambda point, speed: None, lambda: first.step == stop_after
        )
        assert not stopped
        second = trainer(lessons)
        second.restore(tmp_path / "c")
        assert second.step == stop_after
        assert second.train(tmp_path / "c", lambda point, speed: None, lambda: False)
    assert weights(second) == weights(whole)
    assert second.tokens == whole.tokens
    # The first point has no loss, which is no number.
    assert second.history[1:] == whole.history[1:]
    third = trainer(lessons)
    third.restore(tmp_path / "c")
    assert weights(third) == weights(whole)


def test_a_full_disk_at_a_checkpoint_is_told_and_the_one_before_stays(
    lessons: list[Lesson], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "c"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def told(point: object, speed: float) -> None:
        if found.step == 6:
            monkeypatch.setattr("farthing.files.replacing.os.fsync", full)

    with repeatable(1):
        found = trainer(lessons)
        with pytest.raises(FarthingError, match="the disk of .* is full: make room"):
            found.train(path, told, lambda: False)
        monkeypatch.undo()
        again = trainer(lessons)
        again.restore(path)
        assert again.step == 5
        assert again.train(path, lambda point, speed: None, lambda: False)
        whole = trainer(lessons)
        whole.train(tmp_path / "w", lambda point, speed: None, lambda: False)
    assert weights(again) == weights(whole)


def test_a_checkpoint_of_something_else_is_refused(lessons: list[Lesson], tmp_path: Path) -> None:
    other = Trainer(
        model_at(tiny.shared("qwen2")), None, lessons[2:], lessons[:2], Taught("draft", 5), STEPS
    )
    other.save(tmp_path / "c")
    with pytest.raises(FarthingError, match="is no checkpoint of this student"):
        trainer(lessons).restore(tmp_path / "c")
    (tmp_path / "c").write_bytes(b"\0" * 100)
    with pytest.raises(FarthingError, match="is damaged"):
        trainer(lessons).restore(tmp_path / "c")


def test_a_loss_that_is_no_number_is_told(lessons: list[Lesson], tmp_path: Path) -> None:
    found = trainer(lessons)
    with torch.no_grad():
        found.parameters["output_norm.weight"][0] = torch.nan
    with pytest.raises(FarthingError, match="the loss is nan at step 1"):
        found.train(tmp_path / "c", lambda point, speed: None, lambda: False)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 200) for step in range(200)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9] == rates[10] == max(rates) == training.LARGEST_RATE
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(training.SMALLEST_RATE, rel=1e-2)
    assert learning_rate(0, 1) == training.LARGEST_RATE


@pytest.mark.parametrize("readings", [1, 2, 5])
def test_the_steps_of_so_many_readings_read_every_text_so_often(
    lessons: list[Lesson], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: int
) -> None:
    """Of texts so unlike that each order of them makes another number of batches."""
    uneven = [cut_off(each, 1 + at * at % 49) for at, each in enumerate(lessons)]
    monkeypatch.setattr(training, "batch_tokens", lambda scores: 64)
    found = trainer(uneven)
    counts = [len([*found._reading(reading)]) for reading in range(8)]
    assert len(set(counts)) > 1
    assert found.steps_of(readings) == sum(counts[:readings])
    with repeatable(1):
        again = trainer(uneven, steps=found.steps_of(readings))
        again.train(tmp_path / "c", lambda point, speed: None, lambda: False)
    written = sum(len(each.token_ids) - each.written for each in uneven[2:])
    assert again.tokens == readings * written


def cut_off(lesson: Lesson, written: int) -> Lesson:
    return Lesson(
        lesson.token_ids[: lesson.written + written],
        lesson.written,
        lesson.top_ids[:written],
        lesson.top_logprobs[:written],
        lesson.log_totals[:written],
    )


# --- batches


def test_a_batch_lays_texts_end_to_end_and_wants_what_was_written(lessons: list[Lesson]) -> None:
    batch = packed(lessons[:2], score_of_token(None, 262))
    assert batch.starts == [0, 59, 118]
    assert batch.token_ids.tolist() == [
        *lessons[0].token_ids[:-1].tolist(),
        *lessons[1].token_ids[:-1].tolist(),
    ]
    assert batch.rows.tolist() == [*range(9, 59), *range(59 + 9, 118)]
    written = [*lessons[0].token_ids[10:].tolist(), *lessons[1].token_ids[10:].tolist()]
    assert batch.labels.hard.tolist() == written


def test_tokens_without_a_score_are_not_known(lessons: list[Lesson]) -> None:
    scores = score_of_token((7, 100), 262)
    labels = packed(lessons[:1], scores).labels
    top = lessons[0].top_ids
    np.testing.assert_array_equal(labels.known.numpy(), (top == 7) | (top == 100))
    np.testing.assert_array_equal(labels.rows.numpy(), (top == 100).astype(np.int64))


def test_every_reading_has_every_text_once_in_an_order_of_its_own(lessons: list[Lesson]) -> None:
    orders = [reading_order(30, 5, reading) for reading in range(3)]
    assert all(sorted(order) == [*range(30)] for order in orders)
    assert orders[0] != orders[1] != orders[2]
    groups = list(cut(lessons, orders[0], 100))
    assert [len(group) for group in groups] == [2] * 15
    assert reading_order(30, 5, 0) == orders[0]
