"""Tiny random models of every family, as Hugging Face transformers folders and as GGUF files.

`build` writes one, with a byte-level tokenizer, so that a whole engine can load it. The GGUF form
is made from the transformers model the way llama.cpp's converter does it: tensors are named by the
gguf package's own table, query and key rows of the llama architecture are interleaved, Gemma's
gains are stored with their 1 added, Llama 3's rope scaling becomes a tensor.
"""

from __future__ import annotations

import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|reserved_0|>", "<|reserved_1|>")
# Ids: the 256 bytes, the one merged token, the specials.
MERGE = ("\u0120", "t")
BOS, EOS = 257, 259
VOCABULARY = 257 + len(SPECIALS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": BOS,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 100_000.0}

# Family: transformers' class prefix, GGUF's architecture, and how it differs from _COMMON.
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        "llama",
        {"num_key_value_heads": 4, "rope_parameters": _DEFAULT_ROPE},
    ),
    "llama3": (
        "Llama",
        "llama",
        {
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "rope_parameters": _LLAMA3_ROPE,
            "tie_word_embeddings": True,
            "num_hidden_layers": 3,
        },
    ),
    "llama_bias": (
        "Llama",
        "llama",
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (
        "Mistral",
        "llama",
        {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 8},
    ),
    "qwen2": (
        "Qwen2",
        "qwen2",
        {"num_key_value_heads": 2, "tie_word_embeddings": True, "intermediate_size": 160},
    ),
    "qwen3": ("Qwen3", "qwen3", {"num_key_value_heads": 2, "head_dim": 64}),
    "gemma3": (
        "Gemma3",
        "gemma3",
        {
            "num_key_value_heads": 2,
            "num_hidden_layers": 7,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "rope_parameters": _GEMMA3_ROPE,
        },
    ),
}
FAMILIES = tuple(_FAMILIES)


def reference(family: str) -> PreTrainedModel:
    """The family's model in transformers: float32, the same weights at every call."""
    import transformers

    prefix, _, changes = _FAMILIES[family]
    config_class = "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config"
    config = getattr(transformers, config_class)(
        **{**_COMMON, **changes}, attn_implementation="eager"
    )
    model: PreTrainedModel = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(FAMILIES.index(family) + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_weights(name, noise, prefix))
    return model


def build(family: str, folder: Path, form: str = "gguf", quant: str = "F32") -> Path:
    """Writes the family's model into `folder`; gives the GGUF file's path, or the folder's.

    `form` is gguf or safetensors. `quant` is the format of all matrices: F32, F16 or BF16, and
    for GGUF also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if form == "safetensors":
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[quant]
        reference(family).to(dtype).save_pretrained(folder)
        _save_tokenizer(folder)
        return folder
    if form != "gguf":
        raise ValueError(f"form must be gguf or safetensors, not {form}")
    path = folder / f"{family}.{quant}.gguf"
    writer = gguf.GGUFWriter(path, _FAMILIES[family][1])
    model = reference(family)
    _add_hyperparameters(writer, family, model.config)
    _add_tokenizer(writer)
    _add_tensors(writer, family, model, gguf.GGMLQuantizationType[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_BUILT = tempfile.TemporaryDirectory(prefix="farthing-tiny-")


@cache
def shared(family: str, form: str = "gguf", quant: str = "F32") -> Path:
    """What `build` writes, made once in this process and deleted when it ends: change nothing."""
    return build(family, Path(_BUILT.name) / f"{family}.{form}.{quant}", form, quant)


def token_ids(length: int, seed: int = 0) -> list[int]:
    """Random ids of the byte tokens."""
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def _weights(name: str, noise: torch.Tensor, prefix: str) -> torch.Tensor:
    """Weights that make attention uneven, and gains and biases that matter."""
    if name.endswith("norm.weight"):
        return 0.2 * noise + (0.0 if prefix == "Gemma3" else 1.0)
    if name.endswith("bias"):
        return 0.5 * noise
    if "embed_tokens" in name:
        return noise / (math.sqrt(noise.shape[1]) if prefix == "Gemma3" else 3.0)
    sharp = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
    return noise * sharp / math.sqrt(noise.shape[1])


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return [chr(byte if byte in kept else 256 + moved.index(byte)) for byte in range(256)]


def _save_tokenizer(folder: Path) -> None:
    tokens = [*_byte_characters(), "".join(MERGE)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[MERGE]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*_byte_characters(), "".join(MERGE), *SPECIALS])
    writer.add_token_merges([" ".join(MERGE)])
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * len(SPECIALS)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_hyperparameters(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    writer.add_name(f"tiny {family}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = _head_dim(config)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if family != "gemma3":
        writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def _head_dim(config: Any) -> int:
    head_dim = getattr(config, "head_dim", None)
    return int(head_dim or config.hidden_size // config.num_attention_heads)


def _add_tensors(
    writer: gguf.GGUFWriter,
    family: str,
    model: PreTrainedModel,
    matrix_type: gguf.GGMLQuantizationType,
) -> None:
    config: Any = model.config
    architecture = _FAMILIES[family][1]
    number = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    # Named parameters, unlike the state, list a tied head once: as the embedding.
    for hf_name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if architecture == "llama" and "q_proj" in hf_name:
            values = _interleaved(values, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in hf_name:
            values = _interleaved(values, config.num_key_value_heads)
        if architecture == "gemma3" and hf_name.endswith("norm.weight"):
            values = values + np.float32(1)
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert name is not None, hf_name
        if values.ndim == 2:
            writer.add_tensor(name, quantize(values, matrix_type), raw_dtype=matrix_type)
        else:
            writer.add_tensor(name, values)
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of dimension pairs (i, i + head_dim/2) made adjacent, as llama.cpp's converter does."""
    pairs = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _rope_factors(config: Any) -> np.ndarray:
    """What the converter makes of Llama 3's scaling: a divisor for each frequency."""
    rope, head_dim = config.rope_parameters, _head_dim(config)
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)
