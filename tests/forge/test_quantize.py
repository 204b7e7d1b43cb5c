"""Quantising whole models: what is written runs, and is exactly what the scheme defines."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import transformers
from gguf.quants import quantize as gguf_quantize
from safetensors.torch import load_file, save_file

import tiny
from farthing import Engine, SamplingParams
from farthing.backends.torch import TorchBackend
from farthing.core import ActivationMode, FarthingError, KVDtype, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.formats import FALLBACKS
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SafetensorsFolder
from farthing.forge.container import FILE_TYPES
from farthing.forge.patterns import parse_rule
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.quant.formats import WRITABLE_FORMATS, bits_per_weight, decode, encode
from native_steps import logits_of, model_at, native, relative_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from farthing.forge.report import QuantizeReport

GGUF_SCHEMES = list(FILE_TYPES)
PACKAGE_SCHEMES = [name for name in GGUF_SCHEMES if not name.endswith("_K") and name != "IQ4_NL"]
"""Those that the gguf package can quantise to."""
OWN_SCHEMES = [name for name in WRITABLE_FORMATS if name not in GGUF_SCHEMES]
IDS = tiny.token_ids(40)
EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}


def quantized(source: Path, folder: Path, scheme: str, **settings: Any) -> Path:
    """Quantises into a file or folder of the fitting name, and gives its path."""
    return reported(source, folder, scheme, **settings).path


def reported(
    source: Path, folder: Path, scheme: str, keep: Sequence[str] = (), **settings: Any
) -> QuantizeReport:
    suffix = ".gguf" if source.suffix == ".gguf" and scheme in GGUF_SCHEMES else ""
    wish = Wish(scheme, tuple(map(parse_rule, keep)))
    with open_checkpoint(source) as checkpoint:
        return quantize(checkpoint, folder / f"{scheme}{suffix}", wish, **settings)


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("scheme", WRITABLE_FORMATS)
def test_every_scheme_runs_natively_as_the_oracle_runs_its_decoded_weights(
    scheme: str, form: str, tmp_path: Path
) -> None:
    # qwen2's rows of 64 and 160 are shorter than a group of 128, and no multiple of it.
    out = quantized(tiny.shared("qwen2", form), tmp_path, scheme)
    model = model_at(out)
    matrices = [name for name, weight in model.program.weights.items() if len(weight.shape) == 2]
    # Nor whole blocks of a K-quant.
    assert {model.formats[name] for name in matrices} == {FALLBACKS.get(scheme, scheme)}
    oracle = TorchBackend(model).forward(IDS).detach().numpy()
    assert relative_error(logits_of(native(model, **EXACT), IDS), oracle) < 1e-5
    # In the modes that are the default, too, it runs.
    assert np.isfinite(logits_of(native(model), IDS)).all()


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("scheme", ["Q4_0", "BF16", "INT8_TENSOR", "INT4_G32_ASYM", "NF4_B64"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_matrix_is_the_encoding_of_the_sources_and_every_vector_is_the_sources(
    family: str, scheme: str, form: str, tmp_path: Path
) -> None:
    source = open_checkpoint(tiny.shared(family, form))
    found = open_checkpoint(quantized(tiny.shared(family, form), tmp_path, scheme))
    assert found.tensors.keys() == source.tensors.keys()
    for name, tensor in source.tensors.items():
        matrix = len(tensor.shape) == 2
        wanted = encode(decode(tensor), scheme) if matrix else tensor.data
        assert found.tensors[name].format == (scheme if matrix else "F32")
        assert found.tensors[name].shape == tensor.shape
        np.testing.assert_array_equal(found.tensors[name].data, wanted)


@pytest.mark.parametrize("scheme", PACKAGE_SCHEMES)
def test_a_gguf_is_what_the_gguf_package_makes_of_it(scheme: str, tmp_path: Path) -> None:
    source = gguf.GGUFReader(tiny.shared("llama3"))
    found = gguf.GGUFReader(quantized(tiny.shared("llama3"), tmp_path, scheme))
    assert found.fields.keys() - source.fields.keys() <= {
        "general.file_type",
        "general.quantization_version",
    }
    known = "ALL_F32" if scheme == "F32" else f"MOSTLY_{scheme}"
    assert found.fields["general.file_type"].contents() == gguf.LlamaFileType[known]
    assert found.fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION
    for key in source.fields.keys() - {"GGUF.kv_count", "general.file_type"}:
        assert found.fields[key].types == source.fields[key].types
        assert found.fields[key].contents() == source.fields[key].contents()
    kind = gguf.GGMLQuantizationType[scheme]
    for ours, theirs in zip(found.tensors, source.tensors, strict=True):
        assert ours.name == theirs.name
        matrix = len(theirs.shape) == 2
        assert ours.tensor_type == (kind if matrix else gguf.GGMLQuantizationType.F32)
        wanted = gguf_quantize(theirs.data, kind) if matrix else theirs.data
        assert ours.data.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("scheme", ["Q8_0", "INT8_ROW"])
def test_tokenizer_template_and_answers_come_along(form: str, scheme: str, tmp_path: Path) -> None:
    source = tiny.shared("qwen3", form)
    out = quantized(source, tmp_path, scheme)
    sampling = SamplingParams(max_tokens=8)
    with Engine.load(source) as before, Engine.load(out) as after:
        text = "What is it? é"
        assert after.tokenizer.encode(text) == before.tokenizer.encode(text)
        assert after.chat_template is not None
        assert after.report is not None
        assert before.report is not None
        # A folder is called by its name, a GGUF file by what it says.
        assert form == "safetensors" or after.report.model == before.report.model
        assert after.report.formats[scheme] == 2 * 7 + 2
        assert len(after.generate(text, sampling).token_ids) == 8


def test_settings_and_licence_are_copied_and_nothing_else(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "source")
    (source / "LICENSE.txt").write_text("free")
    (source / "README.md").write_text("the unquantised model")
    (source / "training.log").write_text("loss")
    out = quantized(source, tmp_path, "INT4_G64")
    copied = {file.name for file in out.iterdir()} - {"model.safetensors"}
    assert copied == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "LICENSE.txt",
    }
    for name in copied:
        assert (out / name).read_bytes() == (source / name).read_bytes()


def test_a_model_in_shards_becomes_one_file(tmp_path: Path) -> None:
    model = tiny.reference("llama")
    model.save_pretrained(tmp_path / "source", max_shard_size="100KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 2
    out = quantized(tmp_path / "source", tmp_path, "INT8_ROW")
    whole = quantized(tiny.shared("llama", "safetensors"), tmp_path, "INT8_TENSOR")
    assert open_checkpoint(out).tensors.keys() == open_checkpoint(whole).tensors.keys()


def test_a_quantised_folder_can_be_quantised_again(tmp_path: Path) -> None:
    """Through a description.gguf and back into a GGUF file."""
    source = tiny.shared("llama3")
    middle = quantized(source, tmp_path, "INT8_ROW")
    assert isinstance(open_checkpoint(middle), GGUFFile)
    with open_checkpoint(middle) as checkpoint:
        out = quantize(checkpoint, tmp_path / "end.gguf", Wish("F32")).path
    wanted = TorchBackend(model_at(middle)).forward(IDS).detach().numpy()
    found = TorchBackend(model_at(out)).forward(IDS).detach().numpy()
    np.testing.assert_array_equal(found, wanted)
    before, after = GGUFFile(source).metadata, GGUFFile(out).metadata
    assert after.keys() - before.keys() == {"general.file_type", "general.quantization_version"}
    for key, value in before.items():
        assert list(np.atleast_1d(after[key])) == list(np.atleast_1d(value)), key


# --- the embedding


def test_the_embedding_and_a_head_of_its_own_may_have_another_scheme(tmp_path: Path) -> None:
    found = open_checkpoint(
        quantized(tiny.shared("llama"), tmp_path, "Q4_0", keep=["embedding=q8_0", "head=q8_0"])
    ).tensors
    wide = {name for name, tensor in found.items() if tensor.format == "Q8_0"}
    assert wide == {"token_embd.weight", "output.weight"}
    assert found["blk.1.ffn_down.weight"].format == "Q4_0"


def test_the_embedding_may_be_kept_as_it_is(tmp_path: Path) -> None:
    source = open_checkpoint(tiny.shared("qwen2", "safetensors", "BF16"))
    found = open_checkpoint(
        quantized(source.folder, tmp_path, "INT4_G32", keep=["embedding=keep"])
    ).tensors
    name = "model.embed_tokens.weight"
    assert found[name].format == "BF16"
    np.testing.assert_array_equal(found[name].data, source.tensors[name].data)
    assert found["model.layers.0.mlp.up_proj.weight"].format == "INT4_G32"


def test_a_scheme_of_gguf_beside_one_of_farthing_makes_a_folder(tmp_path: Path) -> None:
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        rules = (parse_rule("embedding=int8"), parse_rule("head=int8"))
        report = quantize(checkpoint, tmp_path / "out", Wish("Q4_0", rules))
    assert report.container == "safetensors"
    assert {t.format for t in open_checkpoint(report.path).tensors.values()} == {
        "Q4_0",
        "INT8_ROW",
        "F32",
    }


def test_a_tied_head_that_is_stored_all_the_same_is_left_out(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("qwen2", "safetensors"), tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    found = open_checkpoint(quantized(source, tmp_path, "INT8_ROW")).tensors
    assert "lm_head.weight" not in found


def test_what_the_text_model_has_no_use_for_is_kept_as_it_is(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("qwen2", "safetensors"), tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["vision_tower.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    report = reported(source, tmp_path, "INT8_ROW")
    found = open_checkpoint(report.path).tensors["vision_tower.weight"]
    assert found.format == "F32"
    assert found.data.tobytes() == tensors["vision_tower.weight"].numpy().tobytes()
    assert report.others["F32"].weights > found.data.nbytes // 4


# --- the report


def test_the_report_counts_what_is_in_the_file(tmp_path: Path) -> None:
    source = tiny.shared("qwen2", "safetensors", "BF16")
    report = reported(source, tmp_path, "INT4_G128")
    found = open_checkpoint(report.path).tensors.values()
    matrices = [tensor for tensor in found if len(tensor.shape) == 2]
    share = report.matrices["INT4_G128"]
    assert share.tensors == len(matrices)
    assert share.weights == sum(tensor.shape[0] * tensor.shape[1] for tensor in matrices)
    assert share.bytes == sum(tensor.data.nbytes for tensor in matrices)
    bits = [bits_per_weight("INT4_G128", tensor.shape) for tensor in matrices]
    sizes = [tensor.shape[0] * tensor.shape[1] for tensor in matrices]
    assert report.bits_per_weight == pytest.approx(np.average(bits, weights=sizes), rel=1e-12)
    assert report.bytes == sum(tensor.data.nbytes for tensor in found)
    assert report.source_bits_per_weight == 16
    assert not report.source_was_rounded
    assert report.source_bytes == sum(
        tensor.data.nbytes for tensor in open_checkpoint(source).tensors.values()
    )


def test_the_report_says_when_the_source_was_rounded_before(tmp_path: Path) -> None:
    report = reported(tiny.shared("llama", "gguf", "Q4_1"), tmp_path, "BF16")
    assert report.source_was_rounded
    assert report.source_bits_per_weight == 5
    assert report.source_matrices.keys() == {"Q4_1"}


def test_a_matrix_that_has_its_format_already_is_copied_bit_for_bit(tmp_path: Path) -> None:
    source = tiny.shared("llama", "gguf", "Q4_1")
    found = open_checkpoint(quantized(source, tmp_path, "Q4_1")).tensors
    for name, tensor in open_checkpoint(source).tensors.items():
        np.testing.assert_array_equal(found[name].data, tensor.data)


def test_progress_rises_and_names_every_tensor(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    source = tiny.shared("llama")
    quantized(source, tmp_path, "Q4_0", progress=lambda _, name, done: told.append((name, done)))
    shares = [done for _, done in told]
    assert [name for name, _ in told] == ["", *open_checkpoint(source).tensors]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)


# --- refusals


def odd_model(folder: Path) -> Path:
    """A model whose rows of 40 weights no block divides."""
    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=40,
        intermediate_size=72,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_rows_that_blocks_do_not_divide_are_refused_by_the_tensors_name(tmp_path: Path) -> None:
    source = odd_model(tmp_path / "odd")
    with pytest.raises(UnsupportedModelError, match=r"the matrix embedding: rows of 40.*Q4_0"):
        quantized(source, tmp_path, "Q4_0")
    assert [file.name for file in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize("scheme", OWN_SCHEMES)
def test_farthings_schemes_take_rows_of_any_length(scheme: str, tmp_path: Path) -> None:
    model = model_at(quantized(odd_model(tmp_path / "odd"), tmp_path, scheme))
    oracle = TorchBackend(model).forward(IDS).detach().numpy()
    assert relative_error(logits_of(native(model, **EXACT), IDS), oracle) < 1e-5


def broken_model(folder: Path, value: float, name: str = "self_attn.v_proj") -> Path:
    """One weight of a tensor of the last layer cannot be stored."""
    source = shutil.copytree(tiny.shared("llama", "safetensors"), folder)
    tensors = load_file(source / "model.safetensors")
    tensors[f"model.layers.1.{name}.weight"][..., 5] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return source


@pytest.mark.parametrize(
    ("value", "scheme"), [(float("nan"), "INT8_ROW"), (1e30, "INT4_ROW"), (1e5, "F16")]
)
def test_a_weight_that_cannot_be_stored_is_an_error_that_leaves_nothing(
    value: float, scheme: str, tmp_path: Path
) -> None:
    source = broken_model(tmp_path / "source", value)
    with pytest.raises(FarthingError, match=r"model\.layers\.1\.self_attn\.v_proj\.weight"):
        quantized(source, tmp_path, scheme)
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_one_nan_is_found_where_the_whole_tensor_has_one_scale(tmp_path: Path) -> None:
    source = broken_model(tmp_path / "source", float("nan"))
    with pytest.raises(FarthingError, match=r"v_proj.*infinity or a NaN"):
        quantized(source, tmp_path, "INT4_TENSOR")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("scheme", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", ["self_attn.v_proj", "input_layernorm"])
def test_a_number_that_is_not_finite_is_found_where_nothing_is_rounded_to_codes(
    name: str, scheme: str, value: float, tmp_path: Path
) -> None:
    source = broken_model(tmp_path / "source", value, name)
    with pytest.raises(FarthingError, match=f"{name}.*infinity or a NaN"):
        quantized(source, tmp_path, scheme)
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_an_architecture_that_is_not_known_is_refused(tmp_path: Path) -> None:
    source = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(UnsupportedModelError, match="mamba"):
        quantized(source, tmp_path, "INT8_ROW")


@pytest.mark.parametrize(
    ("form", "scheme", "name", "message"),
    [
        ("gguf", "Q4_0", "out", "GGUF file: call it out.gguf"),
        ("gguf", "INT8_ROW", "out.gguf", "since GGUF does not have all.*call it out$"),
        ("safetensors", "INT8_ROW", "out.gguf", "since GGUF does not have all.*call it out$"),
        ("gguf", "Q4_0", "absent/out.gguf", "no folder .*absent"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(
    form: str, scheme: str, name: str, message: str, tmp_path: Path
) -> None:
    with (
        open_checkpoint(tiny.shared("llama", form)) as checkpoint,
        pytest.raises(FarthingError, match=message),
    ):
        quantize(checkpoint, tmp_path / name, Wish(scheme))


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "INT8_ROW").symlink_to("INT8_ROW")
    with pytest.raises(FarthingError, match="INT8_ROW leads nowhere .*: choose another name"):
        quantized(tiny.shared("llama"), tmp_path, "INT8_ROW")


def test_a_model_is_never_written_over_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    shutil.copyfile(tiny.shared("llama"), file)
    folder = shutil.copytree(tiny.shared("llama", "safetensors"), tmp_path / "folder")
    described = quantized(file, tmp_path, "INT8_ROW")
    for source, scheme in ((file, "Q4_0"), (folder, "INT8_ROW"), (described, "INT4_ROW")):
        before = {path: path.read_bytes() for path in [*tmp_path.rglob("*")] if path.is_file()}
        with (
            open_checkpoint(source) as checkpoint,
            pytest.raises(FarthingError, match="is the model that is being read"),
        ):
            quantize(checkpoint, tmp_path / "x" / ".." / source.name, Wish(scheme), force=True)
        assert before == {path: path.read_bytes() for path in before}


def test_smollm2_becomes_the_q4_0_that_benchmarks_use(smollm2_path: Path, tmp_path: Path) -> None:
    report = reported(smollm2_path, tmp_path, "Q4_0", keep=["embedding=q8_0", "head=q8_0"])
    assert {name: share.tensors for name, share in report.matrices.items()} == {
        "Q4_0": 210,
        "Q8_0": 1,
    }
    source, found = GGUFFile(smollm2_path), GGUFFile(report.path)
    for name in ("blk.0.attn_q.weight", "blk.17.ffn_down.weight", "blk.29.attn_v.weight"):
        wanted = gguf_quantize(decode(source.tensors[name]), gguf.GGMLQuantizationType.Q4_0)
        np.testing.assert_array_equal(found.tensors[name].data, wanted.reshape(-1))
    # The embedding was Q8_0 before.
    embedding = "token_embd.weight"
    np.testing.assert_array_equal(found.tensors[embedding].data, source.tensors[embedding].data)


@pytest.mark.parametrize(("scheme", "bits"), [("INT8_ROW", 8.048), ("NF4_B64", 4.25)])
def test_smollm2_in_farthings_formats_still_knows_the_capital_of_france(
    scheme: str, bits: float, smollm2_path: Path, tmp_path: Path
) -> None:
    report = reported(smollm2_path, tmp_path, scheme)
    assert report.bits_per_weight == pytest.approx(bits, abs=1e-3)
    with Engine.load(report.path, context_length=128) as engine:
        answer = engine.generate("The capital of France is", SamplingParams(max_tokens=8)).text
    assert "Paris" in answer


def test_a_folder_from_a_folder_needs_no_description(tmp_path: Path) -> None:
    out = quantized(tiny.shared("llama", "safetensors"), tmp_path, "INT8_ROW")
    assert isinstance(open_checkpoint(out), SafetensorsFolder)
