"""A GGUF file's header, read with every claim checked before anything is built from it.

Layout (little endian): magic `GGUF`, u32 version, u64 tensor count, u64 metadata count, the
metadata (key, u32 type, value), then one record a tensor. A string is a u64 length and its bytes;
an array is a u32 element type, a u64 count and its elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, SupportsIndex, overload

import numpy as np

from farthing.core import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_HEADER_BYTES = 32 << 20
"""The largest vocabularies in use (260,000 tokens, 450,000 merges) need about 12 MB."""
MAX_STRINGS = 1 << 21
"""Array strings in one file: bounds the time of finding where a string array ends."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAYS = 1 << 16
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 4

_STRING = 8
_ARRAY = 9
_BOOL = 7
_NUMBERS: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_LENGTH = struct.Struct("<Q")


class StringArray(Sequence[str]):
    """An array of strings in a file's header, turned into Python strings when asked for.

    A vocabulary is a quarter of a million strings: a file opens without building them, and whoever
    goes through them owns what it keeps.
    """

    def __init__(self, encoded: bytes, count: int, where: str) -> None:
        self._encoded = encoded
        self._count = count
        self._where = where

    def to_bytes(self) -> list[bytes]:
        """The strings as the file holds them, which need not be UTF-8."""
        return list(self._each())

    def to_strings(self) -> list[str]:
        """The strings. Raises `FileFormatError` where one is not UTF-8."""
        return list(self)

    def _each(self) -> Iterator[bytes]:
        encoded, offset, length_at = self._encoded, 0, _LENGTH.unpack_from
        for _ in range(self._count):
            end = offset + 8 + length_at(encoded, offset)[0]
            yield encoded[offset + 8 : end]
            offset = end

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        return self.to_strings()[index]

    def __iter__(self) -> Iterator[str]:
        try:
            for each in self._each():
                yield each.decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self._where} holds a string that is not UTF-8 ({error.object!r:.80}): "
                "the file is damaged or was written by a broken converter"
            ) from None

    def __repr__(self) -> str:
        return f"<StringArray of {self._count} in {self._where}>"


@dataclass(frozen=True)
class TensorRecord:
    """One row of the tensor table. `shape` is outermost first; `offset` counts from the data."""

    name: str
    gguf_type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensors' bytes, and where it ends.

    `fields` says where each metadata key's whole record (key, type, value) stands in the file.
    """

    version: int
    metadata: dict[str, object]
    fields: dict[str, slice]
    tensors: list[TensorRecord]
    end: int


def read_header(data: NDArray[np.uint8], path: Path) -> Header:
    """Reads the header of a whole GGUF file given as bytes.

    A metadata value is a `str`, `int`, `float` or `bool`; a numeric array is a numpy array of its
    own dtype, an array of strings a `StringArray`, an array of arrays a list of these.
    Raises `FileFormatError` for anything that is not a sound header of version 2 or 3.
    """
    return _HeaderReader(data, path).read()


class _HeaderReader:
    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._data = data.data
        self._path = path
        self._limit = min(len(data), MAX_HEADER_BYTES)
        self._offset = 0
        self._strings = 0
        self._arrays = 0

    def read(self) -> Header:
        version, tensor_count, key_count = self._preamble()
        metadata: dict[str, object] = {}
        fields: dict[str, slice] = {}
        for _ in range(key_count):
            start = self._offset
            key = self._text("a metadata key")
            if not key or key in metadata:
                self._fail(f"the metadata key {key!r:.80} is empty or appears twice")
            metadata[key] = self._value(self._integer("<I"), f"{key!r:.80}")
            fields[key] = slice(start, self._offset)
        tensors = [self._tensor() for _ in range(tensor_count)]
        return Header(version, metadata, fields, tensors, self._offset)

    def _preamble(self) -> tuple[int, int, int]:
        magic = bytes(self._data[:4])
        if magic != b"GGUF":
            raise FileFormatError(
                f"{self._path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'"
            )
        self._take(4)
        version = self._integer("<I")
        if version & 0xFFFF == 0 and version:
            raise FileFormatError(
                f"{self._path} is a big-endian GGUF file, and farthing reads little-endian ones: "
                "convert it with `gguf-convert-endian FILE little` from the gguf package"
            )
        if version not in (2, 3):
            raise FileFormatError(
                f"{self._path} is GGUF version {version}, and farthing reads versions 2 and 3: "
                "convert the model again with a current tool"
            )
        tensor_count, key_count = self._integer("<Q"), self._integer("<Q")
        for what, count, most in (
            ("tensors", tensor_count, MAX_TENSORS),
            ("metadata keys", key_count, MAX_KEYS),
        ):
            if count > most:
                self._fail(f"it claims {count} {what}, more than the {most} any model has")
        return version, tensor_count, key_count

    def _fail(self, problem: str) -> NoReturn:
        raise FileFormatError(
            f"{self._path}: {problem} (at byte {self._offset}); the file is damaged: fetch it again"
        )

    def _take(self, count: int) -> int:
        """Moves past `count` bytes and returns where they begin."""
        start = self._offset
        if count > self._limit - start:
            if self._limit < len(self._data):
                self._fail(f"its header claims more than {MAX_HEADER_BYTES} bytes")
            self._fail(f"{count} bytes are needed and the file ends after {self._limit - start}")
        self._offset = start + count
        return start

    def _integer(self, layout: str) -> int:
        start = self._take(struct.calcsize(layout))
        return int(struct.unpack_from(layout, self._data, start)[0])

    def _text(self, what: str) -> str:
        length = self._integer("<Q")
        start = self._take(length)
        try:
            return str(self._data[start : self._offset], "utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} is not UTF-8")

    def _value(self, kind: int, key: str) -> object:
        if kind == _STRING:
            return self._text(f"the value of {key}")
        if kind == _ARRAY:
            return self._array(key, 0)
        return self._numbers(kind, 1, key)[0].item()

    def _array(self, key: str, depth: int) -> object:
        self._arrays += 1
        if depth >= MAX_ARRAY_DEPTH or self._arrays > MAX_ARRAYS:
            self._fail(f"{key} nests arrays too deeply, or there are too many of them")
        kind, count = self._integer("<I"), self._integer("<Q")
        if kind == _STRING:
            return self._string_array(count, key)
        if kind == _ARRAY:
            if count > MAX_ARRAYS:
                self._fail(f"{key} claims {count} arrays")
            return [self._array(key, depth + 1) for _ in range(count)]
        return self._numbers(kind, count, key)

    def _string_array(self, count: int, key: str) -> StringArray:
        self._strings += count
        if self._strings > MAX_STRINGS:
            self._fail(f"{key} claims {count} strings, more than any vocabulary has")
        start = offset = self._offset
        last, data, length_at = self._limit - 8, self._data, _LENGTH.unpack_from
        for _ in range(count):
            if offset > last:
                self._fail(f"{key} claims {count} strings and the file ends before the last")
            offset += 8 + length_at(data, offset)[0]
        self._take(offset - start)
        return StringArray(bytes(data[start:offset]), count, f"{self._path}: {key}")

    def _numbers(self, kind: int, count: int, key: str) -> NDArray[np.generic]:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self._fail(f"{key} has a value of unknown type {kind}")
        start = self._take(count * dtype.itemsize)
        # Copied: values lie unaligned in the file, and the array outlives the mapping.
        array = np.frombuffer(self._data, np.uint8, count * dtype.itemsize, start).copy()
        if kind == _BOOL and bool(np.any(array > 1)):
            self._fail(f"{key} holds a boolean that is neither 0 nor 1")
        numbers = array.view(dtype)
        if dtype.kind == "f" and bool(np.isnan(numbers).any()):
            self._fail(f"{key} holds a NaN")
        return numbers

    def _tensor(self) -> TensorRecord:
        name = self._text("a tensor's name")
        if not name:
            self._fail("a tensor has no name")
        dimensions = self._integer("<I")
        if dimensions > MAX_DIMENSIONS:
            self._fail(f"tensor {name!r:.80} claims {dimensions} dimensions, the most is 4")
        # GGUF lists the innermost dimension first.
        shape = tuple(reversed([self._integer("<Q") for _ in range(dimensions)]))
        return TensorRecord(name, self._integer("<I"), shape, self._integer("<Q"))
