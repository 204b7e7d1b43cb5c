"""What a student is taught by, against the definitions over whole distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farthing.forge import losses
from farthing.forge.losses import Labels
from farthing.forge.recorder import KEPT, distributions

ROWS, VOCABULARY = 6, 150
RANDOM = np.random.default_rng(5)


def drawn(scale: float = 3.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (ROWS, VOCABULARY)).astype(np.float32)


def labels_of(
    teacher: np.ndarray, kept: np.ndarray | None = None, temperature: float = 1.0
) -> Labels:
    """Labels as they are recorded; `kept` are the tokens that a student has scores for."""
    found = distributions(teacher, temperature)
    ids = np.stack([each.ids for each in found]).astype(np.int64)
    scores = np.arange(teacher.shape[1])
    if kept is not None:
        scores = np.full(teacher.shape[1], -1)
        scores[kept] = np.arange(len(kept))
    rows = scores[ids]
    return Labels(
        torch.from_numpy(np.maximum(rows, 0)),
        torch.from_numpy(rows >= 0),
        torch.from_numpy(np.stack([each.logprobs for each in found]).astype(np.float64)),
        torch.tensor([each.log_total for each in found]),
        torch.from_numpy(scores[teacher.argmax(axis=1)]),
    )


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    below = logits.astype(np.float64) / temperature
    weights = np.exp(below - below.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def coarse(p: np.ndarray, labels: Labels) -> np.ndarray:
    """The distribution over the listed tokens and one more outcome."""
    listed = np.take_along_axis(p, labels.rows.numpy(), axis=1)
    return np.concatenate([listed, 1 - listed.sum(axis=1, keepdims=True)], axis=1)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergences_are_those_of_the_definition(temperature: float) -> None:
    teacher, student = drawn(seed=1), drawn(seed=2)
    labels = labels_of(teacher, temperature=temperature)
    p = coarse(softmax(teacher, temperature), labels)
    q = coarse(softmax(student, temperature), labels)
    logits = torch.from_numpy(student).double()
    np.testing.assert_allclose(
        losses.forward_kl(logits, labels, temperature), (p * np.log(p / q)).sum(1), atol=2e-2
    )
    np.testing.assert_allclose(
        losses.reverse_kl(logits, labels, temperature), (q * np.log(q / p)).sum(1), atol=3e-2
    )


def test_variation_and_acceptance_add_up_to_one_but_for_the_rest() -> None:
    teacher, student = drawn(seed=1), drawn(seed=2)
    labels, logits = labels_of(teacher), torch.from_numpy(student).double()
    p, q = softmax(teacher), softmax(student)
    variation = losses.total_variation(logits, labels).numpy()
    acceptance = losses.acceptance(logits, labels).numpy()
    true = np.abs(p - q).sum(1) / 2
    np.testing.assert_allclose(
        variation, np.abs(coarse(p, labels) - coarse(q, labels)).sum(1) / 2, atol=1e-3
    )
    assert (variation <= true + 1e-3).all()
    # What is surely accepted is at most what is, and with the whole vocabulary listed all of it.
    assert (acceptance <= 1 - true + 1e-3).all()
    few = teacher[:, :KEPT], student[:, :KEPT]
    whole = losses.acceptance(torch.from_numpy(few[1]).double(), labels_of(few[0])).numpy()
    wanted = np.minimum(softmax(few[0]), softmax(few[1])).sum(1)
    np.testing.assert_allclose(whole, wanted, atol=2e-3)


def test_a_student_that_is_the_teacher_has_nothing_to_learn() -> None:
    teacher = drawn()
    labels, logits = labels_of(teacher), torch.from_numpy(teacher).double()
    for loss in (losses.forward_kl, losses.reverse_kl, losses.total_variation):
        assert loss(logits, labels).abs().max() < 2e-3
    assert (losses.agreement(logits, labels) == 1).all()


def test_absent_tokens_are_left_out_of_divergence_and_lost_to_acceptance() -> None:
    """A student with the teacher's own scores for half of the tokens."""
    teacher = drawn(seed=3)
    kept = np.arange(0, VOCABULARY, 2)
    labels = labels_of(teacher, kept)
    own = torch.from_numpy(teacher[:, kept]).double()
    p = softmax(teacher)
    # The unlisted tokens that are absent cannot be told from those that are not.
    assert losses.forward_kl(own, labels).max() < 0.05
    present = p[:, kept].sum(1)
    np.testing.assert_allclose(losses.acceptance(own, labels), present, atol=0.06)
    agreed = losses.agreement(own, labels).numpy()
    np.testing.assert_array_equal(agreed, teacher.argmax(axis=1) % 2 == 0)


def test_the_written_token_counts_where_the_student_has_a_score_for_it() -> None:
    teacher = drawn(seed=3)
    kept = np.arange(0, VOCABULARY, 2)
    labels = labels_of(teacher, kept)
    student = torch.from_numpy(drawn(seed=4)[:, kept]).double()
    found = losses.cross_entropy(student, labels).numpy()
    for row, token in enumerate(teacher.argmax(axis=1)):
        wanted = 0.0 if token % 2 else -np.log(softmax(student.numpy())[row, token // 2])
        assert found[row] == pytest.approx(wanted)


@pytest.mark.parametrize(
    "loss", [losses.forward_kl, losses.reverse_kl, losses.total_variation, losses.cross_entropy]
)
@pytest.mark.parametrize("some", [False, True])
def test_the_gradient_of_a_loss_is_the_slope_of_its_differences(loss: object, some: bool) -> None:
    kept = np.arange(0, VOCABULARY, 3) if some else None
    labels = labels_of(drawn(1.0, seed=6), kept)
    student = torch.from_numpy(drawn(1.0, seed=7)[:, kept] if some else drawn(1.0, seed=7))
    inputs = student.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels).sum(), (inputs,))  # type: ignore[operator]


@given(st.integers(0, 1 << 30), st.floats(0.01, 60))
def test_losses_and_gradients_of_any_scores_are_finite(seed: int, scale: float) -> None:
    labels = labels_of(drawn(scale, seed))
    logits = torch.from_numpy(drawn(scale, seed + 1)).requires_grad_()
    for loss in (losses.forward_kl, losses.reverse_kl, losses.total_variation):
        found = loss(logits, labels)
        assert found.isfinite().all()
        assert found.min() > -1e-2
        (gradient,) = torch.autograd.grad(found.sum(), logits)
        assert gradient.isfinite().all()
