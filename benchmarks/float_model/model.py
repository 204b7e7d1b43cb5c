"""The float model as a folder of safetensors: Llama's architecture, a byte-level BPE vocabulary."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 3072
CONTEXT = 512
LAYERS = 5
HIDDEN = 256
INTERMEDIATE = 512
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE over `texts`; token 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def initial_weights(seed: int) -> dict[str, NDArray[np.float32]]:
    """Tensors under the names of their file: normal with standard deviation 0.02, gains 1.

    What is added to the residual stream begins smaller, by the square root of how often something
    is added (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").
    """
    generator = np.random.default_rng(seed)

    def normal(outputs: int, inputs: int, scale: float = 1.0) -> NDArray[np.float32]:
        drawn = generator.standard_normal((outputs, inputs), dtype=np.float32)
        return drawn * np.float32(0.02 * scale)

    residual = 1 / math.sqrt(2 * LAYERS)
    ones = np.ones(HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "model.norm.weight": ones}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        weights |= {
            f"{prefix}.input_layernorm.weight": ones,
            f"{prefix}.post_attention_layernorm.weight": ones,
            f"{attention}.q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM, residual),
            f"{mlp}.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{mlp}.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{mlp}.down_proj.weight": normal(HIDDEN, INTERMEDIATE, residual),
        }
    return weights


def write_folder(
    folder: Path, tokenizer: Tokenizer, weights: Mapping[str, NDArray[np.floating]]
) -> None:
    """A model folder as Hugging Face lays it out."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(iter(weights.values())).dtype.name
    config = {**CONFIG, "torch_dtype": dtype}
    end = {"eos_token": END_OF_TEXT}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(end) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    stored = folder / "model.safetensors"
    save_file(dict(weights), stored, metadata={"format": "pt"})
    stored.chmod(0o644)  # the library writes a file for its owner alone
