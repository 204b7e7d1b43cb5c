"""The shape of a 24-layer model of half a billion parameters, whose figures are published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import farthing.models.qwen2  # noqa: F401
from farthing.core import StoredTensor
from farthing.models.config import ModelConfig
from farthing.models.decoder import pre_norm_decoder
from farthing.models.load import Model
from farthing.models.rope import base_rope

CONFIG = ModelConfig(
    architecture="qwen2",
    vocabulary_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    layers=24,
    heads=14,
    kv_heads=2,
    head_dim=64,
    context_length=32_768,
    epsilon=1e-6,
    tied=True,
    ropes=(base_rope(64, 1e6),) * 24,
    windows=(0,) * 24,
    attention_scale=0.125,
    biases=frozenset({"query", "key", "value"}),
)


def model(config: ModelConfig = CONFIG, form: str = "F32") -> Model:
    """Without weights: what only counts needs none."""
    program = pre_norm_decoder(config)
    formats = {
        name: form if len(weight.shape) == 2 else "F32" for name, weight in program.weights.items()
    }
    return Model(
        name="half a billion",
        config=config,
        program=program,
        tensors={},
        formats=formats,
        stored={},
        unused=(),
    )


def narrow_model(layers: int = 24, kv_heads: int = 2, head_dim: int = 64) -> Model:
    """A cache of that shape around next to nothing; all weights are 0."""
    config = replace(
        CONFIG,
        vocabulary_size=32,
        hidden_size=32,
        intermediate_size=32,
        layers=layers,
        heads=kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ropes=(base_rope(head_dim, 1.0),) * layers,
        windows=(0,) * layers,
    )
    bare = model(config)
    tensors = {
        name: StoredTensor(
            name, "F32", weight.shape, np.zeros(4 * int(np.prod(weight.shape)), np.uint8)
        )
        for name, weight in bare.program.weights.items()
    }
    return replace(bare, tensors=tensors)
