"""Whole models in every stored format, K-quants and farthing's own: against the float32 oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import stored_rows
import tiny
from farthing import _native
from farthing.core import ActivationMode, KVDtype, StoredTensor
from farthing.quant.formats import FORMATS
from moved_oracle import oracle_logits, rounding_bound
from native_steps import logits_of, native, relative_error, step
from stored_models import as_multiplied, stored_model

IDS = tiny.token_ids(70)
# Those whose matrices test_native.py has from real files are left out.
OTHERS = [
    name
    for name in FORMATS
    if name not in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
]
every_other = pytest.mark.parametrize("format_name", OTHERS)


@pytest.fixture(params=_native.available_tiers())
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FARTHING_ISA", request.param)
    return request.param


@every_other
def test_stored_weights_in_fp32_mode_equal_the_oracles_to_1e_5(format_name: str) -> None:
    """Packing, expanding and the embedding lookup are lossless for every format."""
    model = stored_model(format_name)
    backend = native(model, activations=ActivationMode.FP32, kv_dtype=KVDtype.FP32)
    assert relative_error(logits_of(backend, IDS), oracle_logits(model, IDS)) < 1e-5


@pytest.mark.parametrize("format_name", ["NF4_B64", "NF4_B128"])
def test_nf4_stays_packed_in_fp32_mode(format_name: str) -> None:
    backend = native(stored_model(format_name), activations=ActivationMode.FP32)
    place = backend.plan.weights["layers.0.down.weight"]
    assert place.packed is not None
    assert (place.packed.name, place.packed.lossless) == ("NF4_EXACT", True)
    assert place.bytes < 256 * 512 * 4.5 / 8


@every_other
def test_rounded_activations_cost_no_more_than_half_a_step_everywhere_would(
    format_name: str,
) -> None:
    model = as_multiplied(stored_model(format_name))
    found = logits_of(native(stored_model(format_name), kv_dtype=KVDtype.FP16), IDS)
    bound = rounding_bound(model, IDS, ActivationMode.INT8, KVDtype.FP16)
    assert relative_error(found, oracle_logits(model, IDS)) < bound


@pytest.mark.parametrize("format_name", ["Q4_K", "Q6_K", "INT4_G64_ASYM", "INT8_ROW"])
def test_one_matrix_with_scales_shifted_by_one_exceeds_the_bound(format_name: str) -> None:
    model = stored_model(format_name)
    name = "layers.1.down.weight"
    outputs, inputs = model.tensors[name].shape
    rows = model.tensors[name].data.reshape(outputs, -1)
    scales = stored_rows.scale_bytes(format_name, rows, inputs)
    scales = scales.view(np.float32 if format_name.startswith("INT8") else np.float16)
    # Half of the scales become a quarter larger.
    factor = 1 + np.arange(scales.size).reshape(scales.shape) % 2 / 4
    moved = stored_rows.with_scales(format_name, rows, inputs, scales * factor)
    tensor = StoredTensor(name, format_name, (outputs, inputs), moved.reshape(-1))
    damaged = dataclasses.replace(model, tensors={**model.tensors, name: tensor})
    found = logits_of(native(damaged, kv_dtype=KVDtype.FP16), IDS)
    bound = rounding_bound(model, IDS, ActivationMode.INT8, KVDtype.FP16)
    assert relative_error(found, oracle_logits(model, IDS)) > bound


@every_other
def test_a_token_is_the_same_bits_in_any_chunk_batch_and_thread(
    format_name: str, tier: str
) -> None:
    model = stored_model(format_name)
    one = native(model, threads=1)
    whole = logits_of(one, IDS)
    two = native(model, threads=2, sequences=9)
    assert np.array_equal(whole, logits_of(two, IDS, chunks=[1, 2, 5, 13, 3, 20]))
    lengths = [1, 5, 17, 30, 8, 2, 40, 12, 26]
    blocks = [[4 + 2 * i, 5 + 2 * i] for i in range(len(lengths))]
    spans = [(IDS[:length], 0, table) for length, table in zip(lengths, blocks, strict=True)]
    together = two.run(step(spans), want_logits=True).logits
    assert together is not None
    for part, length in zip(np.split(together, np.cumsum(lengths)[:-1]), lengths, strict=True):
        assert np.array_equal(part, whole[:length])
