"""A head over some of the vocabulary: the same scores for those tokens, -inf for all others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import (
    FileFormatError,
    KVDtype,
    SamplingParams,
    StoredTensor,
    UnsupportedModelError,
)
from farthing.engine.engine import Engine
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.student import StudentShape, weights_of_teacher, write_student
from farthing.models.load import load_model
from farthing.models.program import Builder
from farthing.models.trimmed_head import head_rows_only, take_head_tokens, with_head_over
from farthing.plan.stages import fuse, head_source
from native_steps import logits_of, model_at, native

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.models.load import Model

TOKENS = (3, *range(10, 70), 258, 261)
IDS = tiny.token_ids(40)


def trimmed(folder: Path, family: str, form: str = "gguf") -> tuple[Model, Model]:
    """A model, and the same with a head over `TOKENS`."""
    with open_checkpoint(tiny.shared(family, form)) as checkpoint:
        whole = load_model(checkpoint)
        shape = StudentShape(tuple(range(whole.config.layers)), TOKENS)
        write_student(folder, checkpoint, whole, shape, weights_of_teacher(whole, shape), "trimmed")
    return model_at(tiny.shared(family, form)), model_at(folder)


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_its_tokens_have_the_scores_of_the_whole_head_and_others_none(
    tmp_path: Path, family: str, form: str
) -> None:
    """Those of a tied head (qwen2) too; by both backends, the native one to the bit."""
    whole, some = trimmed(tmp_path / "some", family, form)
    found = []
    for model in (whole, some):
        backend = native(model, kv_dtype=KVDtype.FP32)
        found.append(logits_of(backend, IDS))
        backend.close()
    assert found[1].shape == found[0].shape
    np.testing.assert_array_equal(found[1][:, TOKENS], found[0][:, TOKENS])
    others = np.delete(found[1], TOKENS, axis=1)
    assert (others == -np.inf).all()
    oracle = TorchBackend(some).forward(IDS).detach().numpy()
    np.testing.assert_array_equal(np.isinf(oracle), np.isinf(found[1]))
    np.testing.assert_allclose(oracle[:, TOKENS], found[0][:, TOKENS], rtol=1e-3, atol=1e-3)


def test_such_a_model_runs_and_writes_no_other_token(tmp_path: Path) -> None:
    trimmed(tmp_path / "some", "llama")
    with Engine.load(tmp_path / "some", context_length=256) as engine:
        sampling = SamplingParams(max_tokens=60, temperature=1.5, seed=4, ignore_eos=True)
        made = engine.generate([1, 200, 255], sampling)
        assert set(made.token_ids) <= set(TOKENS)
        assert len(set(made.token_ids)) > 5
        assert len(engine.embed([1, 2]).vector) == 64


def test_hidden_states_and_the_rows_of_the_head_are_found_in_front_of_the_spread(
    tmp_path: Path,
) -> None:
    whole, some = trimmed(tmp_path / "some", "llama")
    assert head_source(fuse(some.program)) == head_source(fuse(whole.program))
    rows = head_rows_only(some.program)
    assert rows.vocabulary_size == len(TOKENS)
    assert head_rows_only(whole.program) is whole.program


# --- what is refused


def stored(tokens: Any, dtype: str = "<i4", format_name: str = "I32") -> StoredTensor:
    data = np.array(tokens, dtype)
    return StoredTensor(
        "head.weight.token_ids", format_name, data.shape, data.reshape(-1).view(np.uint8)
    )


def taken(tensor: StoredTensor, head: bool = True) -> tuple[int, ...] | None:
    tensors = {tensor.name: tensor}
    if head:
        tensors["head.weight"] = replace(tensor, name="head.weight")
    return take_head_tokens(model_at(tiny.shared("llama")).program, "head.weight", tensors, "m")


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (stored([]), "n from 1 to 262"),
        (stored([[1, 2]]), "n from 1 to 262"),
        (stored(range(263)), "n from 1 to 262"),
        (stored([1, 2], "<f4", "F32"), "must be I32"),
        (stored([2, 1]), "ascending order, each once"),
        (stored([1, 1]), "ascending order, each once"),
        (stored([-1, 1]), "from 0 to 261"),
        (stored([1, 262]), "from 0 to 261"),
    ],
)
def test_tokens_that_are_none_are_refused(tensor: StoredTensor, complaint: str) -> None:
    with pytest.raises(FileFormatError, match=complaint):
        taken(tensor)


def test_tokens_without_a_head_are_refused() -> None:
    with pytest.raises(FileFormatError, match="a head that is not there"):
        taken(stored([1, 2]), head=False)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=300))
def test_any_list_is_read_as_it_is_or_refused(tokens: list[int]) -> None:
    sound = tokens == sorted(set(tokens)) and tokens != []
    sound = sound and tokens[0] >= 0 and tokens[-1] < 262
    if sound:
        assert taken(stored(tokens)) == tuple(tokens)
    else:
        with pytest.raises(FileFormatError):
            taken(stored(tokens))


@pytest.mark.parametrize(
    ("columns", "width", "complaint"),
    [
        ((0, 1), 5, "2 columns for 3 numbers"),
        ((0, 2, 1), 5, "columns must ascend"),
        ((0, 1, 5), 5, "columns must ascend from 0 below 5"),
        ((-1, 1, 2), 5, "columns must ascend"),
    ],
)
def test_numbers_are_spread_to_places_that_there_are(
    columns: tuple[int, ...], width: int, complaint: str
) -> None:
    b = Builder()
    x = b.op("embed", "x", (), (b.weight("table", 4, 3),))
    with pytest.raises(UnsupportedModelError, match=complaint):
        b.op("spread", "y", (x,), columns=columns, width=width)


def test_a_program_with_a_trimmed_head_is_a_sound_one() -> None:
    program = model_at(tiny.shared("llama")).program
    changed = with_head_over(program, TOKENS)
    assert changed.vocabulary_size == program.vocabulary_size
    assert changed.weights["head.weight"].shape == (len(TOKENS), 64)
