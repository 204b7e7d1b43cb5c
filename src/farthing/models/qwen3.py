"""Qwen 3, dense: Llama's layout with every head's query and key normalised before rotation."""

from __future__ import annotations

from dataclasses import replace

from farthing.models.config import ModelConfig
from farthing.models.decoder import MODULES, QUERY_KEY_NORMS, pre_norm_decoder
from farthing.models.fields import Fields
from farthing.models.program import Program
from farthing.models.registry import Architecture, register


def _configure(config: ModelConfig, fields: Fields) -> ModelConfig:
    if not fields.flag(None, "attention_bias", False):
        return config
    return replace(config, biases=config.biases | {"query", "key", "value", "output"})


def _build(config: ModelConfig) -> Program:
    return pre_norm_decoder(config, query_key_norms=True)


register(
    Architecture(
        name="qwen3",
        build=_build,
        modules={**MODULES, **QUERY_KEY_NORMS},
        gguf=("qwen3",),
        model_types=("qwen3",),
        defaults={
            "rms_norm_eps": 1e-6,
            "head_dim": 128,
            "sliding_window": 4096,
            "max_window_layers": 28,
        },
        configure=_configure,
    )
)
