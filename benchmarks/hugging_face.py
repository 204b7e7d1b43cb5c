"""Write a llama model from a GGUF file as Hugging Face lays it out, in BF16: what vLLM opens.

Its tokenizer stands beside it, for the server.

For speed only: a BF16 copy of rounded weights is no better than they are.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file

from farthing.files.checkpoint import open_checkpoint
from farthing.text.export import export_tokenizer

OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_checkpoint(source: Path, target: Path) -> None:
    """Write config.json, model.safetensors in BF16, tokenizer.json and tokenizer_config.json."""
    reader = gguf.GGUFReader(source)

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = field("attention.head_count")
    heads_of = {"attn_q": heads, "attn_k": field("attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        part = tensor.name.split(".")[-2]
        values = dequantize(tensor.data, tensor.tensor_type)
        if part in heads_of:
            # GGUF pairs neighbouring rows for the rotation, Hugging Face the halves of a head.
            pairs = values.reshape(heads_of[part], -1, 2, values.shape[-1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        stored = torch.from_numpy(np.array(values)).to(torch.bfloat16)
        tensors[hugging_face_name(tensor.name)] = stored
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": field("vocab_size"),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads_of["attn_k"],
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
    }
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    with open_checkpoint(source) as checkpoint:
        export_tokenizer(checkpoint, partial, config["max_position_embeddings"])
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def hugging_face_name(name: str) -> str:
    """A llama tensor's name in a Hugging Face checkpoint, from its name in a GGUF file."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{IN_A_LAYER[part]}.{kind}"
