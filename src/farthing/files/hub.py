"""Models of a Hugging Face hub: a folder of safetensors, or one GGUF of a repository.

`HF_ENDPOINT` names another hub, `HF_TOKEN` the person. The client library is imported when it is
needed: it takes longer to import than a small model to open.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from farthing.core import DownloadError
from farthing.files import cache
from farthing.files.progress import Fetch, Progress, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from huggingface_hub.hf_api import ModelInfo

    Result = TypeVar("Result")

# The hub's names have at most 96 characters; a tag may be the whole name of a file.
_HUB_ID = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})(:(?P<tag>\w[\w.-]{0,199}))?", re.ASCII
)
_SHARD = re.compile(r"-(\d{5})-of-\d{5}$")
_INDEX = "model.safetensors.index.json"
_SAFETENSORS_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_SETTINGS = {
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
_ANSWER_SECONDS = 10.0
"""The client itself waits as long for the files, and for ever for what describes them."""


@dataclass(frozen=True)
class HubId:
    """`owner/name`, and the tag of one GGUF in it: `Q4_K_M`, or a file's whole name."""

    repository: str
    tag: str | None

    @property
    def folder_name(self) -> str:
        """The model's folder in the cache. A hub allows no `--` in names."""
        parts = [*self.repository.split("/"), *([self.tag.upper()] if self.tag else [])]
        return "--".join(parts)

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


def parse_id(model: str) -> HubId | None:
    """Reads `owner/name` or `owner/name:TAG`; None when it is neither."""
    match = _HUB_ID.fullmatch(model)
    return HubId(match["repository"], match["tag"]) if match else None


def fetch(hub_id: HubId, progress: Progress) -> Path:
    """Fetches a model into the cache and returns its folder or its (first) .gguf file.

    Raises `DownloadError`: no network, no such repository, not allowed, nothing in it that can be
    read, several GGUF files and none chosen, no room, a wrong checksum.
    """
    fill = partial(_fill, hub_id, progress)
    return cache.fetch(hub_id.folder_name, str(hub_id), progress, fill)


def _fill(hub_id: HubId, progress: Progress, folder: Path) -> cache.Record:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT")
    info = look_up(hub_id)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or []}
    names, to_open = choose_files(hub_id, sizes)
    total = sum(sizes[name] for name in names)
    source, licence = source_of(hub_id, info), licence_of(info)
    progress.begin(Fetch(str(hub_id), source, licence, total))
    try:
        cache.check_room(total, str(hub_id))
        with watching(folder, progress, 0, total):
            for name in names:
                explained(
                    hub_id,
                    partial(
                        hf_hub_download,
                        hub_id.repository,
                        name,
                        revision=info.sha,
                        local_dir=folder,
                        endpoint=endpoint,
                    ),
                )
        # The client's own notes on what it fetched.
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        _check_hashes(info, folder, names)
    finally:
        progress.end()
    files = {name: (folder / name).stat().st_size for name in names}
    return cache.Record(str(hub_id), source, licence, to_open, files)


def look_up(hub_id: HubId) -> ModelInfo:
    """What the hub says of a repository and its files. Raises `DownloadError`."""
    from huggingface_hub import HfApi

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(os.environ.get("HF_ENDPOINT"))
    ask = partial(api.model_info, timeout=_ANSWER_SECONDS, files_metadata=True)
    return explained(hub_id, partial(ask, hub_id.repository))


def source_of(hub_id: HubId, info: ModelInfo) -> str:
    """Where a model stands, and in which version."""
    from huggingface_hub import HfApi

    endpoint = HfApi(os.environ.get("HF_ENDPOINT")).endpoint
    return f"{endpoint}/{hub_id.repository} at {info.sha}"


def licence_of(info: ModelInfo) -> str:
    """The licence as the repository's card names it."""
    card = info.card_data
    licence = getattr(card, "license", None) if card is not None else None
    if licence == "other":
        licence = getattr(card, "license_name", None) or getattr(card, "license_link", None)
    if isinstance(licence, list):
        licence = ", ".join(map(str, licence))
    return str(licence or "") or "not stated by the repository: look at its page before using it"


def choose_files(hub_id: HubId, files: Iterable[str]) -> tuple[list[str], str]:
    """The files to fetch, and which of them to open (`.` for the folder)."""
    # A name that leads out of the folder is never asked for.
    safe = {name for name in files if not {"..", "/", ""} & set(PurePosixPath(name).parts)}
    weights = [_INDEX, *filter(_SAFETENSORS_SHARD.fullmatch, sorted(safe))]
    if _INDEX not in safe:
        weights = ["model.safetensors"]
    if hub_id.tag is None and weights[0] in safe:
        return [*sorted(_SETTINGS & safe), *weights], "."
    return _choose_gguf(hub_id, safe)


def _choose_gguf(hub_id: HubId, files: Iterable[str]) -> tuple[list[str], str]:
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        stem = PurePosixPath(name).name.removesuffix(".gguf")
        if name.endswith(".gguf") and not stem.lower().startswith("mmproj"):
            models.setdefault(_SHARD.sub("", name.removesuffix(".gguf")), []).append(name)
    if not models:
        raise DownloadError(
            f"{hub_id.repository} holds neither model.safetensors nor a .gguf file: farthing reads "
            "no other kind of weights"
        )
    matching = {
        model: names
        for model, names in models.items()
        if hub_id.tag is None or _has_tag(model, hub_id.tag)
    }
    if len(matching) == 1:
        (names,) = matching.values()
        return names, names[0]
    listed = ", ".join(sorted(PurePosixPath(model).name for model in matching or models))
    if not matching:
        raise DownloadError(f"{hub_id.repository} has no GGUF tagged {hub_id.tag}; it has {listed}")
    example = f"{hub_id.repository}:{PurePosixPath(min(matching)).name}"
    raise DownloadError(
        f"{hub_id} may be any of {listed}: name one by its tag or its whole name, as in {example}"
    )


def _has_tag(model: str, tag: str) -> bool:
    """Whether a tag stands in a file's name as a whole: Q4_K is not the tag of x-Q4_K_M."""
    name, tag = PurePosixPath(model).name.lower(), tag.lower().removesuffix(".gguf")
    return name == tag or bool(re.search(rf"(?<![a-z0-9]){re.escape(tag)}(?![a-z0-9_])", name))


def _check_hashes(info: ModelInfo, folder: Path, names: list[str]) -> None:
    for sibling in info.siblings or []:
        if sibling.rfilename in names and sibling.lfs is not None:
            with (folder / sibling.rfilename).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sibling.lfs.sha256:
                raise DownloadError(
                    f"{sibling.rfilename} came with the wrong content (sha256 {digest}, "
                    f"{sibling.lfs.sha256} wanted) and was not kept: try again"
                )


def explained(hub_id: HubId, call: Callable[[], Result]) -> Result:
    """What `call` returns; the client library's errors become `DownloadError`s that say what to do.

    Errors of the disk pass.
    """
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    name = hub_id.repository
    try:
        return call()
    except GatedRepoError as error:
        raise DownloadError(
            f"{name} is gated: accept its terms on its page, then set HF_TOKEN to a token of yours"
        ) from error
    except RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no model {name}, or it is private: check the spelling, or set HF_TOKEN "
            "to a token that may read it"
        ) from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(f"{name} is not on disk and HF_HUB_OFFLINE is set: unset it") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        refused = "HF_TOKEN is wrong or may not read it" if status in (401, 403) else "try again"
        raise DownloadError(f"the hub answered {status} for {name}: {refused}") from error
    except LocalEntryNotFoundError as error:
        raise DownloadError(_unreachable(name)) from error
    except EntryNotFoundError as error:
        raise DownloadError(f"a file of {name} is gone from the hub: try again") from error
    except OSError as error:
        if error.errno is not None:  # the disk's, not the network's
            raise
        raise DownloadError(f"{_unreachable(name)} ({error})") from error
    # The library lets its HTTP client's errors through, and that client differs by version.
    except Exception as error:
        raise DownloadError(f"{_unreachable(name)} ({type(error).__name__}: {error})") from error


def _unreachable(name: str) -> str:
    return (
        f"the hub cannot be reached for {name}: check the network (HF_ENDPOINT names another hub, "
        "and a .gguf file already on disk can be given by its path)"
    )
