"""A folder that a description.gguf describes: the file's metadata with the folder's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.core import FileFormatError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_writer import lay_gguf, read_fields
from farthing.files.safetensors_writer import lay_safetensors
from farthing.files.writing import TensorPlan, write_laid

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = GGUFFile(tiny.shared("llama"))
    plans = [TensorPlan(t.name, t.format, t.shape, t.data.nbytes) for t in source.tensors.values()]
    write_laid(
        tmp_path / "model.safetensors",
        lay_safetensors(plans),
        lambda plan: [source.tensors[plan.name].data],
    )
    write_laid(
        tmp_path / "description.gguf", lay_gguf(read_fields(source.path), []), lambda plan: []
    )
    return tmp_path


def test_it_opens_as_the_gguf_file_it_came_from(folder: Path) -> None:
    with open_checkpoint(folder) as found, GGUFFile(tiny.shared("llama")) as source:
        assert isinstance(found, GGUFFile)
        assert found.metadata.keys() == source.metadata.keys()
        assert found.tensors.keys() == source.tensors.keys()
        for name, tensor in source.tensors.items():
            np.testing.assert_array_equal(found.tensors[name].data, tensor.data)
            assert found.tensors[name].shape == tensor.shape
            assert found.tensors[name].format == tensor.format


def test_a_description_that_holds_tensors_itself_is_refused(folder: Path) -> None:
    (folder / "description.gguf").write_bytes(tiny.shared("llama").read_bytes())
    with pytest.raises(FileFormatError, match=r"description\.gguf holds tensors"):
        open_checkpoint(folder)


def test_a_description_without_weights_beside_it_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"neither model\.safetensors"):
        open_checkpoint(folder)


def test_a_damaged_description_is_refused_by_name(folder: Path) -> None:
    path = folder / "description.gguf"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileFormatError, match=r"description\.gguf"):
        open_checkpoint(folder)
