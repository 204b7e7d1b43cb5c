"""Opening a model by looking at its path."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from farthing.core import FileFormatError
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SafetensorsFolder

Checkpoint: TypeAlias = GGUFFile | SafetensorsFolder


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a GGUF file (any shard of a split one) or a folder of safetensors.

    Raises `FileFormatError` and `UnsupportedModelError` as these two do.
    """
    path = Path(path)
    if path.is_dir():
        return SafetensorsFolder(path)
    if path.suffix == ".safetensors":
        raise FileFormatError(
            f"{path} is weights without their settings: give the folder it lies in"
        )
    return GGUFFile(path)
