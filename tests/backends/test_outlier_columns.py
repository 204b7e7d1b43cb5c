"""Inputs multiplied apart: the native backend against the definition, and always the same bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import tiny
from farthing import _native
from farthing.backends.torch import TorchBackend, columns, zero_columns
from farthing.core import ActivationMode, KVDtype
from farthing.models.load import Model
from farthing.plan.cost import prompt_costs, total
from farthing.plan.memory import plan_memory
from farthing.quant.formats import decode
from matrix_kernels import Prepared
from native_steps import logits_of, model_at, native, relative_error, step
from remedied import with_outlier_columns
from stored_rows import round_bf16

IDS = tiny.token_ids(70)
CHOSEN = {"layers.1.up.weight": [0, 17, 95]}
EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}


@pytest.fixture(params=_native.available_tiers())
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FARTHING_ISA", request.param)
    return request.param


@cache
def split(family: str, quant: str = "Q8_0") -> Model:
    """Every matrix of every layer has columns apart: one, three or, of the last layer's, all."""
    plain = model_at(tiny.shared(family, "gguf", quant))
    chosen: dict[str, list[int]] = {}
    for op in plain.program.ops:
        if op.kind == "linear":
            width = plain.program.weights[op.weights[0]].shape[1]
            layer = int(op.output.split(".")[1])
            chosen[op.weights[0]] = [[5], [0, 17, width - 1], list(range(width))][min(layer, 2)]
    return with_outlier_columns(family, quant, chosen)


def test_columns_are_taken_and_zeroed() -> None:
    x = torch.arange(8.0).reshape(2, 4)
    assert columns(x, (1, 3)).tolist() == [[1, 3], [5, 7]]
    assert zero_columns(x, (1, 3)).tolist() == [[0, 0, 2, 0], [4, 0, 6, 0]]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_are_those_of_the_definition(family: str, tier: str) -> None:
    wanted = TorchBackend(split(family)).forward(IDS).detach().numpy()
    found = logits_of(native(split(family), **EXACT), IDS, chunks=[1, 30, 7])
    assert relative_error(found, wanted) < 1e-5


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_putting_columns_apart_changes_only_how_they_are_rounded(family: str) -> None:
    plain = TorchBackend(model_at(tiny.shared(family, "gguf", "F16"))).forward(IDS).detach().numpy()
    found = logits_of(native(split(family, "F16"), **EXACT), IDS)
    assert relative_error(found, plain) < 0.05


@pytest.mark.parametrize("part", ["query", "value", "gate", "down"])
def test_a_product_is_the_int8_one_of_the_rest_plus_the_bf16_one_of_the_outliers(
    part: str, tier: str
) -> None:
    name, weight = f"layers.0.{part}", f"layers.0.{part}.weight"
    ops = {op.output: op for op in split("llama3").program.ops}
    # The split is called after the first product that reads it.
    (rest,), (outliers,) = (ops[f"{name}.{each}"].inputs for each in ("coded", "apart"))
    backend = native(split("llama3"), taps=[rest, outliers, name])
    backend.run(step([(IDS, 0, [0, 1, 2])]))
    assert not backend.value(rest)[:, 5].any()
    prepared = Prepared.of(tier, "INT8", np.ascontiguousarray(backend.value(rest)))
    codes = prepared.values.reshape(*prepared.scale.shape, -1).astype(np.float64)
    inputs = (codes * prepared.scale[..., None]).reshape(len(IDS), -1)
    weights = decode(split("llama3").tensors[weight]).astype(np.float64)
    wanted = inputs[:, : weights.shape[1]] @ weights.T
    apart = decode(split("llama3").tensors[f"{weight}.outlier_weights"]).astype(np.float64)
    bf16 = (round_bf16(np.ascontiguousarray(backend.value(outliers))).astype(np.uint32) << 16).view(
        np.float32
    )
    wanted += bf16.astype(np.float64) @ apart.T
    assert relative_error(backend.value(name), wanted.astype(np.float32)) < 1e-6


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_logits_are_the_same_bits_for_any_chunks_threads_and_neighbours(
    family: str, tier: str
) -> None:
    model = split(family, "Q4_0")
    whole = logits_of(native(model, threads=1), IDS)
    for threads, chunks in ((1, [1]), (2, [1, 2, 3, 5, 31]), (3, [17, 4])):
        found = logits_of(native(model, threads=threads), IDS, chunks)
        assert np.array_equal(found, whole), (threads, chunks)
    backend = native(model, sequences=3)
    spans = [(IDS[5:44], 0, [0, 1]), (IDS[:33], 0, [2, 3]), (IDS[60:], 0, [4])]
    together = backend.run(step(spans), want_logits=True).logits
    assert together is not None
    assert np.array_equal(together[39:72], whole[:33])


def test_the_plan_counts_the_weights_apart_and_the_products_with_them() -> None:
    plain, model = (with_outlier_columns("llama3", "Q8_0", c) for c in ({}, CHOSEN))
    plans = [plan_memory(each, threads=1) for each in (plain, model)]
    apart = plans[1].weights["layers.1.up.weight.outlier_weights"]
    assert apart.packed is not None
    assert apart.packed.name == "BF16"
    # 128 outputs in whole tiles, 3 inputs padded to 32, 2 bytes each.
    assert apart.bytes == 128 * 32 * 2
    assert plans[1].weight_bytes == plans[0].weight_bytes + apart.bytes
    costs = [
        total(prompt_costs(each.program, plan, 10))
        for each, plan in zip((plain, model), plans, strict=True)
    ]
    more = {
        mode: costs[1].products[mode] - costs[0].products.get(mode, 0) for mode in costs[1].products
    }
    assert more == {ActivationMode.BF16: 10 * 128 * 3, ActivationMode.INT8: 0}
