"""What every JSON of the lab and the command line carries: version, model, machine, settings."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from farthing import __version__
from farthing.files.checkpoint import DESCRIPTION, RECEIPT_FILE
from farthing.files.gguf import shard_paths
from farthing.plan.machine import processor, usable_cores

_PIECE_BYTES = 1 << 20


def facts(model: str, path: Path, threads: int, isa: str) -> dict[str, Any]:
    """Version, model with its hash, machine, threads and ISA tier.

    Reads every byte of the model for the hash.
    """
    return {
        "version": __version__,
        "model": {"name": model, "path": str(path), "sha256": model_hash(path)},
        "machine": machine(),
        "threads": threads,
        "isa": isa,
    }


def machine() -> dict[str, Any]:
    """The processor's name, the cores this process may use, the memory, the system."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
    }


def model_hash(path: Path) -> str:
    """The sha256 of a model file; of a folder, or of a split file's shards, that of a listing.

    The listing has a line `<sha256>  <name>` for each file, by name: what `sha256sum` prints.
    """
    files = model_files(path)
    if files == [path]:
        return _file_hash(path)
    lines = "".join(f"{_file_hash(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def model_files(path: Path) -> list[Path]:
    """The files that a model's answers depend on, by name: not a receipt, which tells of them."""
    if not path.is_dir():
        return shard_paths(path)
    kinds = (".safetensors", ".json", ".jinja")
    return sorted(
        file
        for file in path.iterdir()
        if (file.suffix in kinds or file.name == DESCRIPTION)
        and file.name != RECEIPT_FILE
        and file.is_file()
    )


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
