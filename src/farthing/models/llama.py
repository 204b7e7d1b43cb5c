"""Llama 2 and 3, and the families with its layout: SmolLM2, TinyLlama, Mistral."""

from __future__ import annotations

from dataclasses import replace

from farthing.models.config import ModelConfig, read_window
from farthing.models.decoder import MODULES, pre_norm_decoder
from farthing.models.fields import Fields
from farthing.models.registry import Architecture, register


def _configure_llama(config: ModelConfig, fields: Fields) -> ModelConfig:
    biases = config.biases
    if fields.flag(None, "attention_bias", False):
        biases |= {"query", "key", "value", "output"}
    if fields.flag(None, "mlp_bias", False):
        biases |= {"gate", "up", "down"}
    config = replace(config, biases=biases)
    # Mistral's GGUF files use this architecture's name; config.json has a type of its own.
    return _configure_mistral(config, fields) if fields.is_gguf else config


def _configure_mistral(config: ModelConfig, fields: Fields) -> ModelConfig:
    return replace(config, windows=(read_window(fields),) * config.layers)


register(
    Architecture(
        name="llama",
        build=pre_norm_decoder,
        modules=MODULES,
        gguf=("llama",),
        model_types=("llama",),
        defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
        configure=_configure_llama,
        interleaved=frozenset({"layers.{layer}.query", "layers.{layer}.key"}),
    )
)
register(
    Architecture(
        name="mistral",
        build=pre_norm_decoder,
        modules=MODULES,
        model_types=("mistral",),
        defaults={"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096},
        configure=_configure_mistral,
        written_as="llama",
    )
)
