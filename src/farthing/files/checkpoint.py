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


RECEIPT_KEY = "farthing.receipt"
"""The metadata of a GGUF file under which its receipt lies; see `files/receipt.py`."""

RECEIPT_FILE = "farthing_receipt.json"
"""The receipt of a folder's tensors, beside them."""


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


def receipt_path(checkpoint: Checkpoint) -> Path | None:
    """Where a folder's receipt lies, whether there is one or not; None for a GGUF file, whose
    metadata holds it.
    """
    if not isinstance(checkpoint, GGUFFile):
        return checkpoint.folder / RECEIPT_FILE
    described = checkpoint.path.name == DESCRIPTION
    return checkpoint.path.parent / RECEIPT_FILE if described else None


def has_receipt(checkpoint: Checkpoint) -> bool:
    """Whether a receipt lies with the model, sound or not."""
    path = receipt_path(checkpoint)
    if path is not None:
        return path.exists()
    return isinstance(checkpoint, GGUFFile) and RECEIPT_KEY in checkpoint.metadata


def _described(folder: Path) -> GGUFFile:
    file = GGUFFile(folder / DESCRIPTION)
    if file.tensors:
        raise FileFormatError(
            f"{file.path} holds tensors, where it must only describe those beside it: give the "
            "path of the .gguf file itself, or quantise the model again"
        )
    file.tensors = open_tensors(folder)
    return file
