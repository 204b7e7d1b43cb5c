"""What a checkpoint says beside its matrices, and that nothing wrong is taken for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farthing.core import FileFormatError, UnsupportedModelError
from farthing.models.load import load_model
from farthing.quant.formats import decode
from remedied import joined, opened, put, stored, with_outlier_columns

GATES = [("gguf", "blk.1.ffn_gate.weight"), ("safetensors", "model.layers.1.mlp.gate_proj.weight")]
HEADS = [("gguf", "token_embd.weight"), ("safetensors", "model.embed_tokens.weight")]


@pytest.mark.parametrize(("form", "name"), GATES)
def test_an_input_scale_becomes_the_linears(form: str, name: str) -> None:
    checkpoint = opened("llama3", form)
    plain = load_model(checkpoint)
    put(checkpoint, stored(f"{name}.input_scale", "F32", np.array([0.375], np.float32)))
    model = load_model(checkpoint)
    changed = [op for op in model.program.ops if op not in plain.program.ops]
    assert [(op.output, op.attributes["input_scale"]) for op in changed] == [
        ("layers.1.gate", 0.375)
    ]
    assert model.program.weights == plain.program.weights
    assert model.unused == ()


@pytest.mark.parametrize(("form", "name"), HEADS)
def test_a_tied_head_can_have_one(form: str, name: str) -> None:
    checkpoint = opened("llama3", form)
    put(checkpoint, stored(f"{name}.input_scale", "F32", np.array([0.375], np.float32)))
    *others, head = load_model(checkpoint).program.ops
    assert head.attributes["input_scale"] == 0.375
    assert not any("input_scale" in op.attributes for op in others)


@pytest.mark.parametrize(
    ("format_name", "numbers"),
    [
        ("F32", [0.0]),
        ("F32", [-1.0]),
        ("F32", [np.nan]),
        ("F32", [np.inf]),
        ("F32", [1e-40]),
        ("F32", [0.5, 0.5]),
        ("F32", []),
        ("I32", [1.0]),
    ],
)
def test_what_is_no_scale_is_refused(format_name: str, numbers: list[float]) -> None:
    checkpoint = opened("llama3")
    name = "blk.1.ffn_gate.weight.input_scale"
    put(checkpoint, stored(name, format_name, np.array(numbers, np.float32)))
    with pytest.raises(FileFormatError, match=r"blk\.1\.ffn_gate\.weight\.input_scale"):
        load_model(checkpoint)


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "blk.9.ffn_gate.weight", "output_norm"])
def test_a_scale_of_nothing_that_is_multiplied_is_refused(name: str) -> None:
    checkpoint = opened("llama3")
    put(checkpoint, stored(f"{name}.input_scale", "F32", np.array([0.375], np.float32)))
    with pytest.raises(UnsupportedModelError, match="input_scale"):
        load_model(checkpoint)


# --- columns apart

GATE = "blk.1.ffn_gate.weight"
BF16 = np.uint16


def with_columns(columns: Any, weights: Any, **changes: Any) -> Any:
    """The tiny llama3, 96 wide, whose second gate, of 128 outputs, has these tensors beside it."""
    checkpoint = opened("llama3")
    if columns is not None:
        columns = stored(f"{GATE}.outlier_columns", "I32", np.array(columns, np.int32))
        put(checkpoint, replace(columns, **changes))
    if weights is not None:
        put(checkpoint, stored(f"{GATE}.outlier_weights", "BF16", np.zeros(weights, BF16)))
    return checkpoint


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_product_with_columns_apart_is_two_and_their_sum(form: str) -> None:
    model = with_outlier_columns("llama_bias", "F16", {"layers.1.up.weight": [3, 40]}, form)
    plain = with_outlier_columns("llama_bias", "F16", {}, form)
    before = [op.output for op in plain.program.ops]
    after = [(op.kind, op.output) for op in model.program.ops if op.output not in before]
    assert after == [
        ("columns", "layers.1.up.outliers"),
        ("zero_columns", "layers.1.up.rest"),
        ("linear", "layers.1.up.coded"),
        ("linear", "layers.1.up.apart"),
    ]
    ops = {op.output: op for op in model.program.ops}
    assert ops["layers.1.up"].kind == "add"
    assert ops["layers.1.up.coded"].weights == ("layers.1.up.weight", "layers.1.up.bias")
    assert model.formats["layers.1.up.weight.outlier_weights"] == "BF16"
    assert model.stored["layers.1.up.weight.outlier_weights"].name.endswith("outlier_weights")
    assert set(model.tensors) == set(model.program.weights)
    assert model.unused == ()


def test_products_that_share_input_and_columns_share_the_split() -> None:
    parts = ("query", "key", "value")
    same = {f"layers.0.{part}.weight": [1, 2] for part in parts}
    model = with_outlier_columns("llama3", "F16", same)
    assert sum(op.kind == "columns" for op in model.program.ops) == 1
    other = {**same, "layers.0.key.weight": [2]}
    model = with_outlier_columns("llama3", "F16", other)
    assert sum(op.kind == "columns" for op in model.program.ops) == 2


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("part", ["query", "key", "down"])
def test_rows_of_the_weights_apart_are_in_the_order_of_their_matrix(form: str, part: str) -> None:
    """A GGUF of this family stores query and key rows in another order than the Program's."""
    weight = f"layers.2.{part}.weight"
    model = with_outlier_columns("llama3", "BF16", {weight: [0, 5, 95]}, form)
    plain = with_outlier_columns("llama3", "BF16", {}, form)
    np.testing.assert_array_equal(joined(model, weight), decode(plain.tensors[weight]))


@pytest.mark.parametrize(
    ("columns", "weights"),
    [
        ([], (128, 0)),
        ([0, 96], (128, 2)),
        ([-1, 5], (128, 2)),
        ([5, 5], (128, 2)),
        ([7, 5], (128, 2)),
        ([2**31 - 1], (128, 1)),
        ([[1, 2]], (128, 2)),
        (list(range(97)), (128, 97)),
        ([1, 2], (128, 3)),
        ([1, 2], (127, 2)),
        ([1, 2], (2, 128)),
        ([1, 2], (256,)),
        ([1, 2], None),
        (None, (128, 2)),
    ],
)
def test_columns_and_weights_that_do_not_fit_are_refused(columns: Any, weights: Any) -> None:
    with pytest.raises(FileFormatError, match=r"blk\.1\.ffn_gate\.weight"):
        load_model(with_columns(columns, weights))


@pytest.mark.parametrize("format_name", ["F32", "I64", "BF16"])
def test_columns_of_another_type_are_refused(format_name: str) -> None:
    with pytest.raises(FileFormatError, match="must be I32"):
        load_model(with_columns([1, 2], (128, 2), format=format_name))


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_norm.weight", "output_norm"])
def test_columns_of_a_head_or_of_no_matrix_are_refused(name: str) -> None:
    checkpoint = opened("llama3")
    put(checkpoint, stored(f"{name}.outlier_columns", "I32", np.array([1], np.int32)))
    with pytest.raises(UnsupportedModelError, match="outlier_columns"):
        load_model(checkpoint)


def test_a_matrix_can_have_a_scale_and_columns_apart() -> None:
    checkpoint = with_columns([1, 2], (128, 2))
    put(checkpoint, stored(f"{GATE}.input_scale", "F32", np.array([0.5], np.float32)))
    ops = {op.output: op for op in load_model(checkpoint).program.ops}
    assert ops["layers.1.gate.coded"].attributes["input_scale"] == 0.5
    assert "input_scale" not in ops["layers.1.gate.apart"].attributes
