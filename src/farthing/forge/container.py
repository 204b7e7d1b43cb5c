"""What surrounds a model's tensors: settings, tokenizer, licence, taken over from its source."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from farthing.files.checkpoint import DESCRIPTION
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_writer import number_field, read_fields, text_field, write_gguf
from farthing.files.safetensors import SINGLE
from farthing.files.safetensors_writer import write_safetensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.writing import Pieces, TensorPlan

FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "BF16": 32,
}
"""`general.file_type` of a GGUF with most matrices in a format: llama.cpp's `llama_ftype`."""

_QUANTIZATION_VERSION = 2
"""`general.quantization_version`: ggml's layout of blocks, unchanged since May 2023."""

_OF_THE_TENSORS = (
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "split.count",
    "split.no",
    "split.tensors.count",
)
"""Keys that speak of how the source stores its tensors, not of the model."""

_SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
)


def write_gguf_model(
    path: Path, source: GGUFFile, scheme: str, plans: Sequence[TensorPlan], pieces: Pieces
) -> None:
    """Writes a GGUF file with the source's metadata, marked as being mostly `scheme`."""
    fields = _fields(source)
    fields["general.file_type"] = number_field("general.file_type", FILE_TYPES[scheme])
    version = number_field("general.quantization_version", _QUANTIZATION_VERSION)
    fields["general.quantization_version"] = version
    write_gguf(path, fields, plans, pieces)


def write_folder_model(
    folder: Path, source: Checkpoint, plans: Sequence[TensorPlan], pieces: Pieces
) -> None:
    """Makes a folder of safetensors with the source's settings, or a description.gguf of them."""
    folder.mkdir()
    write_safetensors(folder / SINGLE, plans, pieces)
    if isinstance(source, GGUFFile):
        write_gguf(folder / DESCRIPTION, _fields(source), [], pieces)
        return
    for pattern in _SETTINGS:
        for file in source.folder.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _fields(source: GGUFFile) -> dict[str, bytes]:
    """The metadata that speaks of the model, and its name where the file has given it one."""
    fields = read_fields(source.paths[0])
    for key in _OF_THE_TENSORS:
        fields.pop(key, None)
    if "general.name" not in fields:
        fields["general.name"] = text_field("general.name", source.path.stem)
    return fields
