"""GGUF files, versions 2 and 3, whole or split into shards, mapped and never copied.

The format is specified in ggml's docs/gguf.md; `gguf_header.py` reads what stands before the data.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.formats import FORMAT_OF_GGUF_TYPE, RETIRED_GGUF_TYPES, stored_bytes
from farthing.files.gguf_header import MAX_TENSORS, Header, TensorRecord, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

_DEFAULT_ALIGNMENT = 32
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFFile:
    """An open GGUF model: its metadata, and its tensors as bytes in place.

    `path` may be any shard of a split model (`name-00001-of-00003.gguf`): all are opened, and
    `paths` lists them. `metadata` is the first shard's; for its values see
    `gguf_header.read_header`. `tensors` are in file order.
    Raises `FileFormatError` when the file is not sound and `UnsupportedModelError` for a tensor
    type that GGUF does not define.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.paths = shard_paths(self.path)
        self.metadata: Mapping[str, object] = {}
        self.tensors: Mapping[str, StoredTensor] = {}
        tensors: dict[str, StoredTensor] = {}
        for number, shard in enumerate(self.paths):
            data = map_file(shard)
            header = read_header(data, shard)
            _check_split(header, shard, number, len(self.paths))
            if number == 0:
                self.metadata = header.metadata
            for tensor in _tensors(header, data, shard):
                if tensor.name in tensors:
                    raise FileFormatError(
                        f"{shard}: the tensor {tensor.name!r:.80} appears twice; the file is "
                        "damaged: fetch it again"
                    )
                tensors[tensor.name] = tensor
            if len(tensors) > MAX_TENSORS:
                raise FileFormatError(f"{shard}: the shards hold more than {MAX_TENSORS} tensors")
        if len(self.paths) > 1:
            _check_tensor_count(self.metadata, len(tensors), self.path)
        self.tensors = tensors

    def close(self) -> None:
        """Lets go of the mapping, which ends with the last tensor still held by someone."""
        self.tensors = {}

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file as a read-only memory map. Raises `FileFormatError`."""
    try:
        if not path.exists():
            raise FileFormatError(f"there is no file {path}: look at the path, or fetch the model")
        if not path.is_file():
            raise FileFormatError(f"{path} is not a file")
        if path.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty: fetch it again")
        return np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}") from error


def shard_paths(path: Path) -> list[Path]:
    """All files of the model that `path` is a shard of, in order; `[path]` when it is whole.

    Raises `FileFormatError` naming the shards that are missing.
    """
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise FileFormatError(f"{path} is named as a shard that cannot be: rename it")
    shards = [
        path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        names = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if missing[4:] else "")
        raise FileFormatError(
            f"{path} is one shard of {count}, and {names} are not beside it: fetch them too"
        )
    return shards


def _check_split(header: Header, path: Path, number: int, count: int) -> None:
    claimed = header.metadata.get("split.count", 1)
    if claimed != count:
        raise FileFormatError(
            f"{path} says it is a part of {claimed!r:.20} and its name says {count}: a shard must "
            "keep the name it was made with, NAME-00001-of-00003.gguf"
        )
    if count > 1 and header.metadata.get("split.no") != number:
        raise FileFormatError(
            f"{path} is named as shard {number + 1} of {count}, and its header says split.no = "
            f"{header.metadata.get('split.no')!r:.20} (counted from 0): two shards were swapped"
        )


def _check_tensor_count(metadata: Mapping[str, object], count: int, path: Path) -> None:
    claimed = metadata.get("split.tensors.count")
    if claimed != count:
        raise FileFormatError(
            f"{path}: the shards hold {count} tensors and the first says {claimed!r:.20}: they "
            "belong to different models, or one is damaged; fetch them again"
        )


def _alignment(header: Header, path: Path) -> int:
    alignment = header.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise FileFormatError(
            f"{path}: general.alignment is {alignment!r:.40} and must be a power of two; the file "
            "is damaged: fetch it again"
        )
    return alignment


def _tensors(header: Header, data: NDArray[np.uint8], path: Path) -> Iterator[StoredTensor]:
    alignment = _alignment(header, path)
    data_start = -(-header.end // alignment) * alignment
    taken: list[tuple[int, int, str]] = []
    for record in header.tensors:
        format_name, size = _stored_size(record, path)
        start = data_start + record.offset
        if record.offset % alignment:
            raise FileFormatError(
                f"{path}: tensor {record.name!r:.80} begins at {record.offset}, which is no "
                f"multiple of the alignment {alignment}; the file is damaged: fetch it again"
            )
        if start + size > len(data):
            raise FileFormatError(
                f"{path} is truncated: tensor {record.name!r:.80} ends at byte {start + size} and "
                f"the file at {len(data)}; fetch it again"
            )
        taken.append((start, start + size, record.name))
        yield StoredTensor(record.name, format_name, record.shape, data[start : start + size])
    taken.sort()
    for (_, end, name), (start, _, following) in pairwise(taken):
        if start < end:
            raise FileFormatError(
                f"{path}: tensors {name!r:.80} and {following!r:.80} overlap; the file is "
                "damaged: fetch it again"
            )


def _stored_size(record: TensorRecord, path: Path) -> tuple[str, int]:
    storage = FORMAT_OF_GGUF_TYPE.get(record.gguf_type)
    if storage is None:
        known = RETIRED_GGUF_TYPES.get(record.gguf_type)
        kind = f"{known}, which GGUF retired" if known else f"type {record.gguf_type}, unknown here"
        raise UnsupportedModelError(
            f"{path}: tensor {record.name!r:.80} is stored as {kind}: use a file in one of the "
            "usual formats, such as Q4_K_M or Q8_0"
        )
    row = record.shape[-1] if record.shape else 1
    # A product over 2^63 is larger than any file, and is refused before anyone computes with it.
    if 0 in record.shape or prod(record.shape) >= 2**63 or row % storage.block_length:
        raise FileFormatError(
            f"{path}: tensor {record.name!r:.80} of shape {record.shape} cannot be stored as "
            f"{storage.name}, in blocks of {storage.block_length}; the file is damaged: fetch it "
            "again"
        )
    return storage.name, stored_bytes(storage.name, record.shape)
