"""What a student learns from its teacher: the teacher's soft labels, what a temperature makes of
them, and how near a student came.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import RequestError
from farthing.lab.distillation_student import measure_student
from farthing.lab.speculation_copies import read, softmax
from farthing.lab.table import Column, Expectation, Row, Skipped, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject

TEMPERATURES = (1.0, 2.0, 4.0)

SENTENCE_TOKENS = 24
"""Of the text, whose soft labels are shown."""

_POSITIONS = 4
_LABELS = 5
_RATIOS = (2.24, 10.0, 100.0)
_QUOTED = (2.24, 2.0, 1.50)
"""A ratio of two probabilities, a temperature, and what it makes of the ratio."""


def measure(subject: Subject) -> Iterator[Table | Skipped]:
    """Ratios at each temperature, a sentence's soft labels, and the student where one is given."""
    yield ratios_table()
    count = min(SENTENCE_TOKENS, subject.model.config.context_length)
    tokens = subject.tokens(count)
    subject.progress.phase("soft labels")
    with subject.native(count, step_tokens=count, step_rows=count) as teacher:
        logits, _ = read(teacher, np.array(tokens, np.int32), subject.seed, temperature=0.0)
    yield labels_table(logits, [subject.tokenizer.decode([token]) for token in tokens], subject)
    if subject.student is None:
        yield Skipped(
            "what a student learned",
            "no student is given: --student MODEL names one, and farthing distill "
            f"{subject.name} OUT --draft (or --student) makes one",
        )
        return
    yield from measure_student(subject, subject.student)


def softened_ratio(ratio: float, temperature: float) -> float:
    """What a ratio of two probabilities becomes where logits are divided by T: r^(1/T).

    Raises `RequestError` for a ratio or a temperature that is not above 0.
    """
    if ratio <= 0 or temperature <= 0:
        raise RequestError(f"both are above 0, not a ratio of {ratio} and T = {temperature}")
    return math.pow(ratio, 1 / temperature)


def ratios_table() -> Table:
    """The effect of a temperature, by the formula."""
    rows: tuple[Row, ...] = tuple(
        (ratio, *(softened_ratio(ratio, each) for each in TEMPERATURES)) for ratio in _RATIOS
    )
    ratio, temperature, quoted = _QUOTED
    found = softened_ratio(ratio, temperature)
    return Table(
        "ratios",
        "What a temperature makes of the ratio of two probabilities: r^(1 / T)",
        (
            Column("ratio", spec=".2f"),
            *(Column(f"at T = {each:g}", spec=".2f") for each in TEMPERATURES),
        ),
        rows,
        f"A label that is {ratio} times as likely as another is {found:.2f} times as likely at "
        f"T = {temperature:g}: what the teacher thinks of the unlikely ones is learned as well.",
        Expectation(
            f"{ratio} becomes {quoted:.2f} at T = {temperature:g}", round(found, 2) == quoted
        ),
    )


def telling_positions(logits: NDArray[np.float32], count: int = _POSITIONS) -> list[int]:
    """The positions, in order, where the likeliest token has about half of the probability: there
    the others matter, and are not lost among all of them.

    `logits` are (n, vocabulary).
    """
    largest = softmax(logits, 1.0).max(axis=1)
    return sorted(np.argsort(np.abs(largest - 0.5), kind="stable")[:count].tolist())


def labels_table(logits: NDArray[np.float32], words: Sequence[str], subject: Subject) -> Table:
    """The likeliest tokens at some positions of a sentence, at each temperature.

    `logits` are (n, vocabulary) after each of the n `words`.
    """
    rows: list[Row] = []
    worst = 0.0
    # Behind the last word nothing is known to follow, and before the second little.
    places = [each + 1 for each in telling_positions(logits[1:-1])]
    chances = {each: softmax(logits[places], each).astype(np.float64) for each in TEMPERATURES}
    plain = chances[TEMPERATURES[0]]
    for at, place in enumerate(places):
        top = np.argsort(-logits[place], kind="stable")[:_LABELS]
        first, second = top[:2]
        for each in TEMPERATURES[1:]:
            expected = softened_ratio(float(plain[at, first] / plain[at, second]), each)
            found = float(chances[each][at, first] / chances[each][at, second])
            worst = max(worst, abs(found / expected - 1))
        for token in top:
            label = _shown(subject.tokenizer.decode([int(token)]))
            behind = _shown("".join(words[max(0, place - 3) : place + 1]))
            rows.append((behind, label, *(float(chances[t][at, token]) for t in TEMPERATURES)))
    covered = {
        each: float(np.sort(chances[each], axis=1)[:, -_LABELS:].sum(axis=1).mean())
        for each in TEMPERATURES
    }
    first, last = TEMPERATURES[0], TEMPERATURES[-1]
    return Table(
        "labels",
        f"Soft labels: what the model expects at {len(places)} places of its text, the likeliest "
        f"{_LABELS}",
        (
            Column("behind"),
            Column("label"),
            *(Column(f"at T = {each:g}", spec=".4f") for each in TEMPERATURES),
        ),
        tuple(rows),
        f"The {_LABELS} likeliest have, on average, {covered[first]:.1%} of the probability at "
        f"T = {first:g} and {covered[last]:.1%} at T = {last:g}: a hard label would tell a student "
        "of one.",
        Expectation(
            "the ratio of the first two at T is that at 1 to the power of 1 / T", worst < 1e-3
        ),
    )


def _shown(text: str) -> str:
    """With quotes, so that spaces and line breaks are seen."""
    return json.dumps(text, ensure_ascii=False)
