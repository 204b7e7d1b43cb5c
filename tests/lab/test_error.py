"""What formats lose: errors by hand, levels counted, and a corrupted scheme that must show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import half_billion
import tiny
from farthing.core import StoredTensor
from farthing.lab import error
from farthing.lab.error import (
    FormatError,
    Levels,
    add_error,
    applicable,
    errors_table,
    levels_table,
    measure,
    relative_error,
    sizes,
)
from farthing.lab.projections import native_bits, native_precision, precision_warning, projections
from farthing.quant.formats import decode, encode
from lab_subject import subject_at
from native_steps import model_at

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_back(weights: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    return decode(StoredTensor("w", name, weights.shape, encode(weights, name)))


@pytest.fixture
def weights() -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((64, 256), np.float32)


def test_half_a_billion_parameters_take_1_98_and_0_99_and_0_49_gb() -> None:
    table = sizes(half_billion.model().program)
    assert [f"{row[1]:.2f}" for row in table.rows] == ["1.98", "0.99", "0.49"]


def test_its_projections_are_168_matrices_of_357_8_million_parameters() -> None:
    shapes = projections(half_billion.model().program)
    assert len(shapes) == 168
    assert sum(outputs * inputs for outputs, inputs in shapes.values()) == 357_826_560


def test_groups_of_128_take_4_125_bits_and_blocks_of_64_4_25(
    weights: NDArray[np.float32],
) -> None:
    bits = {}
    for name in ("INT4_G128", "NF4_B64"):
        found = FormatError(name)
        add_error(found, "w", weights)
        bits[name] = found.bits
    assert bits == {"INT4_G128": 4.125, "NF4_B64": 4.25}


def test_the_relative_error_is_that_of_norms_over_the_whole_matrix() -> None:
    weights = np.array([[3.0, 4.0], [0.0, 12.0]], np.float32)
    lost = np.array([[0.0, 1.0], [2.0, 2.0]], np.float32)
    assert relative_error(weights, weights - lost) == pytest.approx(3 / 13)
    zeros = np.zeros((2, 2), np.float32)
    assert relative_error(zeros, zeros) == 0


def test_symmetric_int4_per_tensor_is_the_textbooks_formula(weights: NDArray[np.float32]) -> None:
    scale = np.abs(weights).max() / 7
    codes = np.clip(np.round(weights / scale), -8, 7)
    expected = np.linalg.norm(weights - codes * scale) / np.linalg.norm(weights)
    found = FormatError("INT4_TENSOR")
    add_error(found, "w", weights)
    assert found.mean == pytest.approx(expected, rel=1e-3)  # the scale is stored in 16 bits


@pytest.mark.parametrize(
    ("reach", "levels"), [(60, (1, 1, 1)), (24, (1, 3, 3)), (10, (3, 3, 5)), (5, (3, 7, 9))]
)
def test_one_extreme_weight_leaves_others_few_levels(
    weights: NDArray[np.float32], reach: float, levels: tuple[int, ...]
) -> None:
    # So many standard deviations over a step of reach / 7, and up to 2.9 of them in what is drawn.
    weights = np.clip(weights / weights.std(), -2.9, 2.9)
    weights[0, 0] = reach
    found = Levels.of(weights, read_back(weights, "INT4_TENSOR"), 4)
    assert found.within == levels
    assert found.all == len(np.unique(np.rint(weights / (reach / 7))))
    assert found.shares[0] == np.mean(np.abs(weights) <= weights.std())


def test_block_size_and_level_placement_are_told_apart_on_float_weights(
    weights: NDArray[np.float32],
) -> None:
    lost = {
        name: relative_error(weights, read_back(weights, name))
        for name in ("INT4_G64", "INT4_G128", "NF4_B64", "NF4_B128")
    }
    assert lost["INT4_G64"] < lost["INT4_G128"]
    assert lost["NF4_B64"] < 0.9 * lost["INT4_G64"]
    assert lost["NF4_B128"] < 0.9 * lost["INT4_G128"]


def test_formats_whose_blocks_do_not_divide_a_row_are_skipped_with_the_reason() -> None:
    formats, notes = applicable({"a": (16, 576), "b": (16, 512)})
    assert "Q4_K" not in formats
    assert {"Q4_0", "NF4_B64", "INT4_G128"} <= set(formats)
    assert "Q4_K" in notes[0]
    assert "(512, 576)" in notes[0]
    formats, notes = applicable({"b": (16, 512)})
    assert "Q4_K" in formats
    assert notes == ()


def test_a_quantised_reference_is_named_with_its_bits_and_a_float_one_is_not_warned_of() -> None:
    quantised = model_at(tiny.shared("llama", "gguf", "Q4_1"))
    assert native_precision(quantised) == "Q4_1, 5 bits a weight"
    assert "stored as Q4_1, 5 bits a weight" in precision_warning(quantised)[0]
    plain = model_at(tiny.shared("llama", "gguf", "F16"))
    assert native_bits(plain) == 16
    assert precision_warning(plain) == ()


def errors_of(weights: NDArray[np.float32]) -> dict[str, FormatError]:
    formats, _ = applicable({"w": (64, 512)})
    errors = {name: FormatError(name) for name in formats}
    for each in errors.values():
        add_error(each, "w", weights)
    return errors


def test_a_corrupted_scheme_shows_up_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some weights far out, as trained matrices have them.
    weights = np.random.default_rng(5).standard_t(5, (64, 512)).astype(np.float32)
    sound = errors_table(errors_of(weights), "F32", ())
    assert sound.expectation is not None
    assert sound.expectation.met
    assert "NF4 in blocks of 64 loses" in sound.finding
    assert "MORE" not in sound.finding

    def corrupted(weights: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
        data = encode(weights, name)
        if name == "NF4_B64":
            data[: len(data) // 8] ^= 0x11
        return data

    monkeypatch.setattr(error, "encode", corrupted)
    broken = errors_table(errors_of(weights), "F32", ())
    assert broken.expectation is not None
    assert broken.expectation.met is False
    assert "MORE than INT4 in groups of 64" in broken.finding


def test_all_matrices_of_a_model_are_measured_in_every_format_that_fits() -> None:
    size, formats, levels = measure(subject_at(tiny.shared("llama", "gguf", "F32")))
    assert size.title.endswith("in 14 projection matrices")
    assert "of 14 matrices stored as F32, 32 bits a weight" in formats.title
    assert {"INT8_TENSOR", "INT4_G64", "NF4_B128", "Q4_1"} <= {row[0] for row in formats.rows}
    assert "skipped: Q2_K" in formats.notes[0]
    means = [row[3] for row in formats.rows]
    assert means == sorted(means)  # type: ignore[type-var]
    assert all(row[4] >= row[3] for row in formats.rows)  # type: ignore[operator]
    assert [row[0] for row in levels.rows] == ["INT8_TENSOR"] * 4 + ["INT4_TENSOR"] * 4


def test_the_table_of_levels_judges_what_ordinary_weights_use_in_the_median_matrix() -> None:
    def levels(*ordinary: int) -> list[Levels]:
        return [Levels((n, n + 2, n + 4), (0.7, 0.95, 0.99), 16) for n in ordinary]

    few = levels_table(
        {"INT8_TENSOR": levels(40), "INT4_TENSOR": levels(3, 2, 9)}, [24.0, 5.0, 9.0]
    )
    many = levels_table(
        {"INT8_TENSOR": levels(40), "INT4_TENSOR": levels(5, 2, 9)}, [1.0, 2.0, 3.0]
    )
    assert few.expectation is not None
    assert many.expectation is not None
    assert (few.expectation.met, many.expectation.met) == (True, False)
    rows = {row[:2]: row[2:] for row in few.rows}
    assert rows["INT4_TENSOR", "1 standard deviation"] == (pytest.approx(70), 2, 3.0, 9)
    assert rows["INT4_TENSOR", "3 standard deviations"] == (pytest.approx(99), 6, 7.0, 13)
    assert rows["INT4_TENSOR", "all"] == (100.0, 16, 16.0, 16)
    assert "In the matrix whose largest weight is 24.0 out, they are 3 and 7." in few.finding
