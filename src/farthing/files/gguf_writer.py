"""Writing GGUF, version 3. `gguf_header.py` states the layout.

Metadata is a mapping from keys to whole records as bytes. Those of another file are taken over as
they stand, so that nothing of them is lost: a reader cannot tell a u32 from an i64 again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError
from farthing.files.formats import GGUF_FORMATS
from farthing.files.gguf import map_file
from farthing.files.gguf_header import read_header
from farthing.files.writing import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from farthing.files.writing import TensorPlan

ALIGNMENT = 32
"""What a reader assumes where `general.alignment` is not given."""

_VERSION = 3
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def read_fields(path: Path) -> dict[str, bytes]:
    """The metadata of a GGUF file (of a split one, its first shard), each record as it stands.

    Raises `FileFormatError` for a file that is not sound.
    """
    data = map_file(path)
    return {key: data[place].tobytes() for key, place in read_header(data, path).fields.items()}


def number_field(key: str, value: int) -> bytes:
    """A record of type u32."""
    return _text(key) + struct.pack("<II", _U32, value)


def text_field(key: str, value: str) -> bytes:
    """A record of type string."""
    return _text(key) + struct.pack("<I", _STRING) + _text(value)


def float_field(key: str, value: float) -> bytes:
    """A record of type f32."""
    return _text(key) + struct.pack("<If", _F32, value)


def flag_field(key: str, value: bool) -> bytes:
    """A record of type bool."""
    return _text(key) + struct.pack("<I?", _BOOL, value)


def texts_field(key: str, values: Sequence[str]) -> bytes:
    """A record that is an array of strings."""
    head = struct.pack("<IIQ", _ARRAY, _STRING, len(values))
    return _text(key) + head + b"".join(map(_text, values))


def floats_field(key: str, values: Sequence[float]) -> bytes:
    """A record that is an array of f32."""
    head = struct.pack("<IIQ", _ARRAY, _F32, len(values))
    return _text(key) + head + np.asarray(values, "<f4").tobytes()


def integers_field(key: str, values: Sequence[int]) -> bytes:
    """A record that is an array of i32."""
    head = struct.pack("<IIQ", _ARRAY, _I32, len(values))
    return _text(key) + head + np.asarray(values, "<i4").tobytes()


def metadata_of(fields: Mapping[str, bytes], where: Path) -> dict[str, object]:
    """The values of records as a reader of the file sees them; `where` is the file's path.

    Raises `FileFormatError` for more than a reader takes.
    """
    header = lay_gguf(fields, []).header
    return read_header(np.frombuffer(header, np.uint8), where).metadata


def lay_gguf(fields: Mapping[str, bytes], plans: Sequence[TensorPlan]) -> Layout:
    """A GGUF file of these tensors, in this order.

    `fields` must not hold `general.alignment`: tensors are aligned to 32 bytes, the default.
    Raises `KeyError` for a format that GGUF does not have.
    """
    header = bytearray(struct.pack("<4sIQQ", b"GGUF", _VERSION, len(plans), len(fields)))
    for record in fields.values():
        header += record
    offsets: dict[TensorPlan, int] = {}
    end = 0
    for plan in plans:
        offsets[plan] = end
        # GGUF lists the innermost dimension first.
        lengths = struct.pack(f"<I{len(plan.shape)}Q", len(plan.shape), *reversed(plan.shape))
        place = struct.pack("<IQ", GGUF_FORMATS[plan.format].gguf_type, end)
        header += _text(plan.name) + lengths + place
        end += plan.bytes + -plan.bytes % ALIGNMENT
    header += bytes(-len(header) % ALIGNMENT)
    places = {plan: len(header) + offset for plan, offset in offsets.items()}
    return Layout(bytes(header), places, len(header) + end)


def rewrite_text(path: Path, key: str, value: str) -> None:
    """Gives the string `key` of a GGUF file another value, in place, filled up with spaces.

    Raises `ValueError` when the file has no such string or the value is longer than what stands
    there, in bytes of UTF-8, and `OSError` as writing does.
    """
    data = map_file(path)
    place = read_header(data, path).fields.get(key)
    start = len(_text(key)) + 4 + 8
    before = b"" if place is None else data[place].tobytes()
    if place is None or before[:start] != text_field(key, " " * (len(before) - start))[:start]:
        raise ValueError(f"{path} has no string {key}")
    encoded = value.encode()
    if len(encoded) > len(before) - start:
        raise ValueError(f"{key} takes {len(encoded)} bytes and has {len(before) - start}")
    with path.open("r+b") as file:
        file.seek(place.start + start)
        file.write(encoded.ljust(len(before) - start))


def _text(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise FileFormatError(
            f"a GGUF file cannot hold the text {text!r:.60}, which is not valid Unicode: rename "
            "the model's folder or file, or correct the settings that say so"
        ) from None
    return struct.pack("<Q", len(encoded)) + encoded
