"""Tiny random GGUF models of every family, the same bytes on every machine.

    python make_tiny_models.py FOLDER      writes FOLDER/<name>.gguf and prints their SHA-256

The weights are multiples of a power of two taken from the raw bits of PCG64, so no library's idea
of a normal distribution can change them. They mean whatever the peer makes of them: `logits.npz`
beside this file holds its answer.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

HIDDEN = 64
FEED_FORWARD = 96


@dataclass(frozen=True)
class TinyModel:
    """One model's shape, in the words of the GGUF keys it is written with."""

    name: str
    architecture: str
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocabulary: int = 272
    tokenizer_pre: str | None = None
    """None: a SentencePiece vocabulary; else byte-level BPE with this pre-tokeniser."""
    rope_base: float = 10000.0
    rope_scaling: tuple[str, float] | None = None
    rope_factors: bool = False
    tied_head: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    window: int | None = None


# 277 tokens are no multiple of 16; gemma3's windows are shorter than the 40 tokens fed to them.
TINY_MODELS = (
    TinyModel("llama_gqa", "llama", tokenizer_pre="smollm", tied_head=False),
    TinyModel("llama_mqa", "llama", kv_heads=1, tokenizer_pre="llama-bpe", rope_base=100000.0),
    TinyModel("llama_mha", "llama", kv_heads=4, vocabulary=277, tied_head=False),
    TinyModel(
        "llama_rope_factors", "llama", tokenizer_pre="llama-bpe", rope_base=500000.0,
        rope_factors=True,
    ),
    TinyModel("qwen2", "qwen2", tokenizer_pre="qwen2", rope_base=1000000.0, qkv_bias=True),
    TinyModel("qwen3", "qwen3", head_dim=32, tokenizer_pre="qwen2", rope_base=1e6, qk_norm=True),
    TinyModel(
        "gemma3", "gemma3", layers=7, kv_heads=1, head_dim=32, rope_base=1e6, qk_norm=True,
        post_norms=True, window=12,
    ),
    TinyModel(
        "gemma3_linear_rope", "gemma3", layers=7, head_dim=32, rope_base=1e6, qk_norm=True,
        post_norms=True, window=16, rope_scaling=("linear", 8.0),
    ),
)  # fmt: skip


class _Weights:
    """Uniform float32 values with an exact, library-independent definition."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> np.ndarray:
        """Multiples of 2^-20 in [-1, 1), float32."""
        raw = self._bits.random_raw(math.prod(shape)) >> np.uint64(43)
        return (raw.astype(np.float32) / np.float32(2**20) - np.float32(1.0)).reshape(shape)

    def projection(self, outputs: int, inputs: int, gain: float = 1.0) -> np.ndarray:
        """Outputs of about unit variance for inputs of unit variance, times gain."""
        return self.uniform(outputs, inputs) * np.float32(gain * math.sqrt(3.0 / inputs))

    def norm(self, size: int) -> np.ndarray:
        return self.uniform(size) * np.float32(0.25) + np.float32(1.0)


def rope_factors(model: TinyModel) -> np.ndarray:
    """Llama 3.1's frequency factors (factor 8, low 1, high 4, original context 8,192)."""
    exponents = np.arange(0, model.head_dim, 2, dtype=np.float64) / model.head_dim
    wavelengths = 2 * np.pi * model.rope_base**exponents
    smooth = np.clip((8192 / wavelengths - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / 8.0 + smooth)).astype(np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    special = ["<unk>", "<s>", "</s>"]
    if model.tokenizer_pre is None:
        pieces = [f"<0x{byte:02X}>" for byte in range(256)]
        types = [gguf.TokenType.BYTE] * 256
    else:
        # GPT-2's printable stand-ins for the 256 bytes.
        kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        moved = [byte for byte in range(256) if byte not in kept]
        pieces = [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(moved))]
        types = [gguf.TokenType.NORMAL] * 256
    space = "\u2581" if model.tokenizer_pre is None else "\u0120"
    merged = [f"{space}t", "th", f"{space}th", "he", "in", "er", "an", "on", "re", "at", "en", "is"]
    merged += [left + right for left in "aeiou" for right in "bcdf"]
    merged = merged[: model.vocabulary - 259]
    tokens = special + pieces + merged
    types = [gguf.TokenType.CONTROL] * 3 + types + [gguf.TokenType.NORMAL] * len(merged)
    assert len(tokens) == len(types) == model.vocabulary

    writer.add_tokenizer_model("llama" if model.tokenizer_pre is None else "gpt2")
    writer.add_tokenizer_pre(model.tokenizer_pre or "default")
    writer.add_token_list(tokens)
    if model.tokenizer_pre is None:
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([int(kind) for kind in types])
    if model.tokenizer_pre is not None:
        writer.add_token_merges([f"{piece[:-1]} {piece[-1]}" for piece in merged])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(model.architecture in ("llama", "gemma3"))


def _add_hyperparameters(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_name(f"farthing test {model.name}")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_rope_dimension_count(model.head_dim)
    if model.rope_scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(model.rope_scaling[0]))
        writer.add_rope_scaling_factor(model.rope_scaling[1])
    if model.window is not None:
        writer.add_sliding_window(model.window)
    writer.add_vocab_size(model.vocabulary)


def _add_tensors(writer: gguf.GGUFWriter, model: TinyModel, weights: _Weights) -> None:
    queries = model.heads * model.head_dim
    keys = model.kv_heads * model.head_dim

    # Gemma scales its embeddings by sqrt(hidden) when it reads them.
    embedding_gain = HIDDEN**-0.5 if model.architecture == "gemma3" else 1.0
    embedding = weights.uniform(model.vocabulary, HIDDEN) * np.float32(embedding_gain)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", weights.norm(HIDDEN))
    if not model.tied_head:
        writer.add_tensor("output.weight", weights.projection(model.vocabulary, HIDDEN))
    if model.rope_factors:
        writer.add_tensor("rope_freqs.weight", rope_factors(model))

    for layer in range(model.layers):

        def add(name: str, values: np.ndarray, layer: int = layer) -> None:
            writer.add_tensor(f"blk.{layer}.{name}", values)

        add("attn_norm.weight", weights.norm(HIDDEN))
        # A gain above one makes attention look at some positions much more than at others.
        add("attn_q.weight", weights.projection(queries, HIDDEN, gain=1.5))
        add("attn_k.weight", weights.projection(keys, HIDDEN, gain=1.5))
        add("attn_v.weight", weights.projection(keys, HIDDEN))
        if model.qkv_bias:
            add("attn_q.bias", weights.uniform(queries))
            add("attn_k.bias", weights.uniform(keys))
            add("attn_v.bias", weights.uniform(keys))
        if model.qk_norm:
            add("attn_q_norm.weight", weights.norm(model.head_dim))
            add("attn_k_norm.weight", weights.norm(model.head_dim))
        add("attn_output.weight", weights.projection(HIDDEN, queries))
        add("ffn_norm.weight", weights.norm(HIDDEN))
        add("ffn_gate.weight", weights.projection(FEED_FORWARD, HIDDEN))
        add("ffn_up.weight", weights.projection(FEED_FORWARD, HIDDEN))
        add("ffn_down.weight", weights.projection(HIDDEN, FEED_FORWARD))
        if model.post_norms:
            add("post_attention_norm.weight", weights.norm(HIDDEN))
            add("post_ffw_norm.weight", weights.norm(HIDDEN))


def write_tiny_model(model: TinyModel, folder: Path) -> Path:
    """Write one model to folder/<name>.gguf; its weights depend on its place in TINY_MODELS."""
    path = folder / f"{model.name}.gguf"
    writer = gguf.GGUFWriter(path, model.architecture)
    _add_hyperparameters(writer, model)
    _add_tokenizer(writer, model)
    _add_tensors(writer, model, _Weights(seed=1 + TINY_MODELS.index(model)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_models(folder: Path) -> dict[str, Path]:
    """Write all models into folder: name -> path."""
    return {model.name: write_tiny_model(model, folder) for model in TINY_MODELS}


if __name__ == "__main__":
    for path in write_tiny_models(Path(sys.argv[1])).values():
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
