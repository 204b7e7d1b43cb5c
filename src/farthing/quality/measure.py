"""What a model lost against a reference: one measurement, and the receipt that it becomes.

The candidate runs as `serve` would run it; the reference with nothing rounded on the way, unless
other settings are given. Both read the same windows of one text in lock-step.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from farthing import __version__
from farthing.core import RequestError
from farthing.files.receipt import (
    BatteryFacts,
    DivergenceFacts,
    Estimate,
    Precision,
    Receipt,
    ReferenceFacts,
    TextFacts,
)
from farthing.plan.machine import available_memory
from farthing.plan.memory import require_room
from farthing.quality import figures
from farthing.quality.battery import Answers, ask, flips, questions
from farthing.quality.intervals import LEVEL
from farthing.quality.scoring import compare, score
from farthing.quality.subject import EXACT, Settings, Subject
from farthing.quality.texts import held_out_text
from farthing.quality.vocabulary import require_same_tokenizer
from farthing.quality.windows import WINDOW_TOKENS, cut_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from farthing.files.checkpoint import Checkpoint
    from farthing.quality.battery import Question
    from farthing.quality.scoring import Scores
    from farthing.quality.texts import Text
    from farthing.quality.windows import Windows

    Source = Checkpoint | Path | str
    Progress = Callable[[str, float], None]

TOKENS = 3000
"""Scored tokens unless asked otherwise: 24 windows, which an interval can be made of."""

SERVED = Settings()


@dataclass(frozen=True)
class Measured:
    """One of the two models: what it is called, how it is stored and how it was computed.

    `rounded`: some matrix is stored in fewer than 16 bits. `answers` are the battery's, or None.
    `tensors` and `settings` are the digests of its files.
    """

    name: str
    bits_per_weight: float
    rounded: bool
    tensors: str
    precision: Precision
    perplexity: Estimate
    bits_per_byte: Estimate
    answers: Answers | None
    settings: str


@dataclass(frozen=True)
class Measurement:
    """What was found. `scores` are by window, so two measurements can be compared in pairs."""

    candidate: Measured
    reference: Measured
    text: TextFacts
    scores: Scores
    perplexity_ratio: Estimate
    kl: DivergenceFacts
    probability_rms: Estimate
    agreement: Estimate
    battery: BatteryFacts | None
    warnings: tuple[str, ...]
    seconds: float


def measure(
    candidate: Source,
    reference: Source,
    *,
    text: Text | None = None,
    tokens: int = TOKENS,
    window: int = WINDOW_TOKENS,
    battery: Sequence[Question] | None = None,
    settings: Settings = SERVED,
    reference_settings: Settings = EXACT,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measures `candidate` against `reference` on at least `tokens` scored tokens of `text`.

    `text` is the test text unless given, `battery` all of its questions; an empty one asks none.
    Memory beside the two models is bounded, whatever the text; by its default settings a reference
    of few bits is expanded to float32. `progress` is told what is being done and the share of it
    that is done. Raises `RequestError` for a text that is too short and for two models with
    different tokenizers; `DoesNotFitError` before anything is allocated.
    """
    started = perf_counter()
    tell = progress or _silent
    text = held_out_text() if text is None else text
    asked = questions() if battery is None else battery
    tell("open", 0.0)
    with (
        Subject(reference, reference_settings, window=window, threads=threads) as theirs,
        Subject(candidate, settings, window=window, threads=threads) as ours,
    ):
        require_same_tokenizer(ours.vocabulary, theirs.vocabulary)
        windows = cut_windows(ours.tokenizer, text, tokens, window)
        room = available_memory()
        require_room(theirs.plan, room)
        require_room(ours.plan, room - theirs.plan.total_bytes)
        scores = compare(ours.backend, theirs.backend, windows, lambda done: tell("score", done))
        answers = reference_answers = None
        if asked:
            tell("ask the reference", 0.0)
            reference_answers = ask(theirs.engine, asked)
            tell("ask", 0.0)
            answers = ask(ours.engine, asked)
        return measurement_of(
            ours,
            theirs,
            text,
            windows,
            scores,
            answers,
            reference_answers,
            perf_counter() - started,
        )


def measurement_of(
    ours: Subject,
    theirs: Subject,
    text: Text,
    windows: Windows,
    scores: Scores,
    answers: Answers | None,
    reference_answers: Answers | None,
    seconds: float,
) -> Measurement:
    """All figures of a candidate beside its reference, both open, from what they gave."""
    return Measurement(
        candidate=_measured(ours, scores.nll, windows, answers),
        reference=_measured(theirs, scores.reference_nll, windows, reference_answers),
        text=TextFacts(text.name, text.sha256, windows.count, windows.length, windows.scored),
        scores=scores,
        perplexity_ratio=figures.perplexity_ratio(scores.nll, scores.reference_nll),
        kl=figures.divergence(scores),
        probability_rms=figures.probability_rms(scores),
        agreement=figures.agreement(scores),
        battery=_battery(reference_answers, answers),
        warnings=_warnings(theirs),
        seconds=seconds,
    )


def measure_alone(
    source: Source,
    *,
    text: Text | None = None,
    tokens: int = TOKENS,
    window: int = WINDOW_TOKENS,
    settings: Settings = SERVED,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Perplexity and bits per byte of one model, for models that share no tokenizer.

    Of those only bits per byte may be compared. Parameters and errors are those of `measure`.
    """
    tell = progress or _silent
    tell("open", 0.0)
    with Subject(source, settings, window=window, threads=threads) as subject:
        windows = cut_windows(subject.tokenizer, text or held_out_text(), tokens, window)
        nll = score(subject.backend, windows, lambda done: tell("score", done))
        return _measured(subject, nll, windows, None)


def receipt_of(
    measurement: Measurement,
    *,
    scheme: str,
    methods: Sequence[str] = (),
    calibration_sha256: str | None = None,
    bits_per_weight: float | None = None,
) -> Receipt:
    """The receipt to be stored with the candidate.

    `bits_per_weight` are the achieved ones, where more is stored than the matrices in their
    formats. Raises `RequestError` when the model was calibrated with the text it was measured on.
    """
    if calibration_sha256 == measurement.text.sha256:
        raise RequestError(
            f"the model was calibrated with the text it is measured on, {measurement.text.name}: "
            "give another text for one of the two"
        )
    candidate, reference = measurement.candidate, measurement.reference
    return Receipt(
        scheme=scheme,
        methods=tuple(methods),
        bits_per_weight=candidate.bits_per_weight if bits_per_weight is None else bits_per_weight,
        tensors=candidate.tensors,
        precision=candidate.precision,
        reference=ReferenceFacts(
            reference.name, reference.bits_per_weight, reference.tensors, reference.precision
        ),
        text=measurement.text,
        calibration_sha256=calibration_sha256,
        perplexity=candidate.perplexity,
        reference_perplexity=reference.perplexity,
        perplexity_ratio=measurement.perplexity_ratio,
        bits_per_byte=candidate.bits_per_byte,
        kl=measurement.kl,
        probability_rms=measurement.probability_rms,
        agreement=measurement.agreement,
        battery=measurement.battery,
        level=LEVEL,
        warnings=measurement.warnings,
        farthing=__version__,
        settings=candidate.settings,
    )


def _silent(phase: str, done: float) -> None:
    pass


def _measured(
    subject: Subject, nll: NDArray[np.float64], windows: Windows, answers: Answers | None
) -> Measured:
    return Measured(
        name=subject.name,
        bits_per_weight=subject.bits_per_weight,
        rounded=subject.rounded,
        tensors=subject.digest,
        precision=subject.precision,
        perplexity=figures.perplexity(nll),
        bits_per_byte=figures.bits_per_byte(nll, windows),
        answers=answers,
        settings=subject.settings_digest,
    )


def _battery(reference: Answers | None, candidate: Answers | None) -> BatteryFacts | None:
    if reference is None or candidate is None:
        return None
    changed = flips(reference, candidate)
    return BatteryFacts(
        questions=len(candidate.right),
        correct=candidate.correct,
        reference_correct=reference.correct,
        lost=changed.lost,
        gained=changed.gained,
        p_value=changed.p_value,
    )


def _warnings(reference: Subject) -> tuple[str, ...]:
    if not reference.rounded:
        return ()
    warning = (
        f"the reference {reference.name} is no full precision: its matrices are stored in "
        f"{reference.bits_per_weight:.4g} bits a weight, so this says what was lost after that "
        "rounding, and nothing about weights of 16 bits or where their levels should lie"
    )
    return (warning,)
