"""Qwen 2 and 2.5: Llama's layout with biases on query, key and value."""

from __future__ import annotations

from dataclasses import replace

from farthing.models.config import ModelConfig
from farthing.models.decoder import MODULES, pre_norm_decoder
from farthing.models.fields import Fields
from farthing.models.registry import Architecture, register


def _configure(config: ModelConfig, fields: Fields) -> ModelConfig:
    return replace(config, biases=config.biases | {"query", "key", "value"})


register(
    Architecture(
        name="qwen2",
        build=pre_norm_decoder,
        modules=MODULES,
        gguf=("qwen2",),
        model_types=("qwen2",),
        defaults={"rms_norm_eps": 1e-6, "sliding_window": 4096, "max_window_layers": 28},
        configure=_configure,
    )
)
