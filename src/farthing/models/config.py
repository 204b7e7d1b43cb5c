"""What an architecture needs to know about a model, read and checked from its description."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.models.fields import Fields, shown
from farthing.models.rope import Rope, divided, read_rope

_MAX_LAYERS = 1024
_MAX_WIDTH = 2**24
_MAX_HEAD_DIM = 4096
_MAX_CONTEXT = 2**31 - 1

_NOT_COMPUTED: tuple[tuple[str | None, str | None, tuple[Any, ...], str], ...] = (
    ("expert_count", "num_local_experts", (0,), "a mixture of experts"),
    (None, "num_experts", (0,), "a mixture of experts"),
    ("attn_logit_softcapping", "attn_logit_softcapping", (0,), "capping attention scores"),
    ("final_logit_softcapping", "final_logit_softcapping", (0,), "capping logits"),
    ("logit_scale", "logit_scale", (0, 1), "scaling logits"),
    ("residual_scale", "residual_multiplier", (0, 1), "scaling residuals"),
    ("embedding_scale", "embedding_multiplier", (0, 1), "another embedding scale"),
    ("attention.scale", "attention_multiplier", (0,), "another attention scale"),
    ("attention.output_scale", None, (0, 1), "scaling attention's output"),
    ("attention.temperature_scale", None, (0,), "attention temperature"),
    ("attention.clamp_kqv", "clip_qkv", (0,), "clamping queries, keys and values"),
    ("attention.max_alibi_bias", "alibi", (0,), "ALiBi position biases"),
    ("attention.causal", "is_causal", (True,), "attention that is not causal"),
    (None, "use_bidirectional_attention", (False,), "attention that is not causal"),
    ("use_parallel_residual", "parallel_attn", (False,), "a parallel residual"),
    ("rope.dimension_sections", None, (None,), "multimodal rotary embedding"),
    ("rope.scaling.attn_factor", None, (0, 1), "scaling attention with rope"),
    (None, "partial_rotary_factor", (1,), "rotating a part of each head"),
    (None, "quantization_config", (None,), "a quantised folder of this kind"),
)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one model.

    `ropes[i]` is how layer i rotates, with frequencies for head_dim / 2 pairs of dimensions;
    `windows[i]` is how many latest positions layer i attends to, 0 for all. `biases` names the
    projections that have one: of query, key, value, output, gate, up, down. `tied`: the logits
    use the embedding's matrix. `attention_scale` multiplies query-key products,
    `embedding_scale` the embedding's rows.
    """

    architecture: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    epsilon: float
    tied: bool
    ropes: tuple[Rope, ...]
    windows: tuple[int, ...]
    attention_scale: float
    embedding_scale: float = 1.0
    biases: frozenset[str] = frozenset()

    @property
    def frequencies(self) -> tuple[tuple[float, ...], ...]:
        """Each layer's rotary frequencies in radians a position."""
        return tuple(rope.frequencies for rope in self.ropes)


def read_config(
    architecture: str, activation: str, fields: Fields, tensors: Mapping[str, StoredTensor]
) -> ModelConfig:
    """The fields that all architectures share; `tensors` are the file's, under its own names.

    `activation` is the config.json name of the one activation the architecture computes. Raises
    `FileFormatError` for a bad field and `UnsupportedModelError` for a feature not computed here.
    """
    for gguf, hf, neutral, what in _NOT_COMPUTED:
        fields.refuse(gguf, hf, neutral, what)
    for name in ("hidden_act", "hidden_activation"):
        fields.refuse(None, name, (activation,), f"an activation other than {activation}")
    hidden = fields.integer("embedding_length", "hidden_size", high=_MAX_WIDTH)
    layers = fields.integer("block_count", "num_hidden_layers", high=_MAX_LAYERS)
    heads = fields.integer("attention.head_count", "num_attention_heads", high=_MAX_WIDTH)
    kv_heads = fields.integer(
        "attention.head_count_kv", "num_key_value_heads", heads, high=_MAX_WIDTH
    )
    head_dim = _head_dim(fields, hidden, heads)
    if heads % kv_heads:
        raise FileFormatError(
            f"{fields.where}: {heads} query heads cannot share {kv_heads} key-value heads evenly"
        )
    rope = read_rope(fields, head_dim, 10_000.0)
    if fields.is_gguf and "rope_freqs.weight" in tensors:
        rope = divided(rope, tensors["rope_freqs.weight"], fields.where)
    return ModelConfig(
        architecture=architecture,
        vocabulary_size=_vocabulary_size(fields, tensors),
        hidden_size=hidden,
        intermediate_size=fields.integer(
            "feed_forward_length", "intermediate_size", high=_MAX_WIDTH
        ),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=fields.integer(
            "context_length", "max_position_embeddings", high=_MAX_CONTEXT
        ),
        epsilon=fields.number("attention.layer_norm_rms_epsilon", "rms_norm_eps", high=1.0),
        tied=_tied(fields, tensors),
        ropes=(rope,) * layers,
        windows=_windows(fields, layers),
        attention_scale=1.0 / math.sqrt(head_dim),
        biases=_stored_biases(tensors) if fields.is_gguf else frozenset(),
    )


def read_window(fields: Fields) -> int:
    """How many latest positions a layer with a window attends to; 0: the model has no window."""
    return fields.integer("attention.sliding_window", "sliding_window", 0, low=0, high=_MAX_CONTEXT)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    head_dim = fields.integer("attention.key_length", "head_dim", 0, low=0, high=_MAX_WIDTH)
    if head_dim == 0:
        if hidden % heads:
            raise FileFormatError(
                f"{fields.where}: {hidden} hidden dimensions do not divide into {heads} heads"
            )
        head_dim = hidden // heads
    values = fields.integer("attention.value_length", None, head_dim, high=_MAX_WIDTH)
    rotary = fields.integer("rope.dimension_count", None, head_dim, low=0, high=_MAX_WIDTH)
    if values != head_dim or rotary != head_dim or head_dim % 2 or head_dim > _MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"{fields.where}: a head has {head_dim} key dimensions, {values} value dimensions and "
            f"{rotary} rotated ones; these must be one even number, at most {_MAX_HEAD_DIM}"
        )
    return head_dim


def _vocabulary_size(fields: Fields, tensors: Mapping[str, StoredTensor]) -> int:
    if not fields.is_gguf:
        return fields.integer(None, "vocab_size", high=_MAX_WIDTH)
    # A GGUF need not say it; its embedding does.
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise FileFormatError(f"{fields.where}: there is no embedding matrix token_embd.weight")
    return embedding.shape[0]


def _tied(fields: Fields, tensors: Mapping[str, StoredTensor]) -> bool:
    if fields.is_gguf:
        return "output.weight" not in tensors
    return fields.flag(None, "tie_word_embeddings", False)


def _windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Windows as config.json says; without a word of it every layer attends to everything."""
    types = fields.raw(None, "layer_types")
    if types is None:
        full = layers
        if fields.flag(None, "use_sliding_window", False):
            # Before layer_types were written: the layers from max_window_layers on.
            full = min(full, fields.integer(None, "max_window_layers", low=0, high=_MAX_WIDTH))
        return (0,) * full + (read_window(fields),) * (layers - full)
    window = read_window(fields)
    lengths = {"full_attention": 0, "sliding_attention": window}
    known = isinstance(types, list) and all(isinstance(t, str) and t in lengths for t in types)
    if not known or len(types) != layers:
        raise UnsupportedModelError(
            f"{fields.where}: layer_types must list full_attention or sliding_attention for each "
            f"of {layers} layers, not {shown(types)}"
        )
    if "sliding_attention" in types and window == 0:
        raise FileFormatError(f"{fields.where}: sliding_window is missing beside layer_types")
    return tuple(lengths[kind] for kind in types)


_GGUF_BIASES = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def _stored_biases(tensors: Mapping[str, StoredTensor]) -> frozenset[str]:
    """A GGUF has no switch for biases: they are there or not, alike in every layer."""
    return frozenset(
        name for name, stored in _GGUF_BIASES.items() if f"blk.0.{stored}.bias" in tensors
    )
