"""Gemma 3, the text model: norms before and after each half of a layer, local and global layers.

Five layers of six attend to a window and rotate with a base of their own. The embedding is scaled
by the float32 square root of the hidden size, as llama.cpp and float32 transformers do; a bfloat16
transformers model rounds that factor to bfloat16.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from farthing.models import decoder
from farthing.models.config import ModelConfig, read_window
from farthing.models.fields import Fields
from farthing.models.program import Builder, Program
from farthing.models.registry import Architecture, register
from farthing.models.rope import Rope, base_rope, section_rope

_LOCAL_BASE = 10_000.0
_GLOBAL_BASE = 1_000_000.0
_PATTERN = 6
_LAYERS_OF_27B = 62


def _configure(config: ModelConfig, fields: Fields) -> ModelConfig:
    windows = config.windows
    if fields.raw(None, "layer_types") is None:
        pattern = fields.integer(
            "attention.sliding_window_pattern", "sliding_window_pattern", _PATTERN, high=2**16
        )
        window = read_window(fields)
        windows = tuple(
            0 if (layer + 1) % pattern == 0 else window for layer in range(config.layers)
        )
    local, whole = _ropes(config, fields)
    return replace(
        config,
        windows=windows,
        ropes=tuple(local if window else whole for window in windows),
        attention_scale=1.0 / math.sqrt(_query_scalar(config, fields)),
        embedding_scale=float(np.sqrt(np.float32(config.hidden_size))),
    )


def _ropes(config: ModelConfig, fields: Fields) -> tuple[Rope, Rope]:
    """How the layers with a window rotate, and those without."""
    # Scaling, which config reading has applied, is for the layers without a window only.
    base = fields.number("rope.freq_base_swa", "rope_local_base_freq", _LOCAL_BASE)
    local, whole = base_rope(config.head_dim, base), config.ropes[0]
    rope = fields.section("rope_parameters")
    if rope is not None:
        of_local, of_whole = rope.section("sliding_attention"), rope.section("full_attention")
        if of_local is not None:
            local = section_rope(of_local, config.head_dim, base)
        base = fields.number(None, "rope_theta", _GLOBAL_BASE)
        whole = base_rope(config.head_dim, base)
        if of_whole is not None:
            whole = section_rope(of_whole, config.head_dim, base)
    return local, whole


def _query_scalar(config: ModelConfig, fields: Fields) -> float:
    """What query-key products are divided by the root of; a GGUF leaves it to the model's size."""
    if not fields.is_gguf:
        return fields.number(None, "query_pre_attn_scalar", 256.0)
    if config.layers == _LAYERS_OF_27B:
        return config.hidden_size / config.heads
    return float(config.head_dim)


def _build(config: ModelConfig) -> Program:
    b = Builder()
    x = decoder.embedding(b, config)
    for layer in range(config.layers):
        name = f"layers.{layer}"
        half = decoder.norm(b, config, f"{name}.attention_norm", x)
        half = decoder.attention(b, config, layer, half, query_key_norms=True)
        half = decoder.norm(b, config, f"{name}.post_attention_norm", half)
        x = b.op("add", f"{name}.attention_residual", (x, half))
        half = decoder.norm(b, config, f"{name}.mlp_norm", x)
        half = decoder.gated_mlp(b, config, layer, half, "geglu")
        half = decoder.norm(b, config, f"{name}.post_mlp_norm", half)
        x = b.op("add", f"{name}.mlp_residual", (x, half))
    return decoder.logits(b, config, x)


register(
    Architecture(
        name="gemma3",
        build=_build,
        modules={
            **decoder.MODULES,
            **decoder.QUERY_KEY_NORMS,
            "layers.{layer}.post_attention_norm": (
                "blk.{layer}.post_attention_norm",
                "model.layers.{layer}.post_attention_layernorm",
            ),
            "layers.{layer}.mlp_norm": (
                "blk.{layer}.ffn_norm",
                "model.layers.{layer}.pre_feedforward_layernorm",
            ),
            "layers.{layer}.post_mlp_norm": (
                "blk.{layer}.post_ffw_norm",
                "model.layers.{layer}.post_feedforward_layernorm",
            ),
        },
        gguf=("gemma3",),
        model_types=("gemma3_text", "gemma3"),
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "rope_theta": _GLOBAL_BASE,
            "tie_word_embeddings": True,
        },
        configure=_configure,
        activation="gelu_pytorch_tanh",
        gain_offset=1.0,
    )
)
