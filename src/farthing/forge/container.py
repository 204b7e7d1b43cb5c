"""What surrounds a model's tensors: settings, tokenizer, licence, taken over from its source."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farthing import __version__
from farthing.files.checkpoint import DESCRIPTION, RECEIPT_KEY
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_writer import lay_gguf, number_field, read_fields, text_field
from farthing.files.writing import write_laid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.writing import Layout, TensorPlan

FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "BF16": 32,
}
"""`general.file_type` of a GGUF with most matrices in a format: llama.cpp's `llama_ftype`.

K-quants have the number of their S mixture, which is nearest to one format for all.
"""

RECEIPT_BYTES = 1 << 14
"""Room in a GGUF file for its receipt, which is measured when the file is otherwise whole."""

_QUANTIZATION_VERSION = 2
"""`general.quantization_version`: ggml's layout of blocks, unchanged since May 2023."""

_OF_THE_TENSORS = (
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "split.count",
    "split.no",
    "split.tensors.count",
    RECEIPT_KEY,
)
"""Keys that speak of how the source stores its tensors, not of the model."""

_OF_THE_WHOLE = ("general.basename", "general.finetune", "general.size_label", "general.uuid")
"""Keys that say which model a file is, and how large: not so of a part of it."""

_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")

_SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    *_LICENCES,
)


def identity(source: Checkpoint) -> dict[str, Any]:
    """What the bytes of a model that is made from this one depend on here, as plain JSON."""
    if not isinstance(source, GGUFFile):
        files = [source.folder / "config.json", *source.folder.glob("*.safetensors")]
    elif source.path.name == DESCRIPTION:
        files = [source.path, *source.path.parent.glob("*.safetensors")]
    else:
        files = source.paths
    stands = [(str(file.resolve()), file.stat()) for file in sorted(files)]
    return {
        "farthing": __version__,
        "source": [[name, found.st_size, found.st_mtime_ns] for name, found in stands],
    }


def lay_gguf_model(
    metadata: Mapping[str, bytes], scheme: str, plans: Sequence[TensorPlan], receipt: bool
) -> Layout:
    """A GGUF file with that metadata, marked as being mostly `scheme`.

    With `receipt` it has room for one, which is blank.
    """
    fields = dict(metadata)
    fields["general.file_type"] = number_field("general.file_type", FILE_TYPES[scheme])
    version = number_field("general.quantization_version", _QUANTIZATION_VERSION)
    fields["general.quantization_version"] = version
    if receipt:
        fields[RECEIPT_KEY] = text_field(RECEIPT_KEY, " " * RECEIPT_BYTES)
    return lay_gguf(fields, plans)


def licences(folder: Path) -> list[str]:
    """The names of a model folder's files that say what may be done with it."""
    return sorted(file.name for pattern in _LICENCES for file in folder.glob(pattern))


@dataclass(frozen=True)
class Part:
    """A model that has only these of its source's layers, and so is another one, with a name."""

    layers: Sequence[int]
    name: str


def make_folder(folder: Path, source: Checkpoint, own_head: bool, part: Part | None = None) -> None:
    """Makes a folder with the source's settings, or a description.gguf of them.

    `own_head`: the result has a head of its own, and the source none. `part`: what it is of the
    source, None for all of it. A folder of the source's files is called by its own name.
    """
    folder.mkdir(exist_ok=True)
    if isinstance(source, GGUFFile):
        fields = metadata_fields(source)
        if part is not None:
            for key in _OF_THE_WHOLE:
                fields.pop(key, None)
            key = f"{source.metadata['general.architecture']}.block_count"
            fields[key] = number_field(key, len(part.layers))
            fields["general.name"] = text_field("general.name", part.name)
        write_laid(folder / DESCRIPTION, lay_gguf(fields, []), lambda plan: [])
        return
    for pattern in _SETTINGS:
        for file in source.folder.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    config = source.config
    if own_head:
        config = _untied(config)
    if part is not None:
        config = _with_layers(config, part.layers)
    if config is not source.config:
        text = json.dumps(config, indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")


def _untied(config: dict[str, object]) -> dict[str, object]:
    """config.json that says that the head is a matrix of its own, in each place where it could."""
    untied = {**config, "tie_word_embeddings": False}
    text = untied.get("text_config")
    if isinstance(text, dict):
        untied["text_config"] = {**text, "tie_word_embeddings": False}
    return untied


def _with_layers(config: dict[str, object], layers: Sequence[int]) -> dict[str, object]:
    """config.json of these layers alone, wherever it speaks of them."""
    changed = dict(config)
    changed.pop("_name_or_path", None)  # the model that had all layers
    if "num_hidden_layers" in changed:
        changed["num_hidden_layers"] = len(layers)
    types = changed.get("layer_types")
    if isinstance(types, list):
        changed["layer_types"] = [types[layer] for layer in layers]
    text = changed.get("text_config")
    if isinstance(text, dict):
        changed["text_config"] = _with_layers(text, layers)
    return changed


def metadata_fields(source: GGUFFile) -> dict[str, bytes]:
    """The metadata that speaks of the model, and its name where the file has given it one."""
    fields = read_fields(source.paths[0])
    for key in _OF_THE_TENSORS:
        fields.pop(key, None)
    if "general.name" not in fields:
        fields["general.name"] = text_field("general.name", source.path.stem)
    return fields
