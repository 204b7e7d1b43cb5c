"""A student begins as its teacher's layers, in a folder that anything can load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.core import FarthingError, RequestError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_writer import lay_gguf, text_field
from farthing.files.writing import TensorPlan, write_laid
from farthing.forge.container import metadata_fields
from farthing.forge.quantize import quantize
from farthing.forge.receipt import ReceiptWish
from farthing.forge.student import (
    StudentShape,
    check_teacher,
    spread_layers,
    weights_of_teacher,
    write_student,
)
from farthing.forge.wish import Wish
from farthing.models.load import load_model
from farthing.quant.formats import decode
from farthing.text.load import load_tokenizer
from native_steps import logits_of, model_at, native

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.models.load import Model


def made(source: Path, folder: Path, shape: StudentShape, scheme: str = "F32") -> Model:
    with open_checkpoint(source) as checkpoint:
        teacher = load_model(checkpoint)
        weights = weights_of_teacher(teacher, shape)
        write_student(folder, checkpoint, teacher, shape, weights, "a part of it", scheme)
    return model_at(folder)


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_of_all_layers_is_the_teacher_to_the_bit(
    tmp_path: Path, family: str, form: str
) -> None:
    """So orders of rows, offsets of gains, biases and rope are as the teacher's file has them."""
    teacher = model_at(tiny.shared(family, form))
    student = made(
        tiny.shared(family, form),
        tmp_path / "s",
        StudentShape(tuple(range(teacher.config.layers))),
    )
    assert student.program == teacher.program
    found = []
    for model in (teacher, student):
        backend = native(model)
        found.append(logits_of(backend, tiny.token_ids(20)))
        backend.close()
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_its_weights_are_those_of_the_layers_it_was_made_of(
    tmp_path: Path, family: str, form: str
) -> None:
    source = tiny.shared(family, form)
    teacher = model_at(source)
    last = teacher.config.layers - 1
    student = made(source, tmp_path / "s", StudentShape((0, last), (1, 5, 260)))
    assert student.config.layers == 2
    for name in student.program.weights:
        theirs = name.replace("layers.1.", f"layers.{last}.")
        if name == "head.weight":
            wanted = decode(teacher.tensors["embedding.weight"])[[1, 5, 260]]
        else:
            wanted = decode(teacher.tensors[theirs])
        np.testing.assert_array_equal(decode(student.tensors[name]), wanted)
    with open_checkpoint(tmp_path / "s") as checkpoint, open_checkpoint(source) as other:
        ours, others = load_tokenizer(checkpoint), load_tokenizer(other)
        assert ours.encode("the <b> text") == others.encode("the <b> text")


def test_a_teacher_of_few_bits_is_decoded(tmp_path: Path) -> None:
    source = tiny.build("llama", tmp_path, quant="Q4_1")
    teacher = model_at(source)
    student = made(source, tmp_path / "s", StudentShape((1,)))
    assert set(student.formats.values()) == {"F32"}
    np.testing.assert_array_equal(
        decode(student.tensors["layers.0.query.weight"]),
        decode(teacher.tensors["layers.1.query.weight"]),
    )


@pytest.mark.parametrize("scheme", ["INT8_ROW", "BF16", "Q8_0", "Q4_K"])
def test_matrices_are_stored_in_the_scheme(tmp_path: Path, scheme: str) -> None:
    student = made(tiny.shared("llama"), tmp_path / "s", StudentShape((0,), (4, 9)), scheme)
    matrices = {
        student.formats[name]
        for name, weight in student.program.weights.items()
        if len(weight.shape) == 2
    }
    # Rows of 64 are no whole blocks of 256.
    assert matrices == {{"Q4_K": "Q5_0"}.get(scheme, scheme)}


def test_a_draft_can_be_quantised_again(tmp_path: Path) -> None:
    made(tiny.shared("llama"), tmp_path / "s", StudentShape((0,), (4, 9)))
    with open_checkpoint(tmp_path / "s") as checkpoint:
        quantize(checkpoint, tmp_path / "q", Wish("INT4_G32"))
    again = model_at(tmp_path / "q")
    assert again.program.ops[-1].attributes["columns"] == (4, 9)


def test_what_a_draft_lost_cannot_be_measured(tmp_path: Path) -> None:
    made(tiny.shared("llama"), tmp_path / "s", StudentShape((0,), (4, 9)))
    with (
        open_checkpoint(tmp_path / "s") as checkpoint,
        pytest.raises(RequestError, match="a draft with a head over some of its vocabulary"),
    ):
        quantize(checkpoint, tmp_path / "q", Wish("INT4_G32", receipt=ReceiptWish()))


def test_a_folder_that_lists_the_kinds_of_its_layers_lists_those_that_are_left(
    tmp_path: Path,
) -> None:
    made(tiny.shared("gemma3", "safetensors"), tmp_path / "s", StudentShape((0, 5)))
    config = json.loads((tmp_path / "s" / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["num_hidden_layers"] == 2


def test_a_part_of_a_model_has_another_name_and_no_size_of_the_whole(tmp_path: Path) -> None:
    source = tmp_path / "teacher.gguf"
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        assert isinstance(checkpoint, GGUFFile)
        fields = metadata_fields(checkpoint)
        fields["general.size_label"] = text_field("general.size_label", "135M")
        tensors = checkpoint.tensors.values()
        plans = {TensorPlan(t.name, t.format, t.shape, t.data.nbytes): t.data for t in tensors}
        write_laid(source, lay_gguf(fields, [*plans]), lambda plan: [plans[plan]])
    assert model_at(source).name == "tiny llama"
    student = made(source, tmp_path / "s", StudentShape((0,)))
    assert student.name == "a part of it"
    with open_checkpoint(tmp_path / "s") as checkpoint:
        assert isinstance(checkpoint, GGUFFile)
        assert "general.size_label" not in checkpoint.metadata
    # One in safetensors is called what its folder is, and does not name what it was saved as.
    folder = tiny.build("llama", tmp_path / "whole", "safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "owner/whole"}))
    assert made(folder, tmp_path / "part", StudentShape((0,))).name == "part"
    assert "whole" not in (tmp_path / "part" / "config.json").read_text()


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(1, 30) == (0,)
    assert spread_layers(2, 30) == (0, 29)
    assert spread_layers(4, 30) == (0, 10, 19, 29)
    assert spread_layers(5, 5) == (0, 1, 2, 3, 4)


def test_a_draft_is_no_teacher(tmp_path: Path) -> None:
    made(tiny.shared("llama"), tmp_path / "s", StudentShape((0,), (4, 9)))
    with open_checkpoint(tmp_path / "s") as checkpoint:
        draft = load_model(checkpoint)
        with pytest.raises(FarthingError, match=r"stores more than weights \(output.weight.token"):
            check_teacher(draft, checkpoint)
