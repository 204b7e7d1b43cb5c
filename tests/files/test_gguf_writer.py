"""Written GGUF files against the `gguf` package's reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

import tiny
from farthing.core import FileFormatError
from farthing.files.formats import GGUF_FORMATS, stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_writer import (
    flag_field,
    float_field,
    floats_field,
    integers_field,
    lay_gguf,
    metadata_of,
    number_field,
    read_fields,
    rewrite_text,
    text_field,
    texts_field,
)
from farthing.files.writing import TensorPlan, write_laid

if TYPE_CHECKING:
    from pathlib import Path


def content(plan: TensorPlan) -> np.ndarray:
    return np.random.default_rng(plan.bytes).integers(0, 256, plan.bytes, dtype=np.uint8)


def planned(name: str, format_name: str, shape: tuple[int, ...]) -> TensorPlan:
    return TensorPlan(name, format_name, shape, stored_bytes(format_name, shape))


PLANS = [
    planned("norm", "F32", (7,)),
    planned("q", "Q4_0", (3, 64)),
    planned("k", "Q6_K", (2, 512)),
    planned("three", "F16", (2, 3, 5)),
    planned("é", "BF16", (1, 1)),
]
FIELDS = {
    "general.architecture": text_field("general.architecture", "llama"),
    "general.file_type": number_field("general.file_type", 2),
}


def written(path: Path, fields: dict[str, bytes] = FIELDS) -> Path:
    write_laid(path, lay_gguf(fields, PLANS), lambda plan: np.array_split(content(plan), 3))
    return path


def test_the_package_reads_every_kind_of_record(tmp_path: Path) -> None:
    values = {
        "float": float_field("float", 0.1),
        "flag": flag_field("flag", True),
        "texts": texts_field("texts", ["", "a", "\u00e9 \u2581"]),
        "floats": floats_field("floats", [0.0, -3.0, 0.1]),
        "integers": integers_field("integers", [1, -7]),
    }
    path = written(tmp_path / "m.gguf", {**FIELDS, **values})
    reader, ours = gguf.GGUFReader(path), metadata_of({**FIELDS, **values}, path)
    for key, value in (
        ("float", float(np.float32(0.1))),
        ("flag", True),
        ("texts", ["", "a", "\u00e9 \u2581"]),
        ("floats", [0.0, -3.0, float(np.float32(0.1))]),
        ("integers", [1, -7]),
    ):
        assert reader.fields[key].contents() == value
        assert np.asarray(ours[key]).tolist() == value
        assert type(GGUFFile(path).metadata[key]) is type(ours[key])


def test_the_package_reads_what_was_written(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(written(tmp_path / "m.gguf"))
    assert reader.fields["general.architecture"].contents() == "llama"
    assert reader.fields["general.file_type"].contents() == 2
    assert reader.fields["general.file_type"].types == [gguf.GGUFValueType.UINT32]
    assert [tensor.name for tensor in reader.tensors] == [plan.name for plan in PLANS]
    for tensor, plan in zip(reader.tensors, PLANS, strict=True):
        assert tensor.tensor_type.name == plan.format
        assert tuple(reversed(tensor.shape.tolist())) == plan.shape
        assert tensor.data.tobytes() == content(plan).tobytes()
        assert tensor.data_offset % 32 == 0


def test_our_reader_reads_what_was_written(tmp_path: Path) -> None:
    file = GGUFFile(written(tmp_path / "m.gguf"))
    assert file.metadata == {"general.architecture": "llama", "general.file_type": 2}
    assert [(t.name, t.format, t.shape) for t in file.tensors.values()] == [
        (plan.name, plan.format, plan.shape) for plan in PLANS
    ]
    for plan in PLANS:
        np.testing.assert_array_equal(file.tensors[plan.name].data, content(plan))


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_metadata_taken_over_is_every_key_with_its_type_and_value(
    family: str, tmp_path: Path
) -> None:
    source = tiny.shared(family)
    written(tmp_path / "m.gguf", read_fields(source))
    ours, theirs = gguf.GGUFReader(tmp_path / "m.gguf"), gguf.GGUFReader(source)
    own = {"GGUF.tensor_count", "GGUF.kv_count", "GGUF.version"}
    assert ours.fields.keys() == theirs.fields.keys()
    assert len(ours.fields) > 20
    for key in ours.fields.keys() - own:
        assert ours.fields[key].types == theirs.fields[key].types
        assert ours.fields[key].contents() == theirs.fields[key].contents()


def test_the_fields_of_a_real_file_are_its_bytes(smollm2_path: Path) -> None:
    fields = read_fields(smollm2_path)
    assert list(fields) == list(GGUFFile(smollm2_path).metadata)
    with smollm2_path.open("rb") as file:
        assert file.read(24 + sum(map(len, fields.values())))[24:] == b"".join(fields.values())


def test_a_description_without_tensors_is_a_sound_file(tmp_path: Path) -> None:
    write_laid(tmp_path / "d.gguf", lay_gguf(FIELDS, []), lambda plan: [])
    assert not GGUFFile(tmp_path / "d.gguf").tensors
    assert not gguf.GGUFReader(tmp_path / "d.gguf").tensors


def test_fields_of_a_damaged_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FileFormatError):
        read_fields(path)


def test_every_format_of_ggufs_can_be_written(tmp_path: Path) -> None:
    plans = [planned(name, name, (2, 256)) for name in GGUF_FORMATS]
    write_laid(tmp_path / "m.gguf", lay_gguf(FIELDS, plans), lambda plan: [content(plan)])
    found = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert found == {name: name for name in GGUF_FORMATS}


# --- a string given another value in place


def test_a_string_takes_another_value_and_nothing_else_changes(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", {**FIELDS, "note": text_field("note", " " * 40)})
    before = path.read_bytes()
    rewrite_text(path, "note", "é is two bytes")
    file = GGUFFile(path)
    assert file.metadata["note"] == "é is two bytes".ljust(39)
    assert file.metadata["general.architecture"] == "llama"
    after = path.read_bytes()
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert max(changed) - min(changed) < 15
    rewrite_text(path, "note", "")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("note", "é" * 21, "takes 42 bytes and has 40"),
        ("absent", "", "no string absent"),
        ("general.file_type", "", "no string general.file_type"),
    ],
)
def test_a_value_that_has_no_room_is_refused(
    key: str, value: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "m.gguf", {**FIELDS, "note": text_field("note", " " * 40)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        rewrite_text(path, key, value)
    assert path.read_bytes() == before
