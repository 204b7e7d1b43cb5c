"""A student beside its teacher: how often it agrees, how far it is off, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import FileFormatError, SamplingParams
from farthing.engine.drafting import refuse_other_tokens
from farthing.engine.prompts import encode
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.files.json_files import read_json_object
from farthing.files.receipt import tensors_digest
from farthing.forge.distill_receipt import RECEIPT_FILE, VERSION
from farthing.lab.samples import Interval
from farthing.lab.speculation_copies import (
    POSITIONS,
    TEMPERATURE,
    agreeing,
    compared,
    last_token,
    read,
    softmax,
)
from farthing.lab.speculation_passes import (
    LENGTH,
    acceptance_by_place,
    counted_tokens,
    right_runs,
)
from farthing.lab.speculation_prompts import own_tasks
from farthing.lab.speculation_turns import step_seconds
from farthing.lab.table import Column, Expectation, Plot, Row, Skipped, Table
from farthing.models.load import load_model
from farthing.quality.intervals import estimate
from farthing.quality.texts import held_out_text
from farthing.quality.windows import cut_windows
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.backends.native import NativeBackend
    from farthing.files.receipt import Estimate
    from farthing.lab.speculation_copies import Acceptances
    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.quality.windows import Windows

_WINDOW = 128
_WRITTEN = 64
"""Tokens of each text that the teacher writes, to be guessed."""

_POINTS = 12
"""Of a training's history, at most."""


@dataclass(frozen=True)
class Scores:
    """Negative log-probabilities of the text's tokens, and divergences; (windows, positions).

    `kl` is of the tokens that the student has a score for, and `missing` the teacher's probability
    of all others.
    """

    nll: NDArray[np.float64]
    teacher_nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    missing: NDArray[np.float64]


def measure_student(subject: Subject, name: str) -> Iterator[Table | Skipped]:
    """Agreement, divergence and perplexity of the student `name`, its acceptance as a draft, and
    how it learned where its folder says so.

    Raises `RequestError` for a student whose tokens are not the teacher's.
    """
    path = resolve(name, subject.progress)
    checkpoint = open_checkpoint(path)
    student = load_model(checkpoint)
    refuse_other_tokens(load_tokenizer(checkpoint), subject.tokenizer, ("student", "teacher"))
    window = min(_WINDOW, subject.model.config.context_length, student.config.context_length)
    text = held_out_text()
    windows = cut_windows(subject.tokenizer, text, POSITIONS, window)
    prompts = _prompts(subject)
    room = max(window, *(len(prompt) + _WRITTEN for prompt in prompts))
    room = min(room, subject.model.config.context_length, student.config.context_length)
    subject.progress.phase("teacher and student read")
    with (
        subject.native(room, step_tokens=room, step_rows=room) as teacher,
        subject.native(room, model=student, step_tokens=room, step_rows=room) as own,
    ):
        theirs = [read(teacher, row, subject.seed) for row in windows.token_ids]
        scores = scores_of(own, theirs, windows)
        acceptances = compared(own, theirs, windows, subject.seed)
        written = [_written(teacher, prompt[-(room - _WRITTEN) :]) for prompt in prompts]
        runs = right_runs(agreeing(own, each) for each in written)
        seconds = [step_seconds(each, [1], window, SamplingParams())[1] for each in (teacher, own)]
    share = _weights(student) / _weights(subject.model)
    yield learned_table(text.name, scores, acceptances, share, seconds[1] / seconds[0])
    yield places_table(runs, len(written))
    yield from receipt_tables(path, lambda: tensors_digest(subject.checkpoint))


def scores_of(
    student: NativeBackend,
    theirs: Sequence[tuple[NDArray[np.float32], NDArray[np.int32]]],
    windows: Windows,
) -> Scores:
    """The student beside its teacher's logits over the same windows, in their scored parts."""
    shape = windows.count, windows.length - windows.first_scored
    nll, teacher_nll = np.empty(shape), np.empty(shape)
    kl, missing = np.empty(shape), np.empty(shape)
    rows = slice(windows.first_scored - 1, windows.length - 1)
    for at, (tokens, (logits, _)) in enumerate(zip(windows.token_ids, theirs, strict=True)):
        p = softmax(logits[rows], 1.0).astype(np.float64)
        q = softmax(read(student, tokens, 0, temperature=0.0)[0][rows], 1.0).astype(np.float64)
        places = np.arange(len(p)), tokens[windows.first_scored :]
        with np.errstate(divide="ignore"):
            nll[at], teacher_nll[at] = -np.log(q[places]), -np.log(p[places])
        known = q > 0
        missing[at] = np.where(known, 0.0, p).sum(axis=1)
        # Of what the student has a score for; the rest is told apart.
        ratio = np.divide(p, q, out=np.ones_like(p), where=known & (p > 0))
        kl[at] = np.maximum((p * np.log(ratio)).sum(axis=1), 0)
    return Scores(nll, teacher_nll, kl, missing)


def learned_table(
    text: str, scores: Scores, acceptances: Acceptances, weights: float, cost: float
) -> Table:
    """What a student learned, each figure with its interval."""
    known = np.isfinite(scores.nll)
    ratio = np.where(known, scores.nll - scores.teacher_nll, 0.0).sum(axis=1)
    counted = known.sum(axis=1).astype(np.float64)
    perplexities = [
        estimate(np.where(known, each, 0.0).sum(axis=1), np.exp, per=counted)
        for each in (scores.teacher_nll, scores.nll)
    ]
    agreement = acceptances.agreement
    shared = estimate(acceptances.shared.mean(axis=1))
    kl = estimate(scores.kl.mean(axis=1))
    worse = estimate(ratio, np.exp, per=counted)
    rows: tuple[Row, ...] = (
        ("agreement: the same most likely token", None, _interval(agreement)),
        (f"a guess is right at temperature {TEMPERATURE}", None, _interval(shared)),
        ("divergence from the teacher, nats", None, _interval(kl)),
        ("perplexity", *map(_interval, perplexities)),
        ("perplexity over the teacher's", 1.0, _interval(worse)),
        ("weights, of the teacher's", 1.0, weights),
        ("time of a decoded token, of the teacher's", 1.0, cost),
    )
    lost = float(scores.missing.mean())
    notes = ["intervals are of 95%, windows drawn again"]
    if lost > 0 or not known.all():
        notes.append(
            f"the student has no score for some tokens, of which the teacher expects {lost:.2%}; "
            f"divergence is of the others, and perplexities are of the {known.mean():.1%} of the "
            "text that both can say"
        )
    return Table(
        "learned",
        f"What the student learned, on {acceptances.positions} positions of {text}",
        (
            Column("figure"),
            Column("teacher", spec=".3f"),
            Column("student", spec=".3f"),
        ),
        rows,
        f"With {weights:.0%} of the weights the student says what its teacher says "
        f"{agreement.value:.0%} of the time, is {worse.value:.2f} times as perplexed and takes "
        f"{cost:.0%} of the time.",
        Expectation("a student is more perplexed than its teacher", worse.value > 1),
        notes=tuple(notes),
    )


def places_table(runs: NDArray[np.int64], texts: int) -> Table:
    """The student as a draft: acceptance by place, and tokens a pass."""
    places = acceptance_by_place(runs)
    rows: tuple[Row, ...] = tuple(
        (place, rate, counted_tokens(runs, place)) for place, rate in enumerate(places, 1)
    )
    return Table(
        "places",
        f"The student as a draft, on {texts} texts that the teacher wrote greedily",
        (
            Column("place"),
            Column("right, those before it being right", spec=".3f"),
            Column("tokens of a pass so long", spec=".2f"),
        ),
        rows,
        f"A pass over {LENGTH} of its guesses gives {counted_tokens(runs, LENGTH):.2f} tokens.",
        plots=(Plot("lines", "place", ("right, those before it being right",)),),
    )


def receipt_tables(path: Path, teacher: Callable[[], str]) -> Iterator[Table | Skipped]:
    """How the student was made, where its folder says so. `teacher` gives the digest of the
    teacher's tensors.
    """
    receipt = path / RECEIPT_FILE
    if not receipt.is_file():
        yield Skipped("how the student learned", f"there is no {RECEIPT_FILE} beside its weights")
        return
    try:
        facts = read_json_object(receipt, advice="")
        if facts.get("version") != VERSION:
            raise FileFormatError(f"{receipt} is of another version than {VERSION}")
        yield _history(facts, teacher())
    except FileFormatError as error:
        yield Skipped("how the student learned", str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield Skipped(
            "how the student learned",
            f"{receipt} is damaged ({type(error).__name__}: {error!s:.80})",
        )


def _history(facts: dict[str, Any], teacher: str) -> Table:
    points = [
        (
            int(each["step"]),
            int(each["tokens"]),
            None if each["loss"] is None else float(each["loss"]),
            float(each["divergence"]),
            float(each["acceptance"]),
        )
        for each in facts["history"]
    ]
    if not points:
        raise ValueError("it has no history")
    kept = sorted({*np.linspace(0, len(points) - 1, _POINTS).round().astype(int).tolist()})
    points = [points[at] for at in kept]
    first, last = points[0], points[-1]
    gain = facts["gain"]
    name = str(facts["teacher"]["name"])
    notes = []
    if facts["teacher"]["tensors"] != teacher:
        notes.append(f"its teacher was {name}, whose weights are not those of this model")
    measured = (
        ""
        if gain is None
        else (
            f" As a draft it made decoding {float(gain['speed_up']):.2f} times as fast when it was "
            f"made{'' if gain['used'] else ', and is hardly used: it does not pay'}."
        )
    )
    return Table(
        "history",
        f"How the student learned from {int(facts['text']['tokens']):,} tokens that {name} wrote",
        (
            Column("step"),
            Column("tokens read"),
            Column("loss", spec=".3f"),
            Column("divergence, held-out", spec=".3f"),
            Column("acceptance, held-out", spec=".3f"),
        ),
        tuple(points),
        f"In {last[0]:,} steps the probability that a guess is taken went from {first[4]:.1%} to "
        f"{last[4]:.1%} on held-out text.{measured}",
        Expectation("acceptance rises", last[4] > first[4]),
        notes=tuple(notes),
        plots=(Plot("lines", "tokens read", ("acceptance, held-out",)),),
    )


def _prompts(subject: Subject) -> list[list[int]]:
    from farthing.text.chat import load_chat_template

    template = load_chat_template(subject.checkpoint, subject.tokenizer)
    most = subject.model.config.context_length
    return [
        encode(task.prompt, subject.tokenizer, template, most)
        for task in own_tasks(template, _WRITTEN)
    ]


def _written(teacher: NativeBackend, prompt: list[int]) -> tuple[list[int], int]:
    """What the teacher writes behind the prompt, greedily, a token at a time."""
    tokens = list(prompt)
    for _ in range(_WRITTEN):
        fed = tokens if len(tokens) == len(prompt) else tokens[-1:]
        tokens.append(last_token(teacher, fed, len(tokens) - len(fed)))
    return tokens, len(prompt)


def _weights(model: Model) -> int:
    return sum(prod(weight.shape) for weight in model.program.weights.values())


def _interval(estimated: Estimate) -> Interval:
    return Interval(estimated.value, estimated.low, estimated.high)
