"""The float model that comes with farthing: sound, what its card says, and never quantised."""

from __future__ import annotations

import json
from math import ceil, exp, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farthing import Engine, SamplingParams
from farthing.backends.torch import TorchBackend
from farthing.core import KVDtype
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.projections import native_bits, projections
from farthing.models.load import load_model
from farthing.quant.formats import decode
from farthing.text.load import load_tokenizer
from native_steps import logits_of, native, relative_error

if TYPE_CHECKING:
    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

FOLDER = resolve("float")
VALIDATION = Path(__file__).parents[1] / "data" / "float_model" / "validation.txt"
WINDOW = 512
MOST_BYTES = 8 << 20


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(open_checkpoint(FOLDER))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(open_checkpoint(FOLDER))


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def held_out(tokenizer: Tokenizer) -> list[int]:
    """The validation text, and the token that ends a text."""
    return [*tokenizer.encode(VALIDATION.read_text(encoding="utf-8")), 0]


def test_it_is_a_small_part_of_the_package(model: Model, card: dict[str, Any]) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    parameters = sum(prod(weight.shape) for weight in model.program.weights.values())
    assert card["parameters"] == parameters
    assert 2e6 < parameters < 4e6


def test_groups_of_128_divide_every_row(model: Model) -> None:
    shapes = projections(model.program)
    assert shapes
    assert all(inputs % 128 == 0 for _, inputs in shapes.values())


def test_native_and_torch_logits_agree(model: Model, held_out: list[int]) -> None:
    ids = held_out[:200]
    backend = native(model, kv_dtype=KVDtype.FP32)
    try:
        found = logits_of(backend, ids)
    finally:
        backend.close()
    with torch.no_grad():
        expected = TorchBackend(model).forward(ids).numpy()
    assert relative_error(found, expected) < 1e-5


def test_its_validation_perplexity_is_what_its_card_says(
    model: Model, held_out: list[int], card: dict[str, Any]
) -> None:
    total, count = 0.0, 0
    backend = native(model, kv_dtype=KVDtype.FP32)
    try:
        for window in np.array_split(np.array(held_out), ceil(len(held_out) / WINDOW)):
            scores = torch.from_numpy(logits_of(backend, window[:-1].tolist()))
            wanted = torch.from_numpy(window[1:])
            total += float(torch.nn.functional.cross_entropy(scores, wanted, reduction="sum"))
            count += len(wanted)
    finally:
        backend.close()
    found = exp(total / count)
    assert found == pytest.approx(card["validation_perplexity"], rel=1e-3)
    assert f"{card['validation_perplexity']:.2f}" in (FOLDER / "README.md").read_text("utf-8")
    # Of 3,072 tokens; a model that learnt nothing but their frequencies is above 300.
    assert found < 60


def test_its_training_made_it_better_all_the_way(card: dict[str, Any]) -> None:
    losses, validation = card["loss_curve"], [value for _, value in card["validation_curve"]]
    assert losses[0] > 6 > 4 > losses[-1]
    assert validation == sorted(validation, reverse=True)
    assert not {"persuasion", "northangerabbey"} & set(card["trained_on"])


def test_its_weights_were_never_on_a_grid(model: Model) -> None:
    assert native_bits(model) == 16
    for name in projections(model.program):
        blocks = np.sort(decode(model.tensors[name]).reshape(-1, 32), axis=1)
        distinct = 1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1)
        # In four bits there would be at most 16.
        assert np.median(distinct) >= 30


@given(st.text())
def test_any_text_is_the_same_after_its_tokens(text: str) -> None:
    tokenizer = load_tokenizer(open_checkpoint(FOLDER))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_writes_words() -> None:
    with Engine.load("float", context_length=128) as engine:
        text = engine.generate("She could not help", SamplingParams(max_tokens=40)).text
    words = text.split()
    assert len(words) > 10
    known = VALIDATION.read_text(encoding="utf-8") + " ".join(words[:1])
    assert sum(word.strip(".,;!?\"'") in known for word in words) > len(words) / 2
