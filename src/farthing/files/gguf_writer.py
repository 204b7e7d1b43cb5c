"""Writing GGUF, version 3. `gguf_header.py` states the layout.

Metadata is a mapping from keys to whole records as bytes. Those of another file are taken over as
they stand, so that nothing of them is lost: a reader cannot tell a u32 from an i64 again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from farthing.files.formats import GGUF_FORMATS
from farthing.files.gguf import map_file
from farthing.files.gguf_header import read_header
from farthing.files.writing import write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from farthing.files.writing import Pieces, TensorPlan

ALIGNMENT = 32
"""What a reader assumes where `general.alignment` is not given."""

_VERSION = 3
_U32, _STRING = 4, 8


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


def write_gguf(
    path: Path, fields: Mapping[str, bytes], plans: Sequence[TensorPlan], pieces: Pieces
) -> None:
    """Writes a GGUF file of these tensors, in this order.

    `fields` must not hold `general.alignment`: tensors are aligned to 32 bytes, the default.
    Raises `KeyError` for a format that GGUF does not have, and `OSError` as writing does.
    """
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", _VERSION, len(plans), len(fields)))
        for record in fields.values():
            file.write(record)
        offset = 0
        for plan in plans:
            # GGUF lists the innermost dimension first.
            lengths = struct.pack(f"<I{len(plan.shape)}Q", len(plan.shape), *reversed(plan.shape))
            place = struct.pack("<IQ", GGUF_FORMATS[plan.format].gguf_type, offset)
            file.write(_text(plan.name) + lengths + place)
            offset += plan.bytes + -plan.bytes % ALIGNMENT
        file.write(bytes(-file.tell() % ALIGNMENT))
        write_tensors(file, plans, pieces, ALIGNMENT)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
