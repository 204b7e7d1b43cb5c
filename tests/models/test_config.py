from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tiny
from farthing.core import FarthingError, FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.models.config import ModelConfig
from farthing.models.load import load_model


def configured(family: str, form: str = "gguf", **changes: Any) -> ModelConfig:
    """The configuration of a tiny model whose description is changed; None removes a field."""
    checkpoint: Any = open_checkpoint(tiny.shared(family, form))
    which = "metadata" if form == "gguf" else "config"
    source: Mapping[str, Any] = {**getattr(checkpoint, which), **changes}
    setattr(checkpoint, which, {k: v for k, v in source.items() if v is not None})
    return load_model(checkpoint).config


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_sizes_are_read_alike_from_both_forms(form: str) -> None:
    config = configured("llama3", form)
    assert (config.vocabulary_size, config.hidden_size) == (tiny.VOCABULARY, 96)
    assert (config.intermediate_size, config.layers) == (128, 3)
    assert (config.heads, config.kv_heads, config.head_dim) == (6, 2, 16)
    assert (config.context_length, config.tied) == (1024, True)
    assert config.epsilon == pytest.approx(1e-5)
    assert config.attention_scale == 0.25
    assert config.windows == (0, 0, 0)
    assert len(config.frequencies) == 3


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rotary_frequencies_are_alike_from_both_forms(family: str) -> None:
    gguf, folder = configured(family), configured(family, "safetensors")
    np.testing.assert_allclose(gguf.frequencies, folder.frequencies, rtol=1e-6)


def test_heads_and_head_dimension_have_defaults() -> None:
    config = configured(
        "llama",
        **{
            "llama.attention.head_count_kv": None,
            "llama.attention.key_length": None,
            "llama.attention.value_length": None,
            "llama.rope.dimension_count": None,
        },
    )
    assert (config.kv_heads, config.head_dim) == (4, 16)


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "block_count",
        "attention.head_count",
        "feed_forward_length",
        "context_length",
        "attention.layer_norm_rms_epsilon",
    ],
)
@pytest.mark.parametrize("value", [None, 0, -3, 2**63, "many", [1, 2], True])
def test_a_bad_gguf_size_is_one_error_that_names_it(key: str, value: Any) -> None:
    with pytest.raises(FileFormatError, match=f"llama.{key} "):
        configured("llama", **{f"llama.{key}": value})


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"],
)
@pytest.mark.parametrize("value", [None, 0, -3, 2**63, "many", [1, 2], 1.5])
def test_a_bad_config_json_size_is_one_error_that_names_it(key: str, value: Any) -> None:
    with pytest.raises(FileFormatError, match=rf"config\.json: {key} "):
        configured("llama", "safetensors", **{key: value})


@pytest.mark.parametrize(
    ("family", "form", "change", "says"),
    [
        ("llama", "gguf", {"llama.expert_count": 8}, "mixture of experts"),
        ("llama", "gguf", {"llama.attention.scale": 0.3}, "attention scale"),
        ("llama", "gguf", {"llama.attention.clamp_kqv": 8.0}, "clamping"),
        ("llama", "gguf", {"llama.attention.causal": False}, "not causal"),
        ("llama", "gguf", {"llama.rope.scaling.type": "yarn"}, "yarn"),
        ("llama", "gguf", {"llama.rope.dimension_count": 8}, "one even number"),
        ("llama", "gguf", {"llama.attention.value_length": 8}, "one even number"),
        ("llama", "gguf", {"llama.attention.key_length": 2**24}, "at most 4096"),
        ("llama", "safetensors", {"head_dim": 7}, "one even number"),
        ("qwen2", "gguf", {"qwen2.rope.dimension_sections": [1, 2, 3]}, "multimodal"),
        ("gemma3", "gguf", {"gemma3.final_logit_softcapping": 30.0}, "capping logits"),
        ("gemma3", "gguf", {"gemma3.attn_logit_softcapping": 50.0}, "capping attention"),
        ("gemma3", "safetensors", {"final_logit_softcapping": 30.0}, "capping logits"),
        ("gemma3", "safetensors", {"use_bidirectional_attention": True}, "not causal"),
        ("gemma3", "safetensors", {"hidden_activation": "silu"}, "gelu_pytorch_tanh"),
        ("llama", "safetensors", {"hidden_act": "gelu"}, "other than silu"),
        ("llama", "safetensors", {"num_local_experts": 8}, "mixture of experts"),
        ("llama", "safetensors", {"quantization_config": {"bits": 4}}, "quantised folder"),
        ("llama", "safetensors", {"partial_rotary_factor": 0.5}, "rotating a part"),
        ("qwen2", "safetensors", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("qwen2", "safetensors", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", "safetensors", {"layer_types": {"full_attention": 2}}, "layer_types"),
    ],
)
def test_a_feature_that_would_change_the_answers_is_refused(
    family: str, form: str, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        configured(family, form, **change)


@pytest.mark.parametrize(
    ("form", "change", "says"),
    [
        ("gguf", {"llama.attention.head_count_kv": 3}, "cannot share"),
        ("gguf", {"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}, "shape"),
        ("gguf", {"llama.attention.key_length": None, "llama.attention.head_count": 7}, "divide"),
        ("safetensors", {"num_key_value_heads": 3}, "cannot share"),
        ("safetensors", {"sliding_window": None, "layer_types": ["sliding_attention"] * 2}, "slid"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(
    form: str, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(FarthingError, match=says):
        configured("llama", form, **change)


def test_mistral_has_transformers_window_unless_its_config_says_null() -> None:
    checkpoint: Any = open_checkpoint(tiny.shared("mistral", "safetensors"))
    checkpoint.config["sliding_window"] = None
    assert load_model(checkpoint).config.windows == (0, 0)
    del checkpoint.config["sliding_window"]
    assert load_model(checkpoint).config.windows == (4096, 4096)


def test_values_that_ask_for_nothing_are_no_obstacle() -> None:
    configured("llama", **{"llama.expert_count": 0, "llama.attention.causal": True})
    configured("gemma3", "safetensors", attn_logit_softcapping=0, quantization_config={})


def test_a_gguf_without_an_embedding_is_refused() -> None:
    checkpoint: Any = open_checkpoint(tiny.shared("llama"))
    tensors: dict[str, StoredTensor] = dict(checkpoint.tensors)
    del tensors["token_embd.weight"]
    checkpoint.tensors = tensors
    with pytest.raises(FileFormatError, match=r"no embedding matrix token_embd\.weight"):
        load_model(checkpoint)


def test_gemmas_scale_at_27b_is_by_hidden_size() -> None:
    # 62 layers are recognised by their number, as in llama.cpp; such a file lacks the tensors.
    from farthing.models.fields import Fields
    from farthing.models.registry import for_gguf

    gemma = for_gguf("gemma3", "")
    config = configured("gemma3")
    large = ModelConfig(
        **{
            **vars(config),
            "layers": 62,
            "windows": (0,) * 62,
            "hidden_size": 5376,
            "heads": 32,
            "head_dim": 128,
            "ropes": (config.ropes[0],) * 62,
        }
    )
    whole = gemma.configure(large, Fields({}, "m.gguf", "gemma3."))
    assert whole.attention_scale == pytest.approx(168**-0.5)
    assert whole.embedding_scale == np.sqrt(np.float32(5376))
