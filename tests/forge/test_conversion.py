"""A folder of safetensors becomes the GGUF file that llama.cpp's own converter would make of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from data.forge.record_conversion import TOKENS, digest, write_float, write_model
from data.forge.record_peer import WINDOW_TOKENS, WINDOWS
from farthing import Engine, SamplingParams
from farthing.core import ActivationMode, FarthingError, FileFormatError, KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf import GGUFFile
from farthing.forge.methods import Method
from farthing.forge.patterns import parse_rule
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.models.load import load_model
from farthing.quality.measure import measure_alone
from farthing.quality.subject import Settings
from farthing.quant.formats import decode
from forge.calibrated import TEXT
from native_steps import logits_of, model_at, native

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.forge.report import QuantizeReport

DATA = Path(__file__).parents[1] / "data" / "forge"
PEER = json.loads((DATA / "conversion.json").read_text(encoding="utf-8"))
IDS = tiny.token_ids(40)
EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}
SCHEMES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_NL")


def made(source: Path, out: Path, wish: Wish, **settings: Any) -> QuantizeReport:
    with open_checkpoint(source) as checkpoint:
        return quantize(checkpoint, out, wish, **settings)


def changed(folder: Path, family: str, file: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a tiny model's folder with one of its JSON files changed."""
    source = shutil.copytree(tiny.shared(family, "safetensors"), folder)
    content = json.loads((source / file).read_text(encoding="utf-8"))
    (source / file).write_text(json.dumps(change(content)), encoding="utf-8")
    return source


def configured(folder: Path, family: str, **changes: object) -> Path:
    return changed(folder, family, "config.json", lambda config: {**config, **changes})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_file_computes_what_the_folder_computes_in_the_same_formats(
    family: str, scheme: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, "safetensors", "BF16")
    file = made(source, tmp_path / "out.gguf", Wish(scheme))
    folder = made(source, tmp_path / "out", Wish(scheme))
    assert (file.container, folder.container) == ("gguf", "safetensors")
    assert file.matrices.keys() == folder.matrices.keys()
    for settings in (EXACT, {}):
        found = logits_of(native(model_at(file.path), **settings), IDS)
        wanted = logits_of(native(model_at(folder.path), **settings), IDS)
        if family == "llama3":
            # The divisors of its frequencies have 32 bits in a GGUF.
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())
        else:
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_tensors_and_settings_are_those_of_a_file_made_by_the_gguf_packages_names(
    family: str, tmp_path: Path
) -> None:
    """tests/tiny.py follows llama.cpp's converter, and shares no code with this one."""
    found = gguf.GGUFReader(
        made(tiny.shared(family, "safetensors"), tmp_path / "out.gguf", Wish("F32")).path
    )
    wanted = gguf.GGUFReader(tiny.shared(family, "gguf"))
    tensors = {tensor.name: tensor for tensor in found.tensors}
    assert tensors.keys() == {tensor.name for tensor in wanted.tensors}
    for theirs in wanted.tensors:
        ours = tensors[theirs.name]
        assert ours.tensor_type == theirs.tensor_type
        assert ours.shape.tolist() == theirs.shape.tolist()
        if theirs.name == "rope_freqs.weight":
            np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-6)
        else:
            np.testing.assert_array_equal(ours.data, theirs.data)
    for key, field in wanted.fields.items():
        if key.startswith("GGUF.") or key == "general.name":
            continue
        assert found.fields[key].contents() == field.contents(), key
    # What is there besides must be readable, too.
    assert all(field.contents() is not None for field in found.fields.values())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_llama_cpp_computes_from_the_file_what_farthing_does(family: str, tmp_path: Path) -> None:
    path = write_model(family, tmp_path)
    assert PEER["tokens"] == TOKENS
    assert digest(path) == PEER["tensors"][family], "record the peer's answers again"
    with np.load(DATA / "conversion.npz") as answers:
        peer = answers[family]
    # In a GGUF of mistral's, llama.cpp knows no window, which has 8 tokens here.
    seen = 8 if family == "mistral" else len(TOKENS)
    found = logits_of(native(model_at(path), **EXACT), TOKENS)
    difference = np.abs(found[:seen] - peer[:seen]).max()
    assert difference < 2e-5 * np.abs(peer).max()
    assert (seen == len(TOKENS)) == (np.abs(found - peer).max() < 1e-2)


def test_a_trained_models_file_has_the_perplexity_that_the_peer_finds(tmp_path: Path) -> None:
    """Its tokens, too, are those of the peer's tokenizer, or this could not be."""
    measured = measure_alone(
        write_float(tmp_path),
        tokens=WINDOWS * (WINDOW_TOKENS // 2 - 1),
        window=WINDOW_TOKENS,
        settings=Settings(KVDtype.FP16),
    )
    assert measured.perplexity.value == pytest.approx(PEER["perplexity"], rel=2e-3)


def test_a_window_that_llama_cpp_does_not_know_is_told(tmp_path: Path) -> None:
    for family, told in (("mistral", True), ("llama", False), ("gemma3", False)):
        report = made(tiny.shared(family, "safetensors"), tmp_path / f"{family}.gguf", Wish("F16"))
        assert any("attend to all tokens" in remark for remark in report.remarks) == told


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_is_kept_stays_in_its_bits_and_vectors_become_float32(
    family: str, tmp_path: Path
) -> None:
    source = tiny.shared(family, "safetensors", "BF16")
    rules = (parse_rule("layers=keep"),)
    found = GGUFFile(made(source, tmp_path / "out.gguf", Wish("Q8_0", rules)).path)
    ours, theirs = load_model(found), model_at(source)
    for name, tensor in theirs.tensors.items():
        if len(tensor.shape) == 1:
            assert found.tensors[ours.stored[name].name].format == "F32"
            np.testing.assert_array_equal(decode(ours.tensors[name]), decode(tensor))
        elif name.startswith("layers."):
            assert ours.formats[name] == "BF16"
            np.testing.assert_array_equal(ours.tensors[name].data, tensor.data)
        else:
            assert ours.formats[name] == "Q8_0"


@pytest.mark.parametrize("methods", [(Method.ROTATE,), (Method.GPTQ,), (Method.AWQ,)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_methods_do_to_a_file_what_they_do_to_a_folder(
    family: str, methods: tuple[Method, ...], tmp_path: Path
) -> None:
    """A rotated qwen2, whose head is its embedding, gets a head of its own."""
    source = tiny.shared(family, "safetensors")
    calibration = None if methods == (Method.ROTATE,) else TEXT
    wish = Wish("Q4_0", methods=methods, calibration=calibration)
    file, folder = made(source, tmp_path / "a.gguf", wish), made(source, tmp_path / "a", wish)
    assert file.bits_per_weight == folder.bits_per_weight
    np.testing.assert_array_equal(
        logits_of(native(model_at(file.path), **EXACT), IDS),
        logits_of(native(model_at(folder.path), **EXACT), IDS),
    )


def test_tokenizer_template_and_answers_come_along(tmp_path: Path) -> None:
    source = tiny.shared("qwen3", "safetensors")
    out = made(source, tmp_path / "named.gguf", Wish("F16")).path
    sampling = SamplingParams(max_tokens=8)
    chat = [{"role": "user", "content": "What is it? é <|im_end|>"}]
    with Engine.load(source) as before, Engine.load(out) as after:
        assert before.chat_template is not None
        assert after.chat_template is not None
        assert after.chat_template.encode(chat) == before.chat_template.encode(chat)
        assert after.tokenizer.eos_ids == before.tokenizer.eos_ids
        assert len(after.generate("What is it?", sampling).token_ids) == 8
        assert after.report is not None
        assert after.report.model == source.name


def test_a_model_that_also_sees_leaves_what_is_no_text_behind(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("gemma3", "safetensors"), tmp_path / "source")
    plain = load_file(source / "model.safetensors")
    tensors = {f"language_model.{name}": tensor for name, tensor in plain.items()}
    tensors["vision_tower.weight"] = plain["model.norm.weight"].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    found = GGUFFile(made(source, tmp_path / "out.gguf", Wish("F32")).path)
    wanted = GGUFFile(tiny.shared("gemma3"))
    assert found.tensors.keys() == wanted.tensors.keys()


def test_a_licence_that_the_file_has_no_place_for_is_told(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "source")
    (source / "LICENSE.txt").write_text("free")
    report = made(source, tmp_path / "out.gguf", Wish("F16"))
    assert any("LICENSE.txt" in remark for remark in report.remarks)


def test_rows_beyond_the_tokenizer_become_unused_tokens(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "source")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:3]
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    metadata = GGUFFile(made(source, tmp_path / "out.gguf", Wish("F16")).path).metadata
    texts: Any = metadata["tokenizer.ggml.tokens"]
    types: Any = metadata["tokenizer.ggml.token_type"]
    assert len(texts) == len(types) == tiny.VOCABULARY
    assert texts[-2:] == ["[PAD260]", "[PAD261]"]
    assert types[-3:].tolist() == [3, 5, 5]


# --- refusals, which leave nothing


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma3", {"query_pre_attn_scalar": 7}, "attention scale"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}
            | {"max_window_layers": 1},
            "its windows",
        ),
        ("gemma3", {"layer_types": ["full_attention"] + ["sliding_attention"] * 6}, "its windows"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "the rotary frequencies",
        ),
    ],
)
def test_settings_that_gguf_has_no_way_to_say_are_refused(
    family: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    source = configured(tmp_path / "source", family, **changes)
    with pytest.raises(FarthingError, match=f"no way to say .*{message}.*write a folder instead"):
        made(source, tmp_path / "out.gguf", Wish("F16"))
    assert [file.name for file in tmp_path.iterdir()] == ["source"]
    assert made(source, tmp_path / "out", Wish("F16")).container == "safetensors"


def test_an_output_bias_that_llama_cpp_does_not_load_is_refused(tmp_path: Path) -> None:
    source = configured(tmp_path / "source", "qwen3", attention_bias=True)
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if "self_attn" in name and "proj.weight" in name]:
        tensors[name.replace("weight", "bias")] = tensors[name][:, 0].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(FarthingError, match="bias of qwen3's output"):
        made(source, tmp_path / "out.gguf", Wish("F16"))


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}']
)
def test_a_damaged_tokenizer_is_one_clear_error_that_leaves_nothing(
    broken: str, tmp_path: Path
) -> None:
    source = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "source")
    (source / "tokenizer.json").write_text(broken)
    with pytest.raises(FileFormatError, match=r"tokenizer.json cannot be used"):
        made(source, tmp_path / "out.gguf", Wish("F16"))
    assert [file.name for file in tmp_path.iterdir()] == ["source"]
    (source / "tokenizer.json").unlink()
    with pytest.raises(FileFormatError, match="has no tokenizer.json: fetch it too"):
        made(source, tmp_path / "out.gguf", Wish("F16"))


def test_a_template_that_is_not_valid_unicode_is_one_clear_error(tmp_path: Path) -> None:
    source = changed(
        tmp_path / "source",
        "llama",
        "tokenizer_config.json",
        lambda settings: {**settings, "chat_template": "\ud800"},
    )
    with pytest.raises(FileFormatError, match="not valid Unicode: rename"):
        made(source, tmp_path / "out.gguf", Wish("F16"))
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_a_draft_with_a_head_over_some_tokens_is_refused(tmp_path: Path) -> None:
    source = configured(tmp_path / "source", "llama")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:5].clone()
    tensors["lm_head.weight.token_ids"] = torch.arange(5, dtype=torch.int32)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(FarthingError, match="a head over some of the tokens"):
        made(source, tmp_path / "out.gguf", Wish("F16"))
