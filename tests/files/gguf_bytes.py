"""GGUF files written byte by byte, so that every field can lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

UINT8, UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
F32, Q8_0 = 0, 8


def string(text: bytes | str, length: int | None = None) -> bytes:
    """A GGUF string, of a claimed length that may be a lie."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: bytes | str, kind: int, value: bytes) -> bytes:
    """A metadata entry whose value is already bytes."""
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    """An array's value."""
    return struct.pack("<IQ", kind, count) + elements


@dataclass
class Tensor:
    """A row of the tensor table; `dims` innermost first, as the file has them."""

    name: bytes | str = "a"
    dims: tuple[int, ...] = (32, 2)
    kind: int = F32
    offset: int = 0
    dims_claimed: int | None = None

    def encoded(self) -> bytes:
        count = len(self.dims) if self.dims_claimed is None else self.dims_claimed
        return (
            string(self.name)
            + struct.pack("<I", count)
            + struct.pack(f"<{len(self.dims)}Q", *self.dims)
            + struct.pack("<IQ", self.kind, self.offset)
        )


@dataclass
class Model:
    """A whole file. By default sound: two tensors and some metadata of every kind."""

    pairs: list[bytes] = field(
        default_factory=lambda: [
            pair("general.architecture", STRING, string("llama")),
            pair("llama.block_count", UINT32, struct.pack("<I", 2)),
            pair("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, b"".join(map(string, "abc")))),
            pair("tokenizer.ggml.scores", ARRAY, array(FLOAT32, 3, struct.pack("<3f", 0, -1, -2))),
            pair("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        ]
    )
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(), Tensor("b", (32,), Q8_0, 256)])
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    data: bytes = bytes(256 + 34)
    alignment: int = 32

    def encoded(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        pairs = len(self.pairs) if self.pair_count is None else self.pair_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, pairs)
        head += b"".join(self.pairs) + b"".join(each.encoded() for each in self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data
