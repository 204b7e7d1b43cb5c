"""Weights in farthing's formats inside safetensors: read as they were written, or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from farthing.core import FarthingError, FileFormatError, UnsupportedModelError
from farthing.files.formats import STORAGE_FORMATS, stored_bytes
from farthing.files.safetensors import SafetensorsFolder
from farthing.files.safetensors_writer import lay_safetensors
from farthing.files.writing import TensorPlan, write_laid
from farthing.quant.formats import FORMATS, decode
from files.bounds import within_bounds

if TYPE_CHECKING:
    from pathlib import Path

SINGLE = "model.safetensors"


def content(plan: TensorPlan) -> np.ndarray:
    """Bytes that are a function of the tensor's name."""
    return np.random.default_rng(len(plan.name)).integers(0, 256, plan.bytes, dtype=np.uint8)


def planned(name: str, format_name: str, shape: tuple[int, ...], size: int = -1) -> TensorPlan:
    size = stored_bytes(format_name, shape) if size < 0 else size
    return TensorPlan(name, format_name, shape, size)


PLANS = [
    planned("codes", "INT4_G128", (5, 300)),
    planned("norm", "F32", (7,)),
    planned("asymmetric", "INT4_G32_ASYM", (3, 70)),
    planned("blocks", "Q4_K", (2, 512)),
    planned("half", "BF16", (3, 5)),
    planned("scalar", "F32", ()),
    planned("flags", "BOOL", (3,), 3),
    planned("ids", "I64", (2,)),
]


def make_folder(folder: Path, plans: list[TensorPlan] = PLANS) -> Path:
    write_laid(folder / SINGLE, lay_safetensors(plans), lambda plan: [content(plan)])
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def test_what_was_written_is_read_back_bit_for_bit_in_its_format(tmp_path: Path) -> None:
    tensors = SafetensorsFolder(make_folder(tmp_path)).tensors
    assert set(tensors) == {plan.name for plan in PLANS}
    for plan in PLANS:
        tensor = tensors[plan.name]
        assert (tensor.format, tensor.shape) == (plan.format, plan.shape)
        np.testing.assert_array_equal(tensor.data, content(plan))
        assert not tensor.data.flags.owndata


def test_the_library_reads_the_file_and_sees_rows_of_bytes(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with safe_open(tmp_path / SINGLE, "numpy") as library:
        assert library.metadata()["format"] == "pt"
        assert library.get_slice("codes").get_dtype() == "U8"
        for plan in PLANS:
            if plan.format == "BF16":
                continue  # numpy has no such dtype
            found = library.get_tensor(plan.name)
            assert found.tobytes() == content(plan).tobytes()
        assert library.get_tensor("codes").shape == (5, 150 + 2 * 3)
        assert library.get_tensor("norm").shape == (7,)


def test_every_tensor_lies_at_a_multiple_of_its_items_size(tmp_path: Path) -> None:
    tensors = SafetensorsFolder(make_folder(tmp_path)).tensors
    base = np.memmap(tmp_path / SINGLE, np.uint8, "r")
    whole = base.tobytes()
    for name, size in (("ids", 8), ("norm", 4), ("scalar", 4), ("half", 2)):
        assert whole.find(tensors[name].data.tobytes()) % size == 0


def test_tensors_may_come_in_any_number_of_pieces(tmp_path: Path) -> None:
    (tmp_path / "pieces").mkdir()
    write_laid(
        tmp_path / "pieces" / SINGLE,
        lay_safetensors(PLANS),
        lambda plan: np.array_split(content(plan), 7),
    )
    make_folder(tmp_path)
    assert (tmp_path / "pieces" / SINGLE).read_bytes() == (tmp_path / SINGLE).read_bytes()


def test_a_tensor_of_another_size_than_planned_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"codes: 779 bytes were given and 780 planned"):
        write_laid(tmp_path / SINGLE, lay_safetensors(PLANS[:1]), lambda plan: [content(plan)[1:]])


def test_a_file_without_packed_tensors_says_nothing_of_farthing(tmp_path: Path) -> None:
    make_folder(tmp_path, [planned("norm", "F32", (7,))])
    with safe_open(tmp_path / SINGLE, "numpy") as library:
        assert library.metadata() == {"format": "pt"}


@given(
    name=st.sampled_from([name for name in FORMATS if name not in ("F32", "F16", "BF16")]),
    outputs=st.integers(1, 4),
    blocks=st.integers(1, 3),
)
def test_every_readable_format_can_be_carried(
    name: str, outputs: int, blocks: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = planned("weight", name, (outputs, blocks * 256))
    folder = make_folder(tmp_path_factory.mktemp("carried"), [plan])
    tensor = SafetensorsFolder(folder).tensors["weight"]
    assert decode(tensor).shape == (outputs, blocks * 256)


# --- claims that do not fit the bytes

ROWS = {"codes": np.zeros((5, 156), np.uint8), "norm": np.zeros(7, np.float32)}
SOUND: dict[str, Any] = {"codes": {"format": "INT4_G128", "shape": [5, 300]}}


def claim(folder: Path, formats: object, version: str | None = "1", raw: str | None = None) -> Path:
    """A folder whose metadata says this of its tensors; `raw` in place of JSON."""
    metadata = {"farthing.formats": json.dumps(formats) if raw is None else raw}
    if version is not None:
        metadata["farthing.version"] = version
    save_file(ROWS, folder / SINGLE, metadata)
    (folder / "config.json").write_text("{}")
    return folder


def changed(**fields: object) -> dict[str, Any]:
    return {"codes": {**SOUND["codes"], **fields}}


DAMAGED: dict[str, object] = {
    "a list": [],
    "a tensor that is not there": {"other": SOUND["codes"]},
    "more than is there": {**SOUND, "other": SOUND["codes"]},
    "no object": {"codes": "INT4_G128"},
    "no format": {"codes": {"shape": [5, 300]}},
    "no shape": {"codes": {"format": "INT4_G128"}},
    "format a number": changed(format=4),
    "shape a number": changed(shape=300),
    "one length": changed(shape=[300]),
    "three lengths": changed(shape=[5, 300, 1]),
    "a length of zero": changed(shape=[5, 0]),
    "a negative length": changed(shape=[-5, 300]),
    "a fraction": changed(shape=[5, 300.0]),
    "a truth value": changed(shape=[True, 300]),
    "another number of rows": changed(shape=[4, 300]),
    "longer rows": changed(shape=[5, 301]),
    "rows of another format": changed(format="INT4_G64"),
    "rows that blocks do not divide": changed(format="Q4_K"),
    "a huge length": changed(shape=[5, 10**3000]),
    "rows of floats": {**SOUND, "norm": {"format": "INT8_ROW", "shape": [7, 24]}},
}


def test_the_sound_claim_is_believed(tmp_path: Path) -> None:
    tensor = SafetensorsFolder(claim(tmp_path, SOUND)).tensors["codes"]
    assert (tensor.format, tensor.shape) == ("INT4_G128", (5, 300))


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_claim_that_does_not_fit_the_bytes_is_refused(damage: str, tmp_path: Path) -> None:
    claim(tmp_path, DAMAGED[damage])
    with pytest.raises(FileFormatError) as caught:
        within_bounds(lambda: SafetensorsFolder(tmp_path))
    assert str(tmp_path / SINGLE) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "raw",
    ["", "{", "null", '{"codes": NaN}', "[" * 200_000, "1" * 10_000, " " * (5 << 20)],
    ids=["empty", "cut", "null", "NaN", "nested", "a huge number", "5 MB of nothing"],
)
def test_claims_that_are_no_json_object_are_refused(raw: str, tmp_path: Path) -> None:
    claim(tmp_path, None, raw=raw)
    with pytest.raises(FileFormatError, match=r"farthing\.formats"):
        within_bounds(lambda: SafetensorsFolder(tmp_path))


@pytest.mark.parametrize("version", ["2", "", None])
def test_another_version_of_the_claims_is_unsupported(version: str | None, tmp_path: Path) -> None:
    claim(tmp_path, SOUND, version=version)
    with pytest.raises(UnsupportedModelError, match="newer farthing"):
        SafetensorsFolder(tmp_path)


def test_a_format_of_a_later_farthing_is_unsupported_by_name(tmp_path: Path) -> None:
    claim(tmp_path, changed(format="INT3_ROW"))
    with pytest.raises(UnsupportedModelError, match="'codes'.*'INT3_ROW'"):
        SafetensorsFolder(tmp_path)


@given(
    format_name=st.one_of(st.sampled_from(list(STORAGE_FORMATS)), st.text(max_size=9)),
    shape=st.lists(st.one_of(st.integers(-3, 400), st.integers()), max_size=3),
)
def test_any_claim_is_believed_only_where_it_fits(
    format_name: str, shape: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = claim(tmp_path_factory.mktemp("any"), changed(format=format_name, shape=shape))
    try:
        tensor = SafetensorsFolder(folder).tensors["codes"]
    except FarthingError:
        return
    assert stored_bytes(tensor.format, tensor.shape) == tensor.data.nbytes
    assert list(tensor.shape) == shape
