from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config, Qwen3Config, Qwen3ForCausalLM

import tiny
from farthing.backends.torch import TorchBackend
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import Model, load_model

TOKENS = tiny.token_ids(48)


def load(path: Path) -> Model:
    return load_model(open_checkpoint(path))


def logits(path: Path, tokens: list[int] = TOKENS) -> np.ndarray:
    return TorchBackend(load(path)).forward(tokens).detach().numpy()


def transformers_logits(model: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_position_agrees_with_transformers(family: str, form: str) -> None:
    wanted = transformers_logits(tiny.reference(family))
    np.testing.assert_allclose(logits(tiny.shared(family, form)), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("quant", ["F16", "BF16"])
@pytest.mark.parametrize("family", ["llama_bias", "gemma3"])
def test_a_folder_of_16_bit_floats_is_computed_from_those_in_float32(
    family: str, quant: str
) -> None:
    folder = tiny.shared(family, "safetensors", quant)
    wanted = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    np.testing.assert_allclose(
        logits(folder), transformers_logits(wanted.eval()), rtol=0, atol=1e-4
    )


def test_every_gguf_agrees_with_the_logits_that_llama_cpp_computed(
    tiny_models: dict[str, Path], peer_logits: dict[str, Any]
) -> None:
    # The peer read the files by itself, so that a permuted query cannot confirm itself here.
    assert set(tiny_models) == set(peer_logits)
    for name, path in tiny_models.items():
        peer = peer_logits[name]
        ours = logits(path, peer.tokens)
        error = np.linalg.norm(ours - peer.logits) / np.linalg.norm(peer.logits)
        assert error < 1e-4, name


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_window_hides_what_lies_before_it(family: str) -> None:
    model = load(tiny.shared(family))
    windows = model.config.windows
    assert windows == tuple(layer.window for layer in model.program.cache)
    assert windows == ((8, 8) if family == "mistral" else (8, 8, 8, 8, 8, 0, 8))
    # Two layers of 8 reach 14 positions back, and no further.
    ours = logits(tiny.shared("mistral"))
    changed = logits(tiny.shared("mistral"), [5, *TOKENS[1:]])
    assert np.abs(ours - changed)[:15].max(1).min() > 0
    np.testing.assert_array_equal(ours[15:], changed[15:])


def edited(folder: Path, family: str, **changes: Any) -> Path:
    """The family's folder with other fields in its config.json; None removes one."""
    tiny.build(family, folder, "safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        config[name] = value
        if value is None:
            del config[name]
    path.write_text(json.dumps(config))
    return folder


def test_gemmas_query_scalar_is_not_its_head_dimension(tmp_path: Path) -> None:
    folder = edited(tmp_path, "gemma3", query_pre_attn_scalar=50)
    wanted = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ours = logits(folder)
    np.testing.assert_allclose(ours, transformers_logits(wanted), rtol=0, atol=1e-4)
    assert np.abs(ours - logits(tiny.shared("gemma3"))).max() > 1e-2


def test_gemma_understands_the_older_spelling_of_its_config(tmp_path: Path) -> None:
    folder = edited(
        tmp_path,
        "gemma3",
        rope_parameters=None,
        layer_types=None,
        rope_theta=1e6,
        rope_local_base_freq=10_000.0,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        sliding_window_pattern=6,
    )
    np.testing.assert_array_equal(logits(folder), logits(tiny.shared("gemma3", "safetensors")))


def test_gemma_for_text_and_images_is_read_for_its_text(tmp_path: Path) -> None:
    folder = edited(tmp_path, "gemma3")
    text = json.loads((folder / "config.json").read_text())
    config = Gemma3Config(text_config=text).to_dict()
    config["text_config"] = text
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
    }
    vision = {"model.vision_tower.encoder.layers.0.weight": np.zeros(3, np.float32)}
    save_file({**renamed, **vision}, folder / "model.safetensors")
    assert load(folder).unused == tuple(vision)
    np.testing.assert_array_equal(logits(folder), logits(tiny.shared("gemma3", "safetensors")))


def test_qwen2_windows_start_at_the_layer_that_its_config_names(tmp_path: Path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    folder = edited(tmp_path, "qwen2", layer_types=None, **changes)
    assert load(folder).config.windows == (0, 4)
    wanted = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    np.testing.assert_allclose(logits(folder), transformers_logits(wanted), rtol=0, atol=1e-4)


def test_a_gguf_has_the_biases_that_it_holds() -> None:
    assert load(tiny.shared("llama")).config.biases == frozenset()
    biases = load(tiny.shared("llama_bias")).config.biases
    assert biases == {"query", "key", "value", "output", "gate", "up", "down"}


def test_qwen3_has_attention_biases_where_its_config_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        attention_bias=True,
    )
    model = Qwen3ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    tokens = [token % 64 for token in TOKENS]
    np.testing.assert_allclose(
        logits(tmp_path, tokens), transformers_logits(model, tokens), rtol=0, atol=1e-4
    )
