"""The battery of short questions in every format, truly greedy and under a penalty."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from farthing.lab.quality_trial import PENALTY, SIGNIFICANT
from farthing.lab.table import Column, Expectation, Row, Table
from farthing.quality.battery import TABLE_QUESTIONS, flips
from farthing.quality.comparison import compare_measurements
from farthing.quality.significance import holm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.lab.quality_trial import Copy, Trial
    from farthing.quality.battery import Answers

_HOW = (
    "lost and gained: answers that the reference, asked alike, had right and the format has wrong, "
    "and the other way round; p is McNemar's exact test, corrected for all formats (Holm)"
)

_PAIR = ("INT4_G128", "NF4_B64")


def battery_table(trial: Trial, notes: tuple[str, ...]) -> Table:
    """Answered with the likeliest token at each step, and no penalty."""
    reference = _given(trial.reference.answers)
    found = {name: _given(each.measurement.candidate.answers) for name, each in _served(trial)}
    first, second = (found[name] for name in _PAIR)
    few = [first_questions(each, TABLE_QUESTIONS) for each in (first, second)]
    asked, whole = len(reference.right), flips(first, second)
    reasons = _contrary(trial, *few)
    return _table(
        "battery",
        f"{asked} short questions, and the first {TABLE_QUESTIONS} of them, answered greedily",
        reference,
        found,
        f"The reference answers {reference.correct} of {asked} questions. Of the first "
        f"{TABLE_QUESTIONS}, INT4 in groups of 128 and NF4 in blocks of 64 answer {few[0].correct} "
        f"and {few[1].correct}; of all, {first.correct} and {second.correct} (p "
        f"{whole.p_value:.2g}).",
        Expectation(
            f"{TABLE_QUESTIONS} questions cannot tell INT4 in groups of 128 from NF4 in blocks of "
            "64, which perplexity can",
            not reasons,
        ),
        (*reasons, *notes),
    )


def penalty_table(trial: Trial, notes: tuple[str, ...]) -> Table:
    """The same questions under a repetition penalty, and what that does to the ranking."""
    found = {name: _given(each.penalised) for name, each in _served(trial)}
    pairs = list(combinations(_served(trial), 2))
    swapped = sum(_changes_places(first[1], second[1]) for first, second in pairs)
    few = [first_questions(found[name], TABLE_QUESTIONS).correct for name in _PAIR]
    return _table(
        "penalty",
        f"The same questions under a repetition penalty of {PENALTY}, which is not greedy decoding",
        _given(trial.penalised),
        found,
        f"Under the penalty {swapped} of {len(pairs)} pairs of formats change places. Of the first "
        f"{TABLE_QUESTIONS} questions INT4 in groups of 128 and NF4 in blocks of 64 answer "
        f"{few[0]} and {few[1]}.",
        Expectation("a repetition penalty changes how formats rank", swapped > 0),
        notes,
    )


def _table(
    key: str,
    title: str,
    reference: Answers,
    found: Mapping[str, Answers],
    finding: str,
    expectation: Expectation,
    notes: tuple[str, ...],
) -> Table:
    changed = {name: flips(reference, each) for name, each in found.items()}
    p_values = holm([each.p_value for each in changed.values()])
    rows: list[Row] = [("reference", *_right(reference), None, None, None, "")]
    for (name, each), p_value in zip(changed.items(), p_values, strict=True):
        word = "worse" if each.lost > each.gained else "better"
        if p_value >= SIGNIFICANT:
            word = "no difference"
        rows.append((name, *_right(found[name]), each.lost, each.gained, p_value, word))
    return Table(
        key,
        title,
        (
            Column("format"),
            Column(f"right of {TABLE_QUESTIONS}"),
            Column(f"right of {len(reference.right)}"),
            Column("lost"),
            Column("gained"),
            Column("p, corrected", spec=".2g"),
            Column("differs"),
        ),
        tuple(rows),
        finding,
        expectation,
        notes=(*notes, _HOW),
    )


def first_questions(answers: Answers, count: int) -> Answers:
    """Those to the first `count` questions."""
    return replace(answers, texts=answers.texts[:count], right=answers.right[:count])


def _given(answers: Answers | None) -> Answers:
    assert answers is not None, "the battery was asked"
    return answers


def _right(answers: Answers) -> tuple[int, int]:
    return first_questions(answers, TABLE_QUESTIONS).correct, answers.correct


def _served(trial: Trial) -> list[tuple[str, Copy]]:
    return list(trial.served.items())


def _contrary(trial: Trial, first: Answers, second: Answers) -> tuple[str, ...]:
    """What the numbers say where the pair comes out otherwise than expected."""
    few = flips(first, second)
    pair = compare_measurements(*(trial.copies[name].measurement for name in _PAIR))
    ratio = pair.perplexity_ratio
    reasons = []
    if few.p_value < SIGNIFICANT:
        reasons.append(
            f"contradicted: even {len(first.right)} questions tell them apart, {few.lost} answers "
            f"being lost and {few.gained} gained (p {few.p_value:.2g})"
        )
    if not pair.perplexity_differs:
        reasons.append(
            "contradicted: perplexity cannot tell them apart either on so much text, the second's "
            f"over the first's being {ratio.value:.4g} ({ratio.low:.4g} to {ratio.high:.4g})"
        )
    return tuple(reasons)


def _changes_places(first: Copy, second: Copy) -> bool:
    """Whether a penalty ranks two formats the other way round."""
    plain = [_given(each.measurement.candidate.answers).correct for each in (first, second)]
    under = [_given(each.penalised).correct for each in (first, second)]
    return (plain[0] - plain[1]) * (under[0] - under[1]) < 0
