"""What weights could be stored as: names, bits, and a model as if it were stored so."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.core import RequestError, UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.formats import FALLBACKS, OWN_FORMATS, stored_bytes
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.plan.memory import plan_memory
from farthing.plan.precision import AS_STORED, PRECISIONS, fallbacks, precision, stored_as
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fp16", 16), ("int8", 8), ("int4", 4.125), ("nf4", 4.25), ("q4-k", 4.5), ("Q4_K", 4.5)],
)
def test_short_names_and_formats_have_the_bits_that_people_know(name: str, bits: float) -> None:
    assert precision(name).bits == bits


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match="no weights are called 'int3'; known are fp32, fp16"):
        precision("int3")


@pytest.mark.parametrize("name", ["int8", "int4", "nf4", "bf16", "q8-0"])
def test_a_model_as_if_stored_so_has_every_matrix_in_that_format(name: str) -> None:
    model = model_at(tiny.shared("qwen2", "gguf", "Q4_0"))
    planned = stored_as(model, precision(name))
    for weight, shape in model.program.weights.items():
        wanted = precision(name).format if len(shape.shape) == 2 else "F32"
        assert planned.formats[weight] == wanted
    assert stored_as(model, AS_STORED) is model


def test_planned_bytes_are_those_of_the_model_that_quantize_would_write() -> None:
    model = model_at(tiny.shared("llama", "gguf", "F32"))
    stored = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    as_if = plan_memory(stored_as(model, precision("q4-0")), threads=1)
    assert as_if.weight_bytes == plan_memory(stored, threads=1).weight_bytes


def test_bits_of_groups_are_what_is_stored() -> None:
    rows, inputs = 64, 1024
    for name in ("int4", "nf4"):
        wanted = precision(name)
        assert wanted.format in OWN_FORMATS
        assert wanted.bits == 8 * stored_bytes(wanted.format, (rows, inputs)) / prod((rows, inputs))


def test_rows_that_are_no_whole_blocks_are_planned_as_quantize_writes_them(tmp_path: Path) -> None:
    source = tiny.shared("llama")
    model = model_at(source)
    for name in FALLBACKS:
        wanted = precision(name)
        written = tmp_path / f"{name}.gguf"
        with open_checkpoint(source) as checkpoint:
            report = quantize(checkpoint, written, Wish(name))
        assert sum(fallbacks(model, wanted).values()) == len(report.fallbacks) > 0
        planned = stored_as(model, wanted)
        matrices = [each for each, w in model.program.weights.items() if len(w.shape) == 2]
        made = model_at(written)
        assert [planned.formats[each] for each in matrices] == [made.formats[m] for m in matrices]


@pytest.mark.parametrize("name", [each for each in PRECISIONS if each != "stored"])
def test_a_format_is_one_however_it_is_typed(name: str) -> None:
    wanted = precision(name)
    for typed in (name.upper(), name.replace("_", "-"), name.replace("-", "_"), f" {name} "):
        assert precision(typed) is wanted


def test_rows_that_a_format_cannot_hold_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farthing.files.formats.FALLBACKS", {})
    model = model_at(tiny.shared("qwen2", "gguf", "F32"))
    with pytest.raises(UnsupportedModelError, match="the matrix .* cannot be stored as Q4_K"):
        stored_as(model, precision("q4_k"))


def test_every_known_precision_can_be_planned_or_is_refused_in_words() -> None:
    model = model_at(tiny.shared("llama", "gguf", "F32"))
    for wanted in PRECISIONS.values():
        try:
            planned = stored_as(model, wanted)
        except UnsupportedModelError:
            continue
        assert plan_memory(planned, threads=1).weight_bytes > 0
