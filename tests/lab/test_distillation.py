"""Soft labels and what a student learned: the arithmetic exactly, the rest on small models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.files.catalog import FLOAT_MODEL, resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import tensors_digest
from farthing.forge.distill_receipt import RECEIPT_FILE
from farthing.lab.distillation import ratios_table, softened_ratio, telling_positions
from farthing.lab.distillation_student import receipt_tables
from farthing.lab.sections import measure_section
from farthing.lab.speculation_copies import softmax
from farthing.lab.table import Skipped, Table
from lab_subject import subject_at


def test_the_quoted_ratio_is_softened_exactly() -> None:
    assert round(softened_ratio(2.24, 2), 2) == 1.50
    table = ratios_table()
    assert [round(float(each), 2) for each in table.rows[0][:3]] == [2.24, 2.24, 1.50]  # type: ignore[arg-type]
    assert table.expectation is not None
    assert table.expectation.met


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=12),
    st.floats(0.5, 10),
)
def test_dividing_logits_by_a_temperature_takes_ratios_to_its_reciprocal(
    numbers: list[float], temperature: float
) -> None:
    logits = np.array([numbers])
    plain, softened = (np.exp((logits - logits.max()) / each)[0] for each in (1.0, temperature))
    expected = softened_ratio(float(plain[0] / plain[1]), temperature)
    assert softened[0] / softened[1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("wrong", [(0.0, 2.0), (2.0, 0.0), (-1.0, 1.0), (1.0, -1.0)])
def test_a_ratio_or_temperature_that_is_none_is_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(RequestError, match="above 0"):
        softened_ratio(*wrong)


def test_positions_are_shown_where_the_likeliest_token_has_about_half() -> None:
    logits = np.zeros((5, 3), np.float32)
    logits[:, 0] = [50, np.log(2), 20, 1.0, 30]  # of 1: 1, 1/2, 1, 0.58, 1
    assert telling_positions(logits, 2) == [1, 3]
    assert softmax(logits, 1.0)[1, 0] == pytest.approx(0.5)


def measured(**settings: Any) -> tuple[dict[str, Table], list[Skipped]]:
    section = measure_section("distillation", subject_at(FLOAT_MODEL, **settings), "command")
    return {table.key: table for table in section.tables}, list(section.skipped)


def test_without_a_student_it_is_said_how_to_make_one() -> None:
    tables, [skipped] = measured()
    assert list(tables) == ["ratios", "labels"]
    assert "farthing distill float OUT --draft" in skipped.reason
    labels = tables["labels"]
    assert labels.expectation is not None
    assert labels.expectation.met
    for row in labels.rows:
        first, _, last = row[2:]
        assert 0 < last < 1
        assert 0 < first < 1
    assert len(labels.rows) == 4 * 5


def figures(table: Table) -> dict[str, Any]:
    return {str(row[0]).split(":")[0]: row[2] for row in table.rows}


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    tables, skipped = measured(student=FLOAT_MODEL)
    found = figures(tables["learned"])
    assert found["agreement"].middle == 1.0
    assert found["divergence from the teacher, nats"].high == 0.0
    assert found["perplexity over the teacher's"].middle == 1.0
    assert found["weights, of the teacher's"] == 1.0
    assert [row[1] for row in tables["places"].rows] == [1.0] * 8
    assert [each.what for each in skipped] == ["how the student learned"]


def test_a_student_of_other_weights_is_behind_its_teacher(tmp_path: Path) -> None:
    """A copy in four bits a weight stands for one."""
    from farthing.forge.quantize import quantize
    from farthing.forge.wish import Wish

    quantize(open_checkpoint(resolve(FLOAT_MODEL)), tmp_path / "student", Wish("INT4_ROW"))
    tables, _ = measured(student=str(tmp_path / "student"))
    found = figures(tables["learned"])
    assert 0.6 < found["agreement"].middle < 1.0
    assert found["divergence from the teacher, nats"].low > 0
    assert found["perplexity over the teacher's"].middle > 1.0
    rates = [row[1] for row in tables["places"].rows]
    assert 0.5 < rates[0] < 1.0
    tokens = [row[2] for row in tables["places"].rows]
    assert tokens == sorted(tokens)


def test_a_student_with_another_tokenizer_is_refused(smollm2_path: Path) -> None:
    with pytest.raises(
        RequestError, match="the student has another tokenizer than its teacher: token"
    ):
        measured(student=str(smollm2_path))


def receipt() -> dict[str, Any]:
    point = {"step": 0, "tokens": 0, "loss": None, "divergence": 0.5, "acceptance": 0.4}
    return {
        "version": 1,
        "teacher": {"name": "a teacher", "tensors": "abc"},
        "text": {"tokens": 1000},
        "gain": {"speed_up": 0.9, "used": False},
        "history": [{**point, "step": n, "acceptance": 0.4 + n / 100} for n in range(40)],
    }


def tables_of(tmp_path: Path, facts: object) -> list[Table | Skipped]:
    (tmp_path / RECEIPT_FILE).write_text(json.dumps(facts))
    return list(receipt_tables(tmp_path, lambda: "abc"))


def test_how_a_student_learned_is_read_from_its_receipt(tmp_path: Path) -> None:
    [table] = tables_of(tmp_path, receipt())
    assert isinstance(table, Table)
    assert len(table.rows) == 12
    assert (table.rows[0][0], table.rows[-1][0]) == (0, 39)
    assert "from 40.0% to 79.0%" in table.finding
    assert "0.90 times as fast" in table.finding
    assert "does not pay" in table.finding
    assert table.notes == ()
    other = {**receipt(), "teacher": {"name": "another", "tensors": "xyz"}}
    [table] = tables_of(tmp_path, other)
    assert isinstance(table, Table)
    assert "not those of this model" in table.notes[0]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"history": []},
        {"history": [{}]},
        {"history": 3},
        {"history": [{**receipt()["history"][0], "step": "x"}]},
        {"teacher": None},
        {"gain": {"speed_up": []}},
        {"text": {}},
    ],
)
def test_a_receipt_that_is_damaged_is_told_and_the_rest_is_measured(
    change: dict[str, Any], tmp_path: Path
) -> None:
    [skipped] = tables_of(tmp_path, {**receipt(), **change})
    assert isinstance(skipped, Skipped)
    assert RECEIPT_FILE in skipped.reason


def test_a_folder_without_a_receipt_says_so(tmp_path: Path) -> None:
    [skipped] = receipt_tables(tmp_path, lambda: "abc")
    assert isinstance(skipped, Skipped)
    assert f"no {RECEIPT_FILE}" in skipped.reason


def test_the_teacher_of_a_receipt_is_known_by_its_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "student"
    shutil.copytree(resolve(FLOAT_MODEL), folder)
    digest = tensors_digest(open_checkpoint(folder))
    facts = {**receipt(), "teacher": {"name": "float", "tensors": digest}}
    (folder / RECEIPT_FILE).write_text(json.dumps(facts))
    tables, _ = measured(student=str(folder))
    assert tables["history"].notes == ()
