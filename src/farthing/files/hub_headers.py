"""A hub's model by its headers alone: what describes it, a few MB of any size of model.

The headers are written into files as long as the model's, whose rest is a hole that takes no room.
So they are opened, and doubted, by the readers of whole files.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np

from farthing.core import DownloadError, FileFormatError
from farthing.files import cache, hub
from farthing.files.gguf_header import MAX_HEADER_BYTES, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub.hf_api import ModelInfo

    from farthing.files.gguf_header import Header
    from farthing.files.hub import HubId

_INDEX = "model.safetensors.index.json"
_FIRST_BYTES = 1 << 20
_MOST_SETTINGS = 4 << 20
_MOST_SAFETENSORS_HEADER = 100 << 20
_MOST_FILE = 1 << 44
_MOST_DIVISORS = 1 << 16
_SECONDS = 30.0
_DIVISORS = "rope_freqs.weight"
"""A tensor of a GGUF that describes the model: it divides rotary frequencies."""


@dataclass(frozen=True)
class Headers:
    """What to open; it is gone when the block ends. `fetched` counts bytes."""

    path: Path
    source: str
    licence: str
    fetched: int


def remote_id(model: str) -> HubId | None:
    """The hub's id that `model` is, where it is one and neither on disk nor anything else."""
    try:
        if Path(model).exists():
            return None
    except OSError:
        return None
    hub_id = hub.parse_id(model)
    if hub_id is None or (model.endswith((".gguf", ".safetensors")) and hub_id.tag is None):
        return None
    return None if cache.find(hub_id.folder_name) else hub_id


@contextmanager
def headers(hub_id: HubId) -> Iterator[Headers]:
    """Fetches the headers of a model, for as long as the block runs.

    Raises `DownloadError` as `hub.fetch` does, and `FileFormatError` for a file that is none.
    """
    info = hub.look_up(hub_id)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or []}
    names, to_open = hub.choose_files(hub_id, sizes)
    with tempfile.TemporaryDirectory(prefix="farthing-headers-") as temporary:
        folder = Path(temporary)
        fetched = 0
        for name in names:
            kind = Path(name).suffix
            if kind in (".gguf", ".safetensors") or name in ("config.json", _INDEX):
                remote = _Remote(hub_id, info, name)
                fetched += _write(remote, folder / name)
        yield Headers(folder / to_open, hub.source_of(hub_id, info), hub.licence_of(info), fetched)


class _Remote:
    """A file of a repository, read in pieces from its start."""

    def __init__(self, hub_id: HubId, info: ModelInfo, name: str) -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        self.name = name
        self._hub_id = hub_id
        self._endpoint = os.environ.get("HF_ENDPOINT")
        url = hf_hub_url(hub_id.repository, name, revision=info.sha, endpoint=self._endpoint)
        found = hub.explained(hub_id, partial(get_hf_file_metadata, url, endpoint=self._endpoint))
        self._url = url
        self._location = found.location
        self.size = found.size or 0
        if not 0 < self.size <= _MOST_FILE:
            raise DownloadError(
                f"the hub says that {name} of {hub_id.repository} has {self.size} bytes, which no "
                "model has: try again, or choose another one"
            )

    def read(self, start: int, end: int) -> bytes:
        """These bytes. Raises `DownloadError` where fewer come."""
        end = min(end, self.size)
        try:
            content = self._read(start, end)
        except (OSError, HTTPException) as error:
            raise DownloadError(
                f"{self.name} of {self._hub_id.repository} cannot be read from the hub ({error}): "
                "check the network, or try again"
            ) from None
        if len(content) != end - start:
            raise DownloadError(
                f"{self.name} of {self._hub_id.repository} broke off after "
                f"{start + len(content):,} of {self.size:,} bytes: try again"
            )
        return content

    def _read(self, start: int, end: int) -> bytes:
        from huggingface_hub.utils._headers import build_hf_headers

        own: dict[str, str] = build_hf_headers()
        if urlsplit(self._location).netloc != urlsplit(self._url).netloc:
            own.pop("authorization", None)  # a token is the hub's, not its storage's
        own["Range"] = f"bytes={start}-{end - 1}"
        with urlopen(Request(self._location, headers=own), timeout=_SECONDS) as answer:
            if answer.status != 206:
                # It sends the file from its start, as far as anyone reads.
                answer.read(start)
            content: bytes = answer.read(end - start)
            return content


def _write(remote: _Remote, path: Path) -> int:
    """The file's header, then a hole; returns how many bytes were fetched."""
    if path.suffix == ".gguf":
        content, patches = _gguf(remote, path)
    elif path.suffix == ".safetensors":
        content, patches = _safetensors(remote), {}
    else:
        content, patches = remote.read(0, _MOST_SETTINGS + 1), {}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(content)
            for start, patch in patches.items():
                file.seek(start)
                file.write(patch)
            file.truncate(remote.size)
    except OSError as error:
        raise DownloadError(
            f"a file with a hole of {remote.size:,} bytes cannot be made in {path.parent} "
            f"({error.strerror}): set TMPDIR to a folder of another disk"
        ) from None
    return len(content) + sum(map(len, patches.values()))


def _gguf(remote: _Remote, path: Path) -> tuple[bytes, dict[int, bytes]]:
    """The header, and what of the tensors describes the model, by its place in the file."""
    content = remote.read(0, _FIRST_BYTES)
    most = min(remote.size, MAX_HEADER_BYTES)
    while True:
        try:
            header = read_header(np.frombuffer(content, np.uint8), path)
            break
        except FileFormatError as error:
            if len(content) >= most or not content.startswith(b"GGUF"):
                shown = str(error).replace(str(path), remote.name)
                raise FileFormatError(shown) from None
            content += remote.read(len(content), min(2 * len(content), most))
    place = _divisors(header)
    if place is None or place[1] <= len(content):
        return content, {}
    return content, {place[0]: remote.read(*place)}


def _divisors(header: Header) -> tuple[int, int] | None:
    """Where the rotary divisors stand; None where there are none, or none that can be sound."""
    alignment = header.metadata.get("general.alignment", 32)
    record = next((each for each in header.tensors if each.name == _DIVISORS), None)
    if record is None or type(alignment) is not int or alignment < 1:
        return None
    start = -(-header.end // alignment) * alignment + record.offset
    size = 4 * prod(record.shape)
    return (start, start + size) if 0 < size <= _MOST_DIVISORS else None


def _safetensors(remote: _Remote) -> bytes:
    content = remote.read(0, _FIRST_BYTES)
    end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < end <= min(remote.size, _MOST_SAFETENSORS_HEADER):
        content += remote.read(len(content), end)
    return content
