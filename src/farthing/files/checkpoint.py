"""Opening a model by looking at its path."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from farthing.core import FileFormatError
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SafetensorsFolder, open_tensors

Checkpoint: TypeAlias = GGUFFile | SafetensorsFolder

DESCRIPTION = "description.gguf"
"""A GGUF without tensors that describes those of the safetensors beside it: settings, tokenizer.

So a model from a GGUF file can be in a format that GGUF does not have. Names and order of rows are
GGUF's.
"""


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a GGUF file (any shard of a split one) or a folder of safetensors.

    A folder with a description.gguf is opened as that file with the folder's tensors.
    Raises `FileFormatError` and `UnsupportedModelError` as these two do.
    """
    path = Path(path)
    if path.is_dir():
        return _described(path) if (path / DESCRIPTION).exists() else SafetensorsFolder(path)
    if path.suffix == ".safetensors":
        raise FileFormatError(
            f"{path} is weights without their settings: give the folder it lies in"
        )
    return GGUFFile(path)


def _described(folder: Path) -> GGUFFile:
    file = GGUFFile(folder / DESCRIPTION)
    if file.tensors:
        raise FileFormatError(
            f"{file.path} holds tensors, where it must only describe those beside it: give the "
            "path of the .gguf file itself, or quantise the model again"
        )
    file.tensors = open_tensors(folder)
    return file
