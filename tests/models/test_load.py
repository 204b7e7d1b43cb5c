from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.models import registry
from farthing.models.config import ModelConfig
from farthing.models.decoder import MODULES
from farthing.models.load import load_model
from farthing.models.program import Builder, Program
from farthing.models.registry import Architecture, register
from farthing.models.row_order import half_split
from farthing.quant.formats import decode


def opened(family: str, form: str = "gguf", quant: str = "F32") -> Any:
    """A tiny model's checkpoint, whose tensors and description a test may change."""
    checkpoint: Any = open_checkpoint(tiny.shared(family, form, quant))
    checkpoint.tensors = dict(checkpoint.tensors)
    return checkpoint


def vector(*numbers: float) -> StoredTensor:
    data = np.array(numbers, np.float32)
    return StoredTensor("vector", "F32", data.shape, data.view(np.uint8))


FORMS = [("gguf", "blk.1.ffn_up.weight"), ("safetensors", "model.layers.1.mlp.up_proj.weight")]


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_model_has_exactly_its_programs_weights_in_their_shapes(family: str, form: str) -> None:
    model = load_model(opened(family, form))
    shapes = {name: weight.shape for name, weight in model.program.weights.items()}
    assert {name: tensor.shape for name, tensor in model.tensors.items()} == shapes
    assert {name: tensor.format for name, tensor in model.tensors.items()} == model.formats
    assert model.unused == ()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_both_forms_give_the_same_weights(family: str) -> None:
    from_gguf = load_model(opened(family)).tensors
    from_folder = load_model(opened(family, "safetensors")).tensors
    assert set(from_gguf) == set(from_folder)
    for name, tensor in from_gguf.items():
        np.testing.assert_array_equal(decode(tensor), decode(from_folder[name]), err_msg=name)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("form", "name"),
    [("gguf", "blk.1.ffn_norm.weight"), ("safetensors", "model.layers.1.input_layernorm.weight")],
)
def test_a_vector_that_is_not_finite_is_named(form: str, name: str, number: float) -> None:
    checkpoint = opened("gemma3", form)
    length = checkpoint.tensors[name].shape[0]
    checkpoint.tensors[name] = replace(vector(number, *[1.0] * (length - 1)), name=name)
    tensors = load_model(checkpoint).tensors
    with pytest.raises(FileFormatError, match=f"{name} holds numbers that are not finite"):
        dict(tensors)


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_missing_tensor_is_named(form: str, name: str) -> None:
    checkpoint = opened("llama", form)
    del checkpoint.tensors[name]
    with pytest.raises(FileFormatError, match=f"the tensor {name} is missing"):
        load_model(checkpoint)


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_tensor_of_another_shape_is_named_with_both(form: str, name: str) -> None:
    checkpoint = opened("llama", form)
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], shape=(64, 128))
    with pytest.raises(FileFormatError, match=rf"{name} has shape \(64, 128\).*\(128, 64\)"):
        load_model(checkpoint)


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_tensor_in_an_unreadable_format_is_named(form: str, name: str) -> None:
    checkpoint = opened("llama", form)
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], format="IQ1_S")
    with pytest.raises(UnsupportedModelError, match=f"{name} is stored as IQ1_S"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("family", "form", "name"),
    [
        ("qwen3", "gguf", "blk.1.attn_sinks.weight"),
        ("qwen2", "gguf", "blk.7.attn_norm.weight"),
        ("qwen2", "gguf", "token_embd_norm.weight"),
        ("llama", "gguf", "blk.1.attn_q.bias"),
        ("llama", "safetensors", "model.layers.0.self_attn.q_proj.bias"),
        ("llama", "safetensors", "model.layers.0.mlp.up_proj.weight_scale"),
        ("llama", "safetensors", "model.layers.2.input_layernorm.weight"),
        ("llama", "safetensors", "lm_head.bias"),
    ],
)
def test_a_tensor_that_would_change_the_answers_is_refused(
    family: str, form: str, name: str
) -> None:
    checkpoint = opened(family, form)
    checkpoint.tensors[name] = vector(1.0)
    with pytest.raises(UnsupportedModelError, match=f"{name}.*not a part"):
        load_model(checkpoint)


def test_tensors_of_no_use_are_listed_and_derived_ones_are_not() -> None:
    checkpoint = opened("llama", "safetensors")
    checkpoint.tensors["vision_tower.layers.0.weight"] = vector(1.0)
    checkpoint.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = vector(1.0)
    assert load_model(checkpoint).unused == ("vision_tower.layers.0.weight",)


def test_a_tied_head_reads_the_embedding() -> None:
    for form in ("gguf", "safetensors"):
        program = load_model(opened("qwen2", form)).program
        assert program.ops[-1].weights == program.ops[0].weights == ("embedding.weight",)


def test_a_tied_folder_may_store_its_head_again() -> None:
    checkpoint = opened("qwen2", "safetensors")
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"]
    assert load_model(checkpoint).unused == ()


def test_a_gguf_with_a_head_of_its_own_reads_it() -> None:
    model = load_model(opened("llama"))
    assert not model.config.tied
    assert model.program.ops[-1].weights == ("head.weight",)


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_query_rows_move_whole_in_every_format(quant: str) -> None:
    kind = gguf.GGMLQuantizationType[quant]
    stored = opened("llama", quant=quant).tensors["blk.0.attn_q.weight"]
    restored = half_split(stored, 4)
    assert (restored.format, restored.shape) == (stored.format, stored.shape)
    numbers = dequantize(stored.data.reshape(64, -1), kind)
    # Row j of a head's first half was stored at 2 j, of its second half at 2 j + 1.
    heads = numbers.reshape(4, 16, 64)
    wanted = np.concatenate((heads[:, ::2], heads[:, 1::2]), axis=1).reshape(64, 64)
    np.testing.assert_array_equal(dequantize(restored.data.reshape(64, -1), kind), wanted)


def test_a_matrix_whose_rows_stay_is_a_view_of_the_file() -> None:
    checkpoint = opened("llama", quant="Q4_0")
    model = load_model(checkpoint)
    stored = checkpoint.tensors["blk.0.attn_v.weight"]
    assert np.shares_memory(model.tensors["layers.0.value.weight"].data, stored.data)


@pytest.mark.parametrize("quant", ["F16", "BF16"])
def test_vectors_are_float32_whatever_they_were(quant: str) -> None:
    checkpoint = opened("llama_bias", "safetensors", quant)
    model = load_model(checkpoint)
    for ours, theirs in (
        ("layers.1.query.bias", "model.layers.1.self_attn.q_proj.bias"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        assert model.formats[ours] == model.tensors[ours].format == "F32"
        stored = checkpoint.tensors[theirs]
        assert stored.format == quant
        np.testing.assert_array_equal(decode(model.tensors[ours]), decode(stored))


def test_gemmas_gains_are_one_more_than_safetensors_hold() -> None:
    checkpoint = opened("gemma3", "safetensors")
    gain = decode(load_model(checkpoint).tensors["layers.0.query_norm.weight"])
    stored = decode(checkpoint.tensors["model.layers.0.self_attn.q_norm.weight"])
    np.testing.assert_array_equal(gain, stored + np.float32(1))


@pytest.mark.parametrize("name", ["bert", "", "x" * 10_000])
def test_an_unknown_architecture_is_refused_with_the_known_ones(name: str) -> None:
    checkpoint = opened("llama")
    checkpoint.metadata = {**checkpoint.metadata, "general.architecture": name}
    with pytest.raises(UnsupportedModelError, match="gemma3, llama, qwen2, qwen3") as caught:
        load_model(checkpoint)
    assert len(str(caught.value)) < 400
    folder = opened("llama", "safetensors")
    folder.config["model_type"] = name
    with pytest.raises(UnsupportedModelError, match="gemma3_text, llama, mistral, qwen2"):
        load_model(folder)


def test_a_file_that_names_no_architecture_is_refused() -> None:
    checkpoint = opened("llama")
    checkpoint.metadata = {}
    with pytest.raises(UnsupportedModelError, match="architecture '' is not supported"):
        load_model(checkpoint)


def test_a_model_is_called_as_its_file_says() -> None:
    assert load_model(opened("llama")).name == "tiny llama"
    assert load_model(opened("llama", "safetensors")).name == "llama.safetensors.F32"


def test_an_architecture_is_added_by_registering_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attention layer without rotation, read from a GGUF of its own kind."""
    monkeypatch.setattr(registry, "_BY_GGUF", dict(registry._BY_GGUF))

    def build(config: ModelConfig) -> Program:
        b = Builder()
        size, head = config.hidden_size, config.head_dim
        x = b.op("embed", "x", (), (b.weight("embedding.weight", config.vocabulary_size, size),))
        query, key, value = (
            b.op("linear", part, (x,), (b.weight(f"layers.0.{part}.weight", head, size),))
            for part in ("query", "key", "value")
        )
        mixed = b.op(
            "attend", "mixed", (query, key, value),
            layer=0, heads=1, kv_heads=1, head_dim=head, scale=1.0, window=0,
        )  # fmt: skip
        wanted = b.op("rows", "wanted", (mixed,))
        head_weight = b.weight("head.weight", config.vocabulary_size, head)
        return b.finish(b.op("logits", "logits", (wanted,), (head_weight,)))

    register(Architecture("onelayer", build, MODULES, gguf=("onelayer",)))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "onelayer")
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_context_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape, np.float32)
        for name, shape in {
            "token_embd": (5, 8),
            "blk.0.attn_q": (8, 8),
            "blk.0.attn_k": (8, 8),
            "blk.0.attn_v": (8, 8),
            "output": (5, 8),
        }.items()
    }
    for name, numbers in weights.items():
        writer.add_tensor(f"{name}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = load_model(open_checkpoint(tmp_path / "m.gguf"))
    ours = TorchBackend(model).forward([1, 4, 2]).numpy()

    x = weights["token_embd"][[1, 4, 2]].astype(np.float64)
    q, k, v = (x @ weights[f"blk.0.attn_{part}"].T for part in "qkv")
    scores = np.exp(q @ k.T) * np.tri(3)
    wanted = scores / scores.sum(1, keepdims=True) @ v @ weights["output"].T
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_an_architectures_name_is_taken_once() -> None:
    llama = registry.for_gguf("llama", "")
    with pytest.raises(ValueError, match="llama is registered already"):
        register(Architecture("other", llama.build, MODULES, gguf=("llama",)))
