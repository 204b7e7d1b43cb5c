"""Damaged and hostile GGUF files: one clear error each, in little time and memory."""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FarthingError, FileFormatError, UnsupportedModelError
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_header import StringArray
from files.bounds import MEMORY, SECONDS, within_bounds
from files.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    Q8_0,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    Model,
    Tensor,
    array,
    pair,
    string,
)

HUGE = (1 << 63) - 1
SOUND = Model().encoded()


def read_all(path: Path) -> None:
    """Opens the file and reads every string in it."""
    for value in GGUFFile(path).metadata.values():
        if isinstance(value, StringArray):
            value.to_strings()


def open_bounded(path: Path) -> None:
    within_bounds(lambda: read_all(path))


def one(kind: int, value: bytes, key: bytes | str = "key") -> bytes:
    return Model(pairs=[pair(key, kind, value)]).encoded()


def tensors(*table: Tensor, data: int = 1024) -> bytes:
    return Model(tensors=list(table), data=bytes(data)).encoded()


def alignment(value: bytes, kind: int = UINT32) -> bytes:
    return one(kind, value, "general.alignment")


nested = array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(UINT8, 0)))))

ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "only the magic": (b"GGUF", "the file ends"),
    "wrong magic": (b"GGML" + SOUND[4:], "not a GGUF file"),
    "a text file": (b"hello, I am a model", "not a GGUF file"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (Model(version=1).encoded(), "version 1"),
    "version 4": (Model(version=4).encoded(), "version 4"),
    "version 0": (Model(version=0).encoded(), "version 0"),
    "tensor count huge": (Model(tensor_count=HUGE).encoded(), f"claims {HUGE} tensors"),
    "tensor count of one more": (Model(tensor_count=3).encoded(), "damaged"),
    "pair count huge": (Model(pair_count=HUGE).encoded(), f"claims {HUGE} metadata keys"),
    "pair count of one more": (Model(pair_count=6).encoded(), "damaged"),
    "key length huge": (Model(pairs=[string("key", HUGE)]).encoded(), "bytes are needed"),
    "key length of all 64 bits": (Model(pairs=[string("k", 2**64 - 1)]).encoded(), "needed"),
    "key empty": (one(UINT8, b"\1", ""), "empty or appears twice"),
    "key twice": (Model(pairs=[pair("k", UINT8, b"\1")] * 2).encoded(), "'k' is empty or appears"),
    "key not UTF-8": (one(UINT8, b"\1", b"\xff"), "not UTF-8"),
    "value type unknown": (one(99, b"\1"), "unknown type 99"),
    "value not UTF-8": (one(STRING, string(b"\xc3\x28")), "'key' is not UTF-8"),
    "value length huge": (one(STRING, string("v", HUGE)), "bytes are needed"),
    "boolean of two": (one(BOOL, b"\2"), "neither 0 nor 1"),
    "float NaN": (one(FLOAT32, struct.pack("<f", float("nan"))), "'key' holds a NaN"),
    "NaN in an array": (one(ARRAY, array(FLOAT32, 1, b"\0\0\xc0\xff")), "holds a NaN"),
    "array count huge": (one(ARRAY, array(UINT8, HUGE)), "bytes are needed"),
    "array count times size past 64 bits": (one(ARRAY, array(UINT64, 1 << 61)), "are needed"),
    "array type unknown": (one(ARRAY, array(77, 1, b"\0")), "unknown type 77"),
    "string array count huge": (one(ARRAY, array(STRING, HUGE)), "more than any vocabulary"),
    "string array cut short": (one(ARRAY, array(STRING, 1 << 20, string("a"))), "before the last"),
    "string in an array huge": (one(ARRAY, array(STRING, 1, string("", HUGE))), "are needed"),
    "array of arrays huge": (one(ARRAY, array(ARRAY, HUGE)), "claims .* arrays"),
    "arrays nested too deeply": (one(ARRAY, nested), "nests arrays too deeply"),
    "arrays of arrays without end": (
        one(ARRAY, array(ARRAY, 1 << 16, array(UINT8, 0) * (1 << 16))),
        "too many of them",
    ),
    "alignment 0": (alignment(bytes(4)), "power of two"),
    "alignment 24": (alignment(struct.pack("<I", 24)), "power of two"),
    "alignment a string": (alignment(string("32"), STRING), "power of two"),
    "alignment huge": (alignment(struct.pack("<I", 1 << 31)), "truncated"),
    "tensor name twice": (tensors(Tensor("a"), Tensor("a", offset=256)), "'a' appears twice"),
    "tensor name huge": (tensors(Tensor(b"n" * (33 << 20))), "header claims more than"),
    "tensor name not UTF-8": (tensors(Tensor(b"\xff")), "not UTF-8"),
    "tensor type retired": (tensors(Tensor(kind=4)), "Q4_2, which GGUF retired"),
    "tensor type unknown": (tensors(Tensor(kind=999)), "type 999, unknown"),
    "five dimensions": (tensors(Tensor(dims=(1, 1, 1, 1, 1))), "claims 5 dimensions"),
    "dimensions huge": (tensors(Tensor(dims_claimed=0xFFFFFFFF)), "claims 4294967295 dim"),
    "dimension 0": (tensors(Tensor(dims=(32, 0))), "cannot be stored"),
    "dimensions past 64 bits": (tensors(Tensor(dims=(1 << 40, 1 << 40))), "cannot be stored"),
    "dimensions that wrap to 0": (tensors(Tensor(dims=(1 << 32, 1 << 32))), "cannot be stored"),
    "dimension of all 64 bits": (tensors(Tensor(dims=(2**64 - 1,))), "cannot be stored"),
    "row of half a block": (tensors(Tensor(dims=(48,), kind=Q8_0)), "blocks of 32"),
    "offset past the end": (tensors(Tensor(offset=1 << 20)), "truncated"),
    "offset of all 64 bits": (tensors(Tensor(offset=2**64 - 32)), "truncated"),
    "offset unaligned": (tensors(Tensor(offset=8)), "no multiple of the alignment 32"),
    "same offset": (tensors(Tensor("a"), Tensor("b")), "'a' and 'b' overlap"),
    "overlap by a block": (tensors(Tensor("a"), Tensor("b", offset=224)), "overlap"),
    "overlap out of order": (tensors(Tensor("a", offset=32), Tensor("b")), "overlap"),
    "split without its shards": (
        Model(pairs=[pair("split.count", UINT32, struct.pack("<I", 3))]).encoded(),
        "part of 3",
    ),
    "control characters in a name": (tensors(Tensor("\x1b[2J", kind=999)), r"\\x1b\[2J"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_file_is_one_clear_error(attack: str, tmp_path: Path) -> None:
    content, message = ATTACKS[attack]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(FarthingError, match=message) as caught:
        open_bounded(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_file_that_the_attacks_are_made_from_is_sound(tmp_path: Path) -> None:
    (tmp_path / "sound.gguf").write_bytes(SOUND)
    open_bounded(tmp_path / "sound.gguf")


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for length in range(len(SOUND)):
        path.write_bytes(SOUND[:length])
        with pytest.raises(FileFormatError):
            GGUFFile(path)


def test_an_unknown_tensor_type_is_unsupported_rather_than_damaged(tmp_path: Path) -> None:
    (tmp_path / "new.gguf").write_bytes(tensors(Tensor(kind=999)))
    with pytest.raises(UnsupportedModelError, match="type 999"):
        GGUFFile(tmp_path / "new.gguf")


LARGEST = {
    "empty strings": one(ARRAY, array(STRING, 1 << 21, bytes(8) * (1 << 21))),
    "short strings": one(ARRAY, array(STRING, 1 << 21, string("ab") * (1 << 21))),
    "one long wide string": one(STRING, string("a" * (31 << 20) + "😀")),
    "one long array": one(ARRAY, array(UINT8, 31 << 20, bytes(31 << 20))),
    "keys and tensors": Model(
        pairs=[pair(f"{n}", STRING, string("")) for n in range(1 << 16)],
        tensors=[Tensor(f"{n}", (1,), F32, 32 * n) for n in range(1 << 16)],
        data=bytes(32 << 16),
    ).encoded(),
}
# The tracer would take most of the time here, so a process of its own is measured as a whole.
# (`ru_maxrss` would begin at the parent's; VmHWM is this process's own.)
MEASURE = """
import re, sys, time
from pathlib import Path
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_header import StringArray

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before, began = peak(), time.process_time()
file = GGUFFile(sys.argv[1])
for value in file.metadata.values():
    if isinstance(value, StringArray):
        value.to_strings()
print(peak() - before, time.process_time() - began)
"""


@pytest.mark.parametrize("shape", LARGEST)
def test_the_largest_headers_that_are_accepted_stay_within_the_bounds(
    shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(LARGEST[shape])
    answer = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, check=True, text=True
    )
    memory, seconds = map(float, answer.stdout.split())
    # The mapped file itself is not extra memory.
    assert memory - path.stat().st_size < MEMORY
    assert seconds < SECONDS


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(FileFormatError, match="is not a file"):
            GGUFFile(path)
    with pytest.raises(FileFormatError, match="no file"):
        GGUFFile(tmp_path / "absent.gguf")


@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(["flip", "insert", "delete", "huge"]),
            st.integers(0, len(SOUND) - 1),
            st.integers(1, 255),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_mutated_file_opens_or_is_a_farthing_error(
    edits: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(SOUND)
    for kind, position, value in edits:
        position %= max(1, len(content))
        if kind == "flip":
            content[position : position + 1] = bytes([content[position] ^ value])
        elif kind == "insert":
            content[position:position] = bytes([value])
        elif kind == "delete":
            del content[position : position + value]
        else:
            content[position : position + 8] = struct.pack("<Q", HUGE - value)
        content = content or bytearray(b"G")
    path = tmp_path_factory.mktemp("mutated") / "m.gguf"
    path.write_bytes(content)
    with suppress(FarthingError):
        open_bounded(path)
