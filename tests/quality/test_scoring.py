"""Scores of rows and of whole windows, against torch in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import FarthingError
from farthing.quality.scoring import Scores, _steps, compare, compare_rows, nll_of_rows, score
from farthing.quality.subject import EXACT, LOGIT_FLOATS, Settings, Subject
from farthing.quality.texts import held_out_text
from farthing.quality.windows import cut_windows, scored_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_torch(
    logits: NDArray[np.float32], reference: NDArray[np.float32], targets: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(nll, reference's nll, kl), and whether the argmax agrees."""
    ours = torch.from_numpy(logits).double().log_softmax(-1)
    theirs = torch.from_numpy(reference).double().log_softmax(-1)
    kl = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    at_target = torch.arange(len(targets)), torch.from_numpy(targets).long()
    found = torch.stack([-ours[at_target], -theirs[at_target], kl])
    return found.numpy(), (ours.argmax(-1) == theirs.argmax(-1)).numpy()


def rows_of(
    seed: int, rows: int, vocabulary: int, apart: float, scale: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    generator = np.random.default_rng(seed)
    reference = generator.normal(0, scale, (rows, vocabulary)) + generator.normal(0, 20, (rows, 1))
    logits = reference + generator.normal(0, apart, reference.shape)
    targets = generator.integers(0, vocabulary, rows, np.int32)
    return logits.astype(np.float32), reference.astype(np.float32), targets


@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.integers(2, 3000),
    st.sampled_from([1e-4, 1e-2, 0.3, 3.0]),
    st.sampled_from([0.1, 3.0, 12.0]),
)
def test_rows_are_scored_as_by_torch_in_float64(
    seed: int, rows: int, vocabulary: int, apart: float, scale: float
) -> None:
    logits, reference, targets = rows_of(seed, rows, vocabulary, apart, scale)
    expected, expected_agrees = as_torch(logits, reference, targets)
    alone = nll_of_rows(logits.copy(), targets)
    found, agrees = compare_rows(logits, reference, targets)
    assert np.allclose(found[:2], expected[:2], rtol=1e-6, atol=1e-5)
    assert np.allclose(found[2], expected[2], rtol=1e-5, atol=1e-6)
    assert (found[0] == alone).all()
    assert (agrees == expected_agrees).all()


def test_a_small_divergence_over_a_large_vocabulary_keeps_its_digits() -> None:
    logits, reference, targets = rows_of(1, 24, 49_152, 0.01, 3.0)
    expected, _ = as_torch(logits, reference, targets)
    found, _ = compare_rows(logits, reference, targets)
    assert 1e-5 < expected[2].mean() < 1e-4
    assert found[2].mean() == pytest.approx(expected[2].mean(), rel=1e-3)


def test_a_model_against_itself_diverges_by_nothing_at_all() -> None:
    _, reference, targets = rows_of(2, 50, 5000, 0.0, 5.0)
    found, agrees = compare_rows(reference.copy(), reference, targets)
    assert (found[2] == 0).all()
    assert (found[0] == found[1]).all()
    assert agrees.all()


def test_equal_largest_logits_agree_by_the_lowest_id() -> None:
    tied = np.array([[0, 5, 5, 1]], np.float32)
    other = np.array([[0, 1, 5, 1]], np.float32)
    targets = np.zeros(1, np.int32)
    assert compare_rows(tied.copy(), tied.copy(), targets)[1].all()
    assert not compare_rows(tied, other, targets)[1].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    logits, reference, targets = rows_of(3, 4, 100, 0.1, 1.0)
    broken = logits.copy()
    broken[2, 7] = bad
    with pytest.raises(FarthingError, match="not finite"):
        compare_rows(broken.copy(), reference.copy(), targets)
    with pytest.raises(FarthingError, match="not finite"):
        compare_rows(logits.copy(), broken.copy(), targets)
    with pytest.raises(FarthingError, match="not finite"):
        nll_of_rows(broken, targets)


def quantised(family: str, quant: str) -> Any:
    """transformers' model with the matrices of the tiny GGUF file, decoded by the gguf package."""
    import gguf
    from gguf.quants import dequantize, quantize

    kind = gguf.GGMLQuantizationType[quant]
    model = tiny.reference(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                stored = quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(dequantize(stored, kind)))
    return model


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_windows_are_scored_as_by_transformers_and_torch_in_float64(family: str) -> None:
    with (
        Subject(tiny.shared(family), EXACT, window=96, threads=2) as reference,
        Subject(tiny.shared(family, "gguf", "Q4_0"), EXACT, window=96, threads=2) as candidate,
    ):
        windows = cut_windows(reference.tokenizer, held_out_text(), 400, 96)
        found = compare(candidate.backend, reference.backend, windows)
    ids = torch.from_numpy(windows.token_ids).long()
    rows = slice(windows.first_scored - 1, windows.length - 1)
    with torch.no_grad():
        ours = quantised(family, "Q4_0")(ids).logits[:, rows].numpy()
        theirs = tiny.reference(family)(ids).logits[:, rows].numpy()
    vocabulary = ours.shape[-1]
    targets = windows.token_ids[:, windows.first_scored :]
    (nll, reference_nll, kl), agrees = as_torch(
        ours.reshape(-1, vocabulary), theirs.reshape(-1, vocabulary), targets.reshape(-1)
    )
    assert kl.mean() > 0.005
    shape = found.kl.shape
    assert np.allclose(found.nll, nll.reshape(shape), atol=1e-3)
    assert np.allclose(found.reference_nll, reference_nll.reshape(shape), atol=1e-3)
    assert np.allclose(found.kl, kl.reshape(shape), rtol=5e-3, atol=1e-5)
    assert (found.agrees == agrees.reshape(shape)).mean() > 0.995


@pytest.mark.parametrize("length", [33, 256, 1024])
def test_every_scored_token_is_scored_once_whatever_a_step_holds(length: int) -> None:
    with Subject(tiny.shared("llama"), Settings(), window=length, threads=2) as subject:
        windows = cut_windows(subject.tokenizer, held_out_text(), 900, length)
        whole = score(subject.backend, windows)
        assert whole.shape == (windows.count, scored_in(length))
        backend = subject.backend
        backend.max_step_tokens, backend.max_step_rows = 47, 10
        steps = list(_steps(windows, backend))
        assert max(len(plan.token_ids) for plan, _ in steps) <= 47
        assert max(len(plan.rows) for plan, _ in steps) == 10
        in_bits = score(backend, windows)
        both = compare(backend, backend, windows)
    assert in_bits.tobytes() == whole.tobytes() == both.nll.tobytes()
    assert not both.kl.any()


def test_the_logits_held_at_once_are_bounded_whatever_the_vocabulary() -> None:
    with Subject(tiny.shared("llama"), Settings(), window=64, threads=2) as subject:
        plan, vocabulary = subject.plan, subject.model.program.vocabulary_size
        assert plan.step_rows * vocabulary <= max(LOGIT_FLOATS, plan.slots * vocabulary)


def test_progress_is_told_from_the_first_window_to_the_last() -> None:
    told: list[float] = []
    with Subject(tiny.shared("llama"), Settings(), window=64, threads=2) as subject:
        windows = cut_windows(subject.tokenizer, held_out_text(), 300, 64)
        scores = compare(subject.backend, subject.backend, windows, told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert isinstance(scores, Scores)
