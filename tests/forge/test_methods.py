"""Whole models quantised by every method: what is written is what the method defines, and runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import transformers

import tiny
from farthing.backends import torch as torch_backend
from farthing.backends.torch import TorchBackend
from farthing.core import FarthingError, KVDtype, StoredTensor
from farthing.files.checkpoint import open_checkpoint
from farthing.files.formats import spelling
from farthing.forge import preparation
from farthing.models.load import Model
from farthing.quant.formats import WRITABLE_FORMATS, bits_per_weight, decode, encode, format_named
from farthing.quant.gptq import encode_gptq
from forge.calibrated import EXACT, IDS, TEXT, hessian, inputs_of, logits, made
from forge.test_quantize import broken_model
from native_steps import logits_of, model_at, native, relative_error

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CODED = [name for name in WRITABLE_FORMATS if format_named(name).scaled]
OF_EACH_KIND = ["INT8_ROW", "INT4_G32", "INT4_G64_ASYM", "NF4_B64", "Q4_0", "Q5_1", "IQ4_NL"]
"""What AWQ asks of a scheme is to round; GPTQ takes its steps apart."""


def linears(model: Model) -> list[str]:
    return [op.weights[0] for op in model.program.ops if op.kind == "linear"]


def weights_of(path: Path) -> dict[str, NDArray[np.float32]]:
    model = model_at(path)
    return {name: decode(model.tensors[name]) for name in model.program.weights}


# --- scales and rotations change no answer


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize(
    ("family", "method", "tolerance"),
    [
        *((family, "smoothquant", 1e-4) for family in tiny.FAMILIES),
        *((family, "rotate", 1e-3) for family in tiny.FAMILIES if family != "gemma3"),
    ],
)
def test_full_precision_answers_stay(
    family: str, method: str, tolerance: float, form: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, form)
    out = tmp_path / ("m.gguf" if form == "gguf" else "m")
    made(source, out, "F32", method)
    before, after = weights_of(source), weights_of(out)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert len(changed) > len(before) / 2
    assert relative_error(logits(out, **EXACT), logits(source, **EXACT)) < tolerance


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen3"])
def test_a_rotated_folder_means_to_transformers_what_it_means_here(
    family: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, "safetensors")
    made(source, tmp_path / "m", "F32", "rotate")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        ours = found(torch.tensor([IDS])).logits[0].numpy()
        wanted = tiny.reference(family)(torch.tensor([IDS])).logits[0].numpy()
    assert relative_error(ours, wanted) < 1e-3


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_rotated_model_has_a_head_of_its_own(form: str, tmp_path: Path) -> None:
    source = tiny.shared("llama3", form)
    assert model_at(source).config.tied
    out = tmp_path / ("m.gguf" if form == "gguf" else "m")
    report = made(source, out, "Q4_0", "rotate", keep=["embedding=q8_0", "head=keep"])
    model = model_at(out)
    assert not model.config.tied
    assert model.formats["head.weight"] == "F32"
    assert model.formats["embedding.weight"] == "Q8_0"
    assert model.formats["layers.0.query.weight"] == "Q4_0"
    assert [rule.pattern for rule, _ in report.rules] == ["embedding", "head"]
    if form == "safetensors":
        config = json.loads((out / "config.json").read_text())
        assert config == {
            **json.loads((source / "config.json").read_text()),
            "tie_word_embeddings": False,
        }


def test_a_stream_that_cannot_be_rotated_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(FarthingError, match="cannot be rotated: the norm"):
        made(tiny.shared("gemma3"), tmp_path / "m.gguf", "Q4_0", "rotate")
    assert not list(tmp_path.iterdir())


# --- GPTQ


@pytest.mark.parametrize(
    ("family", "scheme", "form"),
    [
        ("llama_bias", "INT4_G32", "gguf"),
        ("llama3", "Q4_0", "gguf"),
        ("llama3", "Q4_0", "safetensors"),
        ("gemma3", "NF4_B64", "safetensors"),
        ("qwen2", "INT8_ROW", "safetensors"),
    ],
)
def test_gptq_writes_what_it_makes_of_the_weights_and_the_texts_hessian(
    family: str, scheme: str, form: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, form)
    suffix = ".gguf" if form == "gguf" and scheme == "Q4_0" else ""
    out = made(source, tmp_path / f"m{suffix}", scheme, "gptq").path
    before, after = weights_of(source), weights_of(out)
    given = inputs_of(tiny.shared(family))
    for name in linears(model_at(source)):
        second = hessian(given[name])
        error, wanted, plain = (
            output_error(found - before[name], second)
            for found in (
                after[name],
                rounded(encode_gptq(before[name], scheme, second), before[name], scheme),
                rounded(encode(before[name], scheme), before[name], scheme),
            )
        )
        # The native backend's sums differ from torch's in the last bits, and so may single codes.
        assert error == pytest.approx(wanted, rel=0.02), name
        assert error < plain
    # The embedding is looked up, not multiplied.
    wide = rounded(encode(before["embedding.weight"], scheme), before["embedding.weight"], scheme)
    np.testing.assert_array_equal(after["embedding.weight"], wide)


def output_error(difference: NDArray[np.float32], second: NDArray[np.float64]) -> float:
    return float(np.trace(difference @ second @ difference.T))


def rounded(
    data: NDArray[np.uint8], weights: NDArray[np.float32], scheme: str
) -> NDArray[np.float32]:
    return decode(StoredTensor("w", scheme, weights.shape, data))


@pytest.mark.parametrize(
    ("scheme", "method"),
    [*((scheme, "gptq") for scheme in CODED), *((scheme, "awq") for scheme in OF_EACH_KIND)],
)
def test_every_scheme_of_codes_can_be_calibrated_and_runs(
    scheme: str, method: str, tmp_path: Path
) -> None:
    source = tiny.shared("qwen2", "safetensors")
    made(source, tmp_path / "m", scheme, method)
    found = logits(tmp_path / "m")
    assert np.isfinite(found).all()
    assert model_at(tmp_path / "m").formats.keys() == model_at(source).formats.keys()


@pytest.mark.parametrize("methods", [("gptq",), ("awq",), ("awq", "gptq"), ("rotate", "gptq")])
@pytest.mark.parametrize("family", ["llama_bias", "llama3"])
def test_answers_are_nearer_than_those_of_plain_rounding(
    family: str, methods: tuple[str, ...], tmp_path: Path
) -> None:
    source = tiny.shared(family)
    wanted = logits(source, **EXACT)
    plain = made(source, tmp_path / "plain", "INT4_G32").path
    better = made(source, tmp_path / "better", "INT4_G32", *methods).path
    assert relative_error(logits(better, **EXACT), wanted) < relative_error(
        logits(plain, **EXACT), wanted
    )


@pytest.mark.parametrize("methods", [("gptq",), ("awq",), ("awq", "gptq")])
def test_portions_of_the_layers_give_what_all_at_once_do(
    methods: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.shared("llama3", "safetensors")
    made(source, tmp_path / "whole", "INT4_G32", *methods)
    monkeypatch.setattr(preparation, "HESSIAN_BYTES", 1)
    told: list[str] = []
    report = made(
        source,
        tmp_path / "parts",
        "INT4_G32",
        *methods,
        progress=lambda stage, what, share: told.append(stage),
    )
    stages = [stage for stage, before in zip(told, ["", *told], strict=False) if stage != before]
    assert stages == ["write", *["calibrate", "write"] * 3]
    whole, parts = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert whole == parts
    assert report.resumed == 0


def test_the_same_twice_is_the_same(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        made(tiny.shared("llama"), tmp_path / name, "Q4_0", "awq", "gptq")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_matrix_that_has_its_format_already_is_still_copied(tmp_path: Path) -> None:
    source = tiny.shared("llama", "gguf", "Q4_1")
    made(source, tmp_path / "m.gguf", "Q4_1", "gptq")
    before, after = open_checkpoint(source).tensors, open_checkpoint(tmp_path / "m.gguf").tensors
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name].data, tensor.data)


def test_a_text_weighs_the_search_of_k_quants(tmp_path: Path) -> None:
    source = wide_model(tmp_path / "source")
    plain = made(source, tmp_path / "plain", "Q4_K")
    made(source, tmp_path / "weighed", "Q4_K", text=TEXT)
    assert plain.fallbacks == ()
    before, given = weights_of(source), inputs_of(source)
    unweighed, weighed = weights_of(tmp_path / "plain"), weights_of(tmp_path / "weighed")
    for name in linears(model_at(source)):
        squares = np.square(given[name]).mean(axis=0)
        errors = [
            (np.square(found[name] - before[name]) * squares).sum()
            for found in (weighed, unweighed)
        ]
        assert errors[0] < errors[1], name


def wide_model(folder: Path) -> Path:
    """A model whose rows are whole blocks of 256, with inputs of very different sizes."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(torch.exp(torch.randn(parameter.shape)))
    model.save_pretrained(folder)
    return folder


# --- columns kept apart, and scales of inputs

SOURCES = [
    ("llama3", "gguf"),
    ("llama3", "safetensors"),
    ("llama_bias", "safetensors"),
    ("gemma3", "gguf"),
]


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_outlier_columns_lie_beside_the_codes_which_hold_zeros_there(
    form: str, tmp_path: Path
) -> None:
    source = tiny.shared("llama3", form)
    report = made(source, tmp_path / "m", "INT8_ROW", "llm.int8")
    given, before = inputs_of(tiny.shared("llama3")), model_at(source)
    tensors = open_checkpoint(tmp_path / "m").tensors
    seen = 0
    for name in linears(before):
        stored = before.stored[name].name
        largest = np.abs(given[name]).max(axis=0)
        wanted = np.flatnonzero(largest >= 6)
        assert np.abs(largest - 6).min() > 1e-4, "too near to say"
        if not wanted.size:
            assert f"{stored}.outlier_columns" not in tensors
            continue
        seen += 1
        columns = tensors[f"{stored}.outlier_columns"].data.view(np.int32)
        np.testing.assert_array_equal(columns, wanted)
        weights = decode(open_checkpoint(source).tensors[stored])
        apart = decode(tensors[f"{stored}.outlier_weights"])
        bf16 = encode(np.ascontiguousarray(weights[:, columns]), "BF16")
        np.testing.assert_array_equal(encode(apart, "BF16"), bf16)
        weights[:, columns] = 0
        np.testing.assert_array_equal(tensors[stored].data, encode(weights, "INT8_ROW"))
    assert 0 < seen < len(linears(before))
    beside = sum(tensor.data.nbytes for name, tensor in tensors.items() if ".outlier_" in name)
    assert report.beside_bytes == beside > 0
    plain = report.matrices["INT8_ROW"]
    bits = plain.bits_per_weight + 8 * beside / plain.weights
    assert report.bits_per_weight == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize("methods", [("static-inputs",), ("static-inputs", "smoothquant")])
def test_every_coded_linears_input_gets_the_scale_of_its_largest_magnitude(
    methods: tuple[str, ...], tmp_path: Path
) -> None:
    source = tiny.shared("llama_bias")
    kept = "head" if "smoothquant" in methods else "down"
    report = made(source, tmp_path / "m", "INT8_ROW", *methods, keep=[f"{kept}=keep"])
    made(source, tmp_path / "f32.gguf", "F32", *(m for m in methods if m != "static-inputs"))
    model = model_at(tmp_path / "m")
    given = inputs_of(tmp_path / "f32.gguf")
    tensors = open_checkpoint(tmp_path / "m").tensors
    scaled = [name for name in linears(model) if kept not in name]
    for name in scaled:
        (scale,) = tensors[f"{model.stored[name].name}.input_scale"].data.view(np.float32)
        assert scale == pytest.approx(np.abs(given[name]).max() / 127, rel=1e-4)
    assert sum(name.endswith(".input_scale") for name in tensors) == len(scaled)
    assert report.beside_bytes == 4 * len(scaled)
    assert report.container == "safetensors"


@pytest.mark.parametrize("methods", [("llm.int8",), ("llm.int8", "gptq")])
@pytest.mark.parametrize(("family", "form"), SOURCES)
def test_columns_beside_weights_are_computed_with_as_the_oracle_does(
    family: str, methods: tuple[str, ...], form: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, form)
    made(source, tmp_path / "m", "INT8_ROW", *methods)
    oracle = TorchBackend(model_at(tmp_path / "m")).forward(IDS).detach().numpy()
    assert relative_error(logits(tmp_path / "m", **EXACT), oracle) < 1e-5
    assert relative_error(oracle, logits(source, **EXACT)) < 0.15


@pytest.mark.parametrize(
    "methods", [("static-inputs",), ("llm.int8", "static-inputs"), ("smoothquant", "static-inputs")]
)
@pytest.mark.parametrize(("family", "form"), SOURCES)
def test_scales_of_inputs_are_computed_with_as_the_oracle_does(
    family: str,
    methods: tuple[str, ...],
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tiny.shared(family, form)
    # A head without a scale would be multiplied in int8 by scales of the moment.
    made(source, tmp_path / "m", "INT8_ROW", *methods, keep=["embedding=keep", "head=keep"])
    # Outliers are in bf16, as their weights are.
    rounded = lambda x, columns: x[:, list(columns)].bfloat16().float()  # noqa: E731
    monkeypatch.setitem(torch_backend._FUNCTIONS, "columns", rounded)
    exact = native(model_at(source), **EXACT)
    oracle = TorchBackend(model_at(tmp_path / "m"))
    backend = native(model_at(tmp_path / "m"), kv_dtype=KVDtype.FP32)
    errors, costs = [], []
    for text in np.split(np.array(IDS), 20):
        wanted = oracle.forward(text.tolist()).detach().numpy()
        errors.append(relative_error(logits_of(backend, text), wanted))
        costs.append(relative_error(wanted, logits_of(exact, text)))
    # Where an input lies half way between two codes, one bit of a sum decides: in few texts.
    assert np.quantile(errors, 0.75) < 1e-5
    assert max(errors) < 0.05
    assert np.median(costs) < 0.15


@pytest.mark.parametrize("keep", ["mlp=keep", "attention=keep", "layers.1,2=keep"])
@pytest.mark.parametrize("method", ["awq", "smoothquant", "gptq"])
def test_layers_that_are_kept_are_kept_whatever_is_done_to_others(
    method: str, keep: str, tmp_path: Path
) -> None:
    source = tiny.shared("qwen2", "safetensors", "BF16")
    made(source, tmp_path / "m", "INT4_G32", method, keep=[keep])
    assert relative_error(logits(tmp_path / "m", **EXACT), logits(source, **EXACT)) < 0.4
    before, after = open_checkpoint(source).tensors, open_checkpoint(tmp_path / "m").tensors
    part = {"mlp=keep": "mlp.", "attention=keep": "self_attn."}.get(keep, "layers.2.")
    for name, tensor in before.items():
        if part in name and name.endswith("proj.weight"):
            assert after[name].format == tensor.format
            np.testing.assert_array_equal(after[name].data, tensor.data)


def test_columns_kept_apart_bring_answers_nearer(tmp_path: Path) -> None:
    source = tiny.shared("llama_bias")
    wanted = logits(source, **EXACT)
    plain, apart = (
        made(source, tmp_path / f"m{len(methods)}", "INT8_ROW", *methods).path
        for methods in ((), ("llm.int8",))
    )
    assert relative_error(logits(apart), wanted) < relative_error(logits(plain), wanted)


@pytest.mark.parametrize("remedy", ["smoothquant", "rotate"])
@pytest.mark.parametrize("family", ["llama3", "llama_bias"])
def test_smoothing_and_rotation_repair_inputs_with_one_scale(
    family: str, remedy: str, tmp_path: Path
) -> None:
    source = tiny.shared(family)
    wanted = logits(source, **EXACT)
    errors = []
    for number, methods in enumerate([("static-inputs",), ("static-inputs", remedy)]):
        out = made(source, tmp_path / f"m{number}", "INT8_ROW", *methods).path
        errors.append(relative_error(logits(out), wanted))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("method", ["llm.int8", "static-inputs"])
def test_a_model_with_more_than_weights_is_not_quantised_again(method: str, tmp_path: Path) -> None:
    made(tiny.shared("llama3"), tmp_path / "m", "INT8_ROW", method)
    with pytest.raises(FarthingError, match="stores more than weights .*quantise the model that"):
        made(tmp_path / "m", tmp_path / "n", "INT4_G32")


# --- refusals


@pytest.mark.parametrize(
    ("scheme", "methods"), [("INT4_G32", ["gptq"]), ("Q8_0", ["awq"]), ("Q4_0", [])]
)
def test_a_text_that_decides_nothing_about_any_matrix_is_refused(
    scheme: str, methods: list[str], tmp_path: Path
) -> None:
    keep, out = ["layers=keep"], tmp_path / ("m" if scheme == "INT4_G32" else "m.gguf")
    with pytest.raises(FarthingError, match="nothing here is calibrated: all matrices"):
        made(tiny.shared("llama"), out, scheme, *methods, keep=keep, text=TEXT)
    assert not list(tmp_path.iterdir())


def test_a_text_is_used_where_rows_have_another_format_than_the_k_quant(tmp_path: Path) -> None:
    source = tiny.shared("llama")
    plain = made(source, tmp_path / "plain.gguf", "Q4_K")
    made(source, tmp_path / "weighed.gguf", "Q4_K", text=TEXT)
    assert plain.matrices.keys() == {"Q5_0"}
    before, given = weights_of(source), inputs_of(source)
    found = [weights_of(tmp_path / f"{name}.gguf") for name in ("weighed", "plain")]
    for name in linears(model_at(source)):
        squares = np.square(given[name]).mean(axis=0)
        weighed, unweighed = (
            (np.square(each[name] - before[name]) * squares).sum() for each in found
        )
        assert weighed < unweighed, name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_an_error_that_leaves_nothing(
    value: float, tmp_path: Path
) -> None:
    source = broken_model(tmp_path / "source", value)
    for method in ("gptq", "awq", "smoothquant", "static-inputs", "llm.int8"):
        with pytest.raises(FarthingError, match="overflows on the calibration text"):
            made(source, tmp_path / "m", "INT8_ROW", method)
        assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_rows_that_no_k_quant_divides_get_the_formats_of_llama_cpp(tmp_path: Path) -> None:
    wanted = {"q4_k": "Q5_0", "q5_k": "Q5_1", "q6_k": "Q8_0", "q2_k": "IQ4_NL", "q3_k": "IQ4_NL"}
    for scheme, fallback in wanted.items():
        out = tmp_path / f"{scheme}.gguf"
        report = made(tiny.shared("llama"), out, scheme.upper())
        assert report.matrices.keys() == {fallback}
        assert len(report.fallbacks) == report.matrices[fallback].tensors
        assert report.bits_per_weight == bits_per_weight(fallback, (64, 64))
        assert spelling(scheme.upper()) == scheme
