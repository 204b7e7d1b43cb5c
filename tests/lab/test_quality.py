"""What formats cost: copies against the plain measurement, verdicts by hand, the float model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tiny
from farthing.core import StoredTensor
from farthing.files.checkpoint import open_checkpoint
from farthing.forge import pieces
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.lab import quality, quality_copies
from farthing.lab.projections import precision_warning
from farthing.lab.quality import SCHEMES, reach
from farthing.lab.quality_activations import activations_table
from farthing.lab.quality_battery import battery_table, first_questions, penalty_table
from farthing.lab.quality_copies import measure_copies, measured_text
from farthing.lab.quality_countdown import Countdown
from farthing.lab.quality_pairs import PAIRS, pairs_table
from farthing.lab.quality_schemes import schemes_table, verdicts
from farthing.lab.quality_trial import AS_STORED, Recipe, weights_only
from farthing.lab.table import Skipped, Table
from farthing.quality.battery import questions
from farthing.quality.measure import measure
from farthing.quality.subject import EXACT
from farthing.quant.formats import encode
from lab_subject import subject_at
from lab_trials import answers, measurement, trial

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.lab.quality_trial import Trial

TOKENS = 300
PART = [
    Recipe(AS_STORED, None),
    Recipe("NF4_B64", "NF4_B64"),
    Recipe(weights_only("NF4_B64"), "NF4_B64", weights_only=True),
    Recipe("Q8_0", "Q8_0"),
]


def never() -> float:
    raise AssertionError("nothing to give a reason for")


def cells(table: Table, column: str) -> dict[Any, Any]:
    """A column by the first one."""
    at = [each.name for each in table.columns].index(column)
    return {row[0]: row[at] for row in table.rows}


@pytest.fixture(scope="module")
def found() -> Trial:
    return measure_copies(subject_at(tiny.shared("llama")), PART, tokens=TOKENS)


def test_a_copy_is_measured_as_a_file_that_quantize_wrote_is(found: Trial, tmp_path: Path) -> None:
    source, out = tiny.shared("llama"), tmp_path / "copy"
    with open_checkpoint(source) as checkpoint:
        report = quantize(checkpoint, out, Wish("NF4_B64"))
    alone = measure(out, source, tokens=TOKENS, battery=(), threads=2)
    exact = measure(out, source, tokens=TOKENS, battery=(), settings=EXACT, threads=1)
    copy = found.copies["NF4_B64"]
    np.testing.assert_array_equal(copy.measurement.scores.kl, alone.scores.kl)
    np.testing.assert_array_equal(copy.measurement.scores.nll, alone.scores.nll)
    np.testing.assert_array_equal(
        found.copies[weights_only("NF4_B64")].measurement.scores.kl, exact.scores.kl
    )
    assert copy.measurement.perplexity_ratio == alone.perplexity_ratio
    assert copy.measurement.agreement == alone.agreement
    assert copy.measurement.candidate.tensors == alone.candidate.tensors
    assert (copy.bytes, copy.bits_per_weight) == (report.bytes, report.bits_per_weight)


def test_the_model_as_it_is_stored_is_a_copy_whose_activations_alone_are_rounded(
    found: Trial,
) -> None:
    stored = found.copies[AS_STORED]
    assert stored.bits_per_weight == 32
    assert stored.bytes == found.reference_bytes
    assert stored.measurement.candidate.tensors == found.reference.tensors
    assert 0 < stored.measurement.kl.mean.value < 1e-4  # the cache has 16 bits


def test_copies_measured_one_at_a_time_for_want_of_memory_are_found_the_same(
    found: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    compare = quality_copies.compare_all

    def counted(backends: Any, *rest: Any) -> Any:
        together.append(len(backends))
        return compare(backends, *rest)

    monkeypatch.setattr(quality_copies, "compare_all", counted)
    monkeypatch.setattr(quality_copies, "available_memory", lambda: 1)
    monkeypatch.setattr(quality_copies, "require_room", lambda plan, room: None)
    alone = measure_copies(subject_at(tiny.shared("llama")), PART, tokens=TOKENS)
    assert together == [1] * len(PART)
    for name, copy in found.copies.items():
        np.testing.assert_array_equal(
            alone.copies[name].measurement.scores.kl, copy.measurement.scores.kl
        )


def test_a_format_that_the_model_cannot_have_is_skipped_with_the_reason() -> None:
    subject = subject_at(tiny.shared("llama3"))
    recipes = [Recipe("INT8_ROW", "INT8_ROW"), Recipe("odd", "NO_SUCH")]
    given = measure_copies(subject, recipes, tokens=TOKENS)
    assert list(given.copies) == ["INT8_ROW"]
    assert given.skipped[0].what == "odd"
    assert "NO_SUCH" in given.skipped[0].reason


def test_a_k_quant_whose_blocks_do_not_divide_rows_says_what_stands_in() -> None:
    given = measure_copies(
        subject_at(tiny.shared("llama")), [Recipe("Q4_K", "Q4_K")], tokens=TOKENS
    )
    assert "as Q5_0" in given.copies["Q4_K"].substitutes


def test_a_model_that_answers_nothing_is_not_asked_in_every_format() -> None:
    given = measure_copies(
        subject_at(tiny.shared("llama")),
        [Recipe(AS_STORED, None)],
        tokens=TOKENS,
        asked=questions()[:2],
    )
    assert given.reference.answers is not None
    assert not given.asked
    assert given.skipped[0].what == "battery"
    assert "answers 0 of 2" in given.skipped[0].reason


def test_the_text_that_a_person_gives_is_measured_on() -> None:
    path = tiny.shared("llama")
    assert measured_text(subject_at(path)).name == "persuasion"
    own = measured_text(subject_at(path, text="Something else."))
    assert own.content == "Something else."


def test_time_left_is_told_from_what_is_done() -> None:
    lines: list[str] = []
    now = [0.0]
    countdown = Countdown(lines.append, 100, lambda: now[0])
    countdown.say("begin")
    now[0] = 10.0
    countdown.finish(10)
    countdown.say("go on", within=10)
    now[0] = 1000.0
    countdown.say("go on")
    countdown.finish(1000)
    countdown.say("end")
    assert lines == [
        "begin",
        "go on; about 40 s left",
        "go on; about 150 min left",
        "end; about 1 s left",
    ]


@pytest.mark.parametrize(
    ("small", "measured"), [(True, list(SCHEMES)), (False, ["INT8_ROW", "INT4_G128"])]
)
def test_a_whole_section_tells_weights_and_activations_apart(
    monkeypatch: pytest.MonkeyPatch, small: bool, measured: list[str]
) -> None:
    monkeypatch.setattr(quality, "_SMALL_PARAMETERS", 20e6 if small else 0)
    monkeypatch.setattr(quality, "_MORE_TOKENS", TOKENS)
    monkeypatch.setattr(quality, "_TOKENS", TOKENS)
    *tables, skipped = quality.measure(subject_at(tiny.shared("llama", "gguf", "Q4_1")))
    assert [each.key for each in tables if isinstance(each, Table)] == [
        "schemes",
        "pairs",
        "activations",
    ]
    assert isinstance(skipped, Skipped)
    assert skipped.what == "battery"
    schemes, _, activations = (each for each in tables if isinstance(each, Table))
    assert [row[0] for row in schemes.rows] == ["reference", AS_STORED, *SCHEMES]
    assert [row[0] for row in activations.rows] == [AS_STORED, *measured]
    assert any("the reference is not full precision" in note for note in schemes.notes)


USUAL = {
    AS_STORED: measurement(1e-6),
    "INT8_ROW": measurement(1e-4),
    "INT4_TENSOR": measurement(9.0, nats=14.0),
    "INT4_ROW": measurement(0.5, nats=0.7),
    "INT4_G128": measurement(0.2, nats=0.3),
    "INT4_G64": measurement(0.16, nats=0.25),
    "NF4_B64": measurement(0.1, nats=0.08),
    "NF4_B128": measurement(0.12, nats=0.1),
}


def test_a_difference_within_its_interval_is_no_difference() -> None:
    table = schemes_table(trial(USUAL), never, ())
    assert cells(table, "perplexity differs") == {
        "reference": "",
        AS_STORED: "no difference",
        "INT8_ROW": "no difference",
        "INT4_TENSOR": "destroyed",
        "INT4_ROW": "worse",
        "INT4_G128": "worse",
        "INT4_G64": "worse",
        "NF4_B64": "worse",
        "NF4_B128": "worse",
    }
    assert table.expectation is not None
    assert table.expectation.met
    assert "No difference was found for INT8_ROW; the smallest" in table.finding


def test_a_difference_that_many_comparisons_explain_is_no_difference() -> None:
    copies = {**USUAL, "INT8_ROW": measurement(1e-4, nats=0.0006)}
    assert copies["INT8_ROW"].perplexity_ratio.low > 1
    p_value, word = verdicts(trial(copies))["INT8_ROW"]
    assert p_value >= 0.05
    assert word == "no difference"


def test_a_model_that_one_scale_does_not_destroy_is_told_with_the_reason() -> None:
    kind = {**USUAL, "INT4_TENSOR": measurement(0.7, nats=0.9)}
    table = schemes_table(trial(kind), lambda: 5.25, ())
    assert table.expectation is not None
    assert table.expectation.met is False
    assert "lies 5.2 standard deviations out" in table.notes[0]
    assert "a step is 0.8 of them" in table.notes[0]


def test_formats_that_come_out_in_another_order_are_told_in_theirs() -> None:
    odd = {**USUAL, "NF4_B64": measurement(0.3, nats=0.4)}
    table = schemes_table(trial(odd), never, ())
    assert table.expectation is not None
    assert table.expectation.met is False
    assert "up they are INT4_G128, NF4_B64, INT4_ROW, INT4_TENSOR" in table.notes[0]


def test_quality_is_drawn_against_bytes_with_intervals() -> None:
    table = schemes_table(trial(USUAL), never, ())
    assert {(plot.x, plot.y, plot.labels) for plot in table.plots} == {
        ("size", ("KL divergence",), "format"),
        ("size", ("perplexity over the reference's",), "format"),
    }
    kl = cells(table, "KL divergence")["INT4_G128"]
    assert kl.low < kl.middle < kl.high


def test_block_size_and_level_placement_are_told_apart() -> None:
    table = pairs_table(trial(USUAL), ())
    assert table.expectation is not None
    assert table.expectation.met
    assert "groups of 64 diverges 20% less" in table.finding
    assert "blocks of 64 38% less than INT4" in table.finding
    assert len(table.rows) == sum({first, second} <= USUAL.keys() for first, second, _ in PAIRS)


def test_a_pair_that_comes_out_the_other_way_is_told() -> None:
    odd = {**USUAL, "NF4_B64": measurement(0.3, nats=0.4)}
    table = pairs_table(trial(odd), ("the reference is not full precision",))
    assert table.expectation is not None
    assert table.expectation.met is False
    assert cells(table, "to the reference it is")["NF4_B64 for INT4_G64"] == "FURTHER"
    assert any("NF4_B64 for INT4_G64, FURTHER: the weights were on" in n for n in table.notes)


def test_what_activations_add_is_a_share_of_what_is_lost() -> None:
    eight, four = weights_only("INT8_ROW"), weights_only("INT4_G128")
    copies = {
        **USUAL,
        eight: measurement(0.4e-4),
        four: measurement(0.2, nats=0.3),
    }
    table = activations_table(trial(copies, exact=(eight, four)), ())
    assert [row[0] for row in table.rows] == [AS_STORED, "INT8_ROW", "INT4_G128"]
    share = cells(table, "share of what is lost")
    assert share["INT8_ROW"] == pytest.approx(60)
    assert share["INT4_G128"] is None
    assert cells(table, "as served it is")["INT4_G128"] == "no difference"
    assert "activations are 60.0%; of what INT4 in groups of 128 loses, nothing" in table.finding
    assert table.expectation is not None
    assert table.expectation.met


def asked(four: int, nf4: int, under: dict[str, int]) -> Trial:
    copies = {
        AS_STORED: measurement(1e-6, right=30),
        "INT4_G128": measurement(0.2, nats=0.3, right=four),
        "NF4_B64": measurement(0.1, nats=0.1, right=nf4),
    }
    return trial(copies, penalised=under)


def test_the_battery_of_16_cannot_tell_formats_apart_that_perplexity_can() -> None:
    given = asked(14, 15, {AS_STORED: 29, "INT4_G128": 16, "NF4_B64": 13})
    table = battery_table(given, ())
    assert table.expectation is not None
    assert table.expectation.met
    assert "answer 14 and 15; of all, 14 and 15 (p 1)" in table.finding
    assert table.rows[0] == ("reference", 16, 30, None, None, None, "")
    assert table.rows[1][1:] == (16, 30, 0, 0, 1.0, "no difference")
    assert table.rows[2][1:] == (14, 14, 16, 0, pytest.approx(3 * 2**-15), "worse")


def test_formats_that_change_places_under_a_penalty_are_counted() -> None:
    given = asked(14, 15, {AS_STORED: 29, "INT4_G128": 16, "NF4_B64": 13})
    table = penalty_table(given, ())
    assert "1 of 3 pairs of formats change places" in table.finding
    assert "answer 16 and 13" in table.finding
    assert table.expectation is not None
    assert table.expectation.met
    same = penalty_table(asked(14, 15, {AS_STORED: 29, "INT4_G128": 13, "NF4_B64": 13}), ())
    assert same.expectation is not None
    assert same.expectation.met is False


def test_a_battery_that_can_tell_them_apart_contradicts() -> None:
    table = battery_table(asked(1, 16, {AS_STORED: 29, "INT4_G128": 1, "NF4_B64": 16}), ())
    assert table.expectation is not None
    assert table.expectation.met is False
    assert "16 questions tell them apart, 0 answers being lost and 15 gained" in table.notes[0]
    assert first_questions(answers(20), 16).correct == 16


@pytest.fixture(scope="module")
def float_model() -> Trial:
    names = ("INT8_ROW", "INT4_TENSOR", "INT4_ROW", "INT4_G128", "INT4_G64", "NF4_B64", "NF4_B128")
    recipes = [Recipe(AS_STORED, None), *(Recipe(name, name) for name in names)]
    return measure_copies(subject_at("float", threads=2), recipes, tokens=2048)


def test_on_float_weights_int8_per_row_is_indistinguishable(float_model: Trial) -> None:
    assert verdicts(float_model)["INT8_ROW"][1] == "no difference"
    assert float_model.copies["INT8_ROW"].measurement.agreement.value > 0.97


def test_on_float_weights_finer_scales_and_nf4_lose_less_and_less(float_model: Trial) -> None:
    names = ["INT4_TENSOR", "INT4_ROW", "INT4_G128", "NF4_B64", "INT8_ROW"]
    kl = [float_model.copies[name].measurement.kl.mean.value for name in names]
    assert kl == sorted(kl, reverse=True)
    table = pairs_table(float_model, ())
    assert table.expectation is not None
    assert table.expectation.met
    assert "MORE" not in table.finding


def test_the_float_model_is_not_destroyed_since_no_weight_lies_far_out(float_model: Trial) -> None:
    subject = subject_at("float")
    assert precision_warning(subject.model) == ()
    table = schemes_table(float_model, lambda: reach(subject), ())
    assert table.expectation is not None
    assert table.expectation.met is False
    assert len([note for note in table.notes if note.startswith("contradicted")]) == 1
    assert reach(subject) < 8


def test_a_corrupted_scheme_shows_up_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [
        Recipe(name, name) for name in ("INT4_G128", "INT4_G64", "NF4_B128", "NF4_B64", "INT8_ROW")
    ]
    subject = subject_at("float", threads=2)

    def corrupted(weights: NDArray[np.float32], name: str, **settings: Any) -> NDArray[np.uint8]:
        data = encode(weights, name, **settings)
        if name == "NF4_B64":
            data[: len(data) // 16] ^= 0x11
        return data

    monkeypatch.setattr(pieces, "encode", corrupted)
    broken = pairs_table(measure_copies(subject, recipes, tokens=500), ())
    assert cells(broken, "to the reference it is")["NF4_B64 for NF4_B128"] == "FURTHER"
    assert broken.expectation is not None
    assert broken.expectation.met is False


def test_every_scheme_of_the_section_can_be_written() -> None:
    weights = np.ones((4, 256), np.float32)
    for name in SCHEMES:
        assert StoredTensor("w", name, weights.shape, encode(weights, name)).data.nbytes > 0
    compared = {name for pair in PAIRS for name in pair[:2]}
    assert compared <= set(SCHEMES)
