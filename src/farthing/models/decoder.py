"""The parts that decoder-only transformers share, as Program fragments.

Layer i's values and weights are called `layers.i.<part>`; a residual stream value is followed
from `embedding` through `layers.i.attention_residual` and `layers.i.mlp_residual`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from farthing.models.config import ModelConfig
from farthing.models.program import Builder, Program

MODULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "embedding": ("token_embd", "model.embed_tokens"),
        "layers.{layer}.attention_norm": (
            "blk.{layer}.attn_norm",
            "model.layers.{layer}.input_layernorm",
        ),
        "layers.{layer}.query": ("blk.{layer}.attn_q", "model.layers.{layer}.self_attn.q_proj"),
        "layers.{layer}.key": ("blk.{layer}.attn_k", "model.layers.{layer}.self_attn.k_proj"),
        "layers.{layer}.value": ("blk.{layer}.attn_v", "model.layers.{layer}.self_attn.v_proj"),
        "layers.{layer}.output": (
            "blk.{layer}.attn_output",
            "model.layers.{layer}.self_attn.o_proj",
        ),
        "layers.{layer}.mlp_norm": (
            "blk.{layer}.ffn_norm",
            "model.layers.{layer}.post_attention_layernorm",
        ),
        "layers.{layer}.gate": ("blk.{layer}.ffn_gate", "model.layers.{layer}.mlp.gate_proj"),
        "layers.{layer}.up": ("blk.{layer}.ffn_up", "model.layers.{layer}.mlp.up_proj"),
        "layers.{layer}.down": ("blk.{layer}.ffn_down", "model.layers.{layer}.mlp.down_proj"),
        "output_norm": ("output_norm", "model.norm"),
        "head": ("output", "lm_head"),
    }
)

QUERY_KEY_NORMS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "layers.{layer}.query_norm": (
            "blk.{layer}.attn_q_norm",
            "model.layers.{layer}.self_attn.q_norm",
        ),
        "layers.{layer}.key_norm": (
            "blk.{layer}.attn_k_norm",
            "model.layers.{layer}.self_attn.k_norm",
        ),
    }
)


def embedding(b: Builder, config: ModelConfig) -> str:
    """The tokens' rows of the embedding, scaled where the model does so."""
    table = b.weight("embedding.weight", config.vocabulary_size, config.hidden_size)
    if config.embedding_scale == 1.0:
        return b.op("embed", "embedding", (), (table,))
    rows = b.op("embed", "embedding_rows", (), (table,))
    return b.op("scale", "embedding", (rows,), factor=config.embedding_scale)


def norm(b: Builder, config: ModelConfig, name: str, x: str, length: int = 0) -> str:
    """RMSNorm of each run of `length` dimensions (0: the hidden size), with the gain `name`."""
    gain = b.weight(f"{name}.weight", length or config.hidden_size)
    return b.op("rmsnorm", name, (x,), (gain,), epsilon=config.epsilon)


def linear(b: Builder, config: ModelConfig, layer: int, part: str, x: str, outputs: int) -> str:
    """The projection `part` of a layer, with its bias where the model has one."""
    name = f"layers.{layer}.{part}"
    weights = [b.weight(f"{name}.weight", outputs, b.width(x))]
    if part in config.biases:
        weights.append(b.weight(f"{name}.bias", outputs))
    return b.op("linear", name, (x,), tuple(weights))


def attention(
    b: Builder, config: ModelConfig, layer: int, x: str, query_key_norms: bool = False
) -> str:
    """Grouped-query attention of the normalised `x`, through the output projection."""
    head_dim, heads, kv_heads = config.head_dim, config.heads, config.kv_heads
    query = linear(b, config, layer, "query", x, heads * head_dim)
    key = linear(b, config, layer, "key", x, kv_heads * head_dim)
    value = linear(b, config, layer, "value", x, kv_heads * head_dim)
    if query_key_norms:
        query = norm(b, config, f"layers.{layer}.query_norm", query, head_dim)
        key = norm(b, config, f"layers.{layer}.key_norm", key, head_dim)
    frequencies = config.frequencies[layer]
    rotated_query, rotated_key = (
        b.op(
            "rope",
            f"layers.{layer}.rotated_{part}",
            (source,),
            (),
            head_dim=head_dim,
            frequencies=frequencies,
        )
        for part, source in (("query", query), ("key", key))
    )
    mixed = b.op(
        "attend",
        f"layers.{layer}.attention",
        (rotated_query, rotated_key, value),
        layer=layer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=config.attention_scale,
        window=config.windows[layer],
    )
    return linear(b, config, layer, "output", mixed, config.hidden_size)


def gated_mlp(b: Builder, config: ModelConfig, layer: int, x: str, kind: str = "swiglu") -> str:
    """down(activation(gate(x)) * up(x)); `kind` is swiglu or geglu."""
    gate = linear(b, config, layer, "gate", x, config.intermediate_size)
    up = linear(b, config, layer, "up", x, config.intermediate_size)
    activated = b.op(kind, f"layers.{layer}.activated", (gate, up))
    return linear(b, config, layer, "down", activated, config.hidden_size)


def logits(b: Builder, config: ModelConfig, x: str) -> Program:
    """The wanted rows' normalised residual times the head; finishes the Program."""
    wanted = b.op("rows", "wanted", (x,))
    normed = norm(b, config, "output_norm", wanted)
    name = "embedding.weight" if config.tied else "head.weight"
    head = b.weight(name, config.vocabulary_size, config.hidden_size)
    return b.finish(b.op("logits", "logits", (normed,), (head,)))


def pre_norm_decoder(config: ModelConfig, query_key_norms: bool = False) -> Program:
    """The Program of Llama's layout: each half of a layer normalises, computes and is added."""
    b = Builder()
    x = embedding(b, config)
    for layer in range(config.layers):
        normed = norm(b, config, f"layers.{layer}.attention_norm", x)
        half = attention(b, config, layer, normed, query_key_norms)
        x = b.op("add", f"layers.{layer}.attention_residual", (x, half))
        normed = norm(b, config, f"layers.{layer}.mlp_norm", x)
        half = gated_mlp(b, config, layer, normed)
        x = b.op("add", f"layers.{layer}.mlp_residual", (x, half))
    return logits(b, config, x)
