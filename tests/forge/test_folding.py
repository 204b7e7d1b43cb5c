"""Folded models against the models they come from, in full precision on the torch backend."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import FarthingError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.folding import Folding, fold_head_rotation, fold_rotation, fold_scales
from farthing.models.graph import HEAD, LinearGroup, linear_groups
from farthing.models.load import Model, load_model
from farthing.quant.awq import search_awq
from farthing.quant.formats import decode
from farthing.quant.rotation import rotation
from farthing.quant.smoothing import smooth_scales

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = tiny.token_ids(48)
ROTATABLE = [family for family in tiny.FAMILIES if family != "gemma3"]


@cache
def model_of(family: str, form: str = "gguf") -> Model:
    return load_model(open_checkpoint(tiny.shared(family, form)))


def logits(model: Model, tokens: list[int] = TOKENS) -> np.ndarray:
    return TorchBackend(model).forward(tokens).detach().numpy()


def assert_unchanged(model: Model, folding: Folding, tolerance: float) -> None:
    np.testing.assert_allclose(logits(folding.apply(model)), logits(model), rtol=0, atol=tolerance)


def scalable(model: Model) -> list[LinearGroup]:
    return [group for group in linear_groups(model.program) if group.origin is not None]


def tapped(model: Model, tokens: list[int] = TOKENS) -> dict[str, np.ndarray]:
    """What each group of linear operations reads."""
    values = [group.value for group in linear_groups(model.program)]
    backend = TorchBackend(model, taps=values)
    backend.forward(tokens)
    return {name: value.detach().numpy() for name, value in backend.tapped.items()}


def matrices(model: Model, group: LinearGroup) -> list[np.ndarray]:
    return [decode(model.tensors[name]) for name in group.weights]


def smoothquant(model: Model, tokens: list[int] = TOKENS) -> Folding:
    read = tapped(model, tokens)
    folding = Folding()
    for group in scalable(model):
        assert group.origin is not None
        activations = group.origin.gather(np.abs(read[group.value]).max(axis=0)).max(axis=0)
        columns = np.max([np.abs(w).max(axis=0) for w in matrices(model, group)], axis=0)
        weights = group.origin.gather(columns).max(axis=0)
        scales = group.origin.spread(smooth_scales(activations, weights))
        folding = folding.then(fold_scales(group, scales))
    return folding


def awq(model: Model, tokens: list[int] = TOKENS, where: str = "") -> Folding:
    """Of the groups whose values' names begin with `where`."""
    read = tapped(model, tokens)
    folding = Folding()
    for group in scalable(model):
        assert group.origin is not None
        if not group.value.startswith(where):
            continue
        x = read[group.value]
        gathered = group.origin.gather(np.abs(x).mean(axis=0)).mean(axis=0)
        found = search_awq(
            matrices(model, group), "INT4_G32", x.T @ x / len(x), group.origin.spread(gathered)
        )
        folding = folding.then(fold_scales(group, found.scales))
    return folding


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_smoothquant_leaves_the_logits(family: str, form: str) -> None:
    model = model_of(family, form)
    folding = smoothquant(model)
    assert_unchanged(model, folding, 1e-4)
    read, before = tapped(folding.apply(model)), tapped(model)
    for group in scalable(model):
        ranges = [np.abs(x[group.value]).max(axis=0) for x in (read, before)]
        assert not np.allclose(*ranges, rtol=0.1), group.value


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_awq_leaves_the_logits(family: str) -> None:
    model = model_of(family)
    folding = awq(model)
    assert set(folding.edits) > {name for group in scalable(model) for name in group.weights}
    assert_unchanged(model, folding, 1e-4)


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", ROTATABLE)
def test_rotating_the_stream_leaves_the_logits(family: str, form: str) -> None:
    model = model_of(family, form)
    folding = fold_rotation(model, rotation(model.config.hidden_size, 1))
    assert_unchanged(model, folding, 1e-3)
    folded = folding.apply(model)
    for op in folded.program.ops:
        if op.kind == "rmsnorm" and op.output.endswith(("attention_norm", "mlp_norm")):
            assert (decode(folded.tensors[op.weights[0]]) == 1).all()
    assert not np.allclose(
        tapped(folded)["layers.1.mlp_norm"], tapped(model)["layers.1.mlp_norm"], atol=0.1
    )


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rotating_value_heads_leaves_the_logits(family: str) -> None:
    model = model_of(family)
    folding = Folding()
    for group in scalable(model):
        if group.origin is not None and group.origin.kind == "value":
            folding = folding.then(fold_head_rotation(group, rotation(group.origin.run, 2)))
    assert len(folding.edits) >= 2 * len(model.program.cache)
    assert_unchanged(model, folding, 1e-3)


@pytest.mark.parametrize("family", ["llama3", "qwen2"])
def test_rotation_gives_a_tied_head_a_weight_of_its_own(family: str) -> None:
    model = model_of(family)
    folding = fold_rotation(model, rotation(model.config.hidden_size, 1))
    assert folding.made_from == {HEAD: "embedding.weight"}
    folded = folding.apply(model)
    assert not folded.config.tied
    assert set(folded.tensors) == set(folded.program.weights) == {*model.tensors, HEAD}
    assert len(folded.tensors) == len(model.tensors) + 1
    assert folded.formats[HEAD] == "F32"
    own = decode(folded.tensors[HEAD])
    assert not np.allclose(own, decode(folded.tensors["embedding.weight"]))
    assert set(model.tensors) == set(model.program.weights)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_methods_chain_when_each_is_made_for_the_model_so_far(family: str) -> None:
    model = model_of(family)
    rotated = fold_rotation(model, rotation(model.config.hidden_size, 1))
    smoothed = rotated.then(smoothquant(rotated.apply(model)))
    assert_unchanged(model, smoothed, 1e-3)
    # The head that was tied can be scaled once it is its own.
    assert HEAD in smoothed.edits
    first = smoothquant(model)
    other_way = first.then(fold_rotation(first.apply(model), rotation(model.config.hidden_size, 1)))
    assert_unchanged(model, other_way, 1e-3)


def test_only_edited_weights_change() -> None:
    model = model_of("llama_bias")
    group = next(group for group in scalable(model) if group.value == "layers.1.activated")
    folded = fold_scales(group, np.full(group.width, 2, np.float32)).apply(model)
    changed = {
        name
        for name in model.tensors
        if (decode(model.tensors[name]) != decode(folded.tensors[name])).any()
    }
    assert changed == {"layers.1.down.weight", "layers.1.up.weight", "layers.1.up.bias"}
    np.testing.assert_array_equal(
        decode(folded.tensors["layers.1.up.bias"]), decode(model.tensors["layers.1.up.bias"]) / 2
    )


def test_no_folding_changes_nothing() -> None:
    model = model_of("llama")
    np.testing.assert_array_equal(logits(Folding().apply(model)), logits(model))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> tuple[Model, list[int], np.ndarray]:
    model = load_model(open_checkpoint(smollm2_path))
    tokens = np.random.default_rng(1).integers(0, 49152, 24).tolist()
    return model, tokens, logits(model, tokens)


def test_smoothquant_leaves_the_logits_of_a_real_model(
    smollm2: tuple[Model, list[int], np.ndarray],
) -> None:
    model, tokens, wanted = smollm2
    found = logits(smoothquant(model, tokens).apply(model), tokens)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_awq_leaves_the_logits_of_a_real_model(
    smollm2: tuple[Model, list[int], np.ndarray],
) -> None:
    model, tokens, wanted = smollm2
    folding = awq(model, tokens, "layers.15.attention")
    assert len(folding.edits) == 5
    found = logits(folding.apply(model), tokens)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_rotation_leaves_the_logits_of_a_real_model(
    smollm2: tuple[Model, list[int], np.ndarray],
) -> None:
    model, tokens, wanted = smollm2
    folding = fold_rotation(model, rotation(576, 1))
    for group in scalable(model):
        if group.origin is not None and group.origin.kind == "value":
            folding = folding.then(fold_head_rotation(group, rotation(64, 1)))
    # What it is for: no dimension of the stream is far larger than the others any more.
    value = "layers.15.mlp_norm"
    read = tapped(model, tokens)[value]
    backend = TorchBackend(folding.apply(model), taps=[value])
    found = backend.forward(tokens).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)
    rotated = backend.tapped[value].detach().numpy()
    peaks = [np.abs(x).max() / np.sqrt(np.square(x).mean()) for x in (read, rotated)]
    assert peaks[1] < peaks[0] / 2


def test_what_cannot_be_folded_is_refused_with_the_reason() -> None:
    gemma, llama = model_of("gemma3"), model_of("llama3")
    with pytest.raises(UnsupportedModelError, match="stands after a product"):
        fold_rotation(gemma, rotation(gemma.config.hidden_size, 1))
    head = linear_groups(llama.program)[-1]
    with pytest.raises(UnsupportedModelError, match="output_norm cannot be scaled: embedding"):
        fold_scales(head, np.ones(head.width, np.float32))
    norm = scalable(llama)[0]
    with pytest.raises(UnsupportedModelError, match="no value heads to rotate"):
        fold_head_rotation(norm, rotation(16, 1))


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_scales_that_are_not_positive_are_refused(value: float) -> None:
    group = scalable(model_of("llama3"))[0]
    scales = np.ones(group.width, np.float32)
    scales[5] = value
    with pytest.raises(FarthingError, match="needs 96 positive finite scales"):
        fold_scales(group, scales)
    with pytest.raises(FarthingError, match="needs 96 positive finite scales"):
        fold_scales(group, scales[:5])


def test_scales_that_query_heads_would_have_to_share_are_refused() -> None:
    group = next(
        group for group in scalable(model_of("llama3")) if group.value.endswith("attention")
    )
    scales = np.ones(group.width, np.float32)
    scales[20] = 2
    with pytest.raises(FarthingError, match="one origin and different scales"):
        fold_scales(group, scales)


def test_a_matrix_that_is_no_rotation_is_refused() -> None:
    model = model_of("llama3")
    with pytest.raises(FarthingError, match="cannot be rotated by a matrix of"):
        fold_rotation(model, rotation(64, 1))
    for spoiled in (2 * rotation(96, 1), np.full((96, 96), np.nan, np.float32)):
        with pytest.raises(FarthingError, match="orthogonal"):
            fold_rotation(model, spoiled)
