"""Copies of a model, each written as `farthing quantize` writes it, measured beside the model.

The model itself is the reference: computed with nothing rounded on the way, it runs once beside as
many copies as memory has room for. What a copy gives does not depend on its neighbours.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.formats import GGUF_FORMATS
from farthing.files.gguf import GGUFFile
from farthing.forge.methods import NEEDS_TEXT, Method
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.lab.passage import PASSAGE
from farthing.lab.quality_countdown import Countdown
from farthing.lab.quality_trial import PENALTY, Copy, Trial
from farthing.lab.scratch import scratch
from farthing.lab.table import Skipped
from farthing.plan.machine import available_memory
from farthing.plan.memory import require_room
from farthing.quality.battery import ask
from farthing.quality.measure import measurement_of
from farthing.quality.scoring import compare_all
from farthing.quality.subject import EXACT, Settings
from farthing.quality.subject import Subject as Opened
from farthing.quality.texts import Text, held_out_text
from farthing.quality.windows import WINDOW_TOKENS, cut_windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.files.checkpoint import Checkpoint
    from farthing.forge.calibrate import Calibration
    from farthing.forge.report import QuantizeReport
    from farthing.lab.quality_trial import Recipe
    from farthing.lab.subject import Subject
    from farthing.quality.battery import Answers, Question
    from farthing.quality.windows import Windows

FEWEST_RIGHT = 8
"""Of a reference that answers fewer of a battery, its copies are not asked."""

# About the seconds that each takes for 135M parameters on two cores.
_WRITING = 2.0
_CALIBRATING = 12.0
_SERVED = 5.0
_EXACT = 8.0
_ASKING = 4.0


@dataclass(frozen=True)
class _Made:
    """A copy that lies on disk, or the model as it is; `scheme` None where it is."""

    checkpoint: Checkpoint
    bytes: int
    bits_per_weight: float | None
    substitutes: str


@dataclass(frozen=True)
class _Candidate:
    recipe: Recipe
    made: _Made
    opened: Opened

    @property
    def bytes(self) -> int:
        """All that its backend allocates."""
        return self.opened.plan.total_bytes


def measure_copies(
    subject: Subject,
    recipes: Sequence[Recipe],
    *,
    tokens: int,
    asked: Sequence[Question] = (),
    calibration: Calibration | None = None,
) -> Trial:
    """Makes and measures all of them on at least `tokens` scored tokens, one recipe after another.

    `asked` is the battery, which may be empty; `calibration` is for those that have methods.
    Raises `FarthingError` for a text too short, and where memory or disk have no room.
    """
    return _Trying(subject, recipes, tokens, asked, calibration).trial()


def measured_text(subject: Subject) -> Text:
    """The text that models are measured on: the test text, or what a person gave."""
    if subject.text == PASSAGE:
        return held_out_text()
    digest = hashlib.sha256(subject.text.encode()).hexdigest()
    return Text("the text given", subject.text, digest)


class _Trying:
    def __init__(
        self,
        subject: Subject,
        recipes: Sequence[Recipe],
        tokens: int,
        asked: Sequence[Question],
        calibration: Calibration | None,
    ) -> None:
        self._subject, self._recipes, self._tokens = subject, recipes, tokens
        self._asked, self._calibration = asked, calibration
        self._text = measured_text(subject)
        self._window = min(WINDOW_TOKENS, subject.model.config.context_length)
        self._countdown = Countdown(subject.progress.phase, self._effort())
        self._copies: dict[str, Copy] = {}
        self._skipped: list[Skipped] = []

    def trial(self) -> Trial:
        with self._open(self._subject.checkpoint, EXACT) as reference, ExitStack() as held:
            require_room(reference.plan, available_memory())
            windows = cut_windows(reference.tokenizer, self._text, self._tokens, self._window)
            self._subject.isa = reference.backend.tier
            # Comparing writes over what an engine has in its cache: the reference is asked before.
            answers, penalised = self._ask(reference, "the reference")
            if answers is not None and answers.correct < FEWEST_RIGHT:
                self._skip_battery(answers)
            room = available_memory() // 2
            group: list[_Candidate] = []
            for _, recipes in groupby(self._recipes, _file_of):
                alike = list(recipes)
                self._subject.gauge.look()
                try:
                    with self._made(alike[0]) as made:
                        candidates = [self._candidate(recipe, made) for recipe in alike]
                except UnsupportedModelError as error:
                    self._skipped += [Skipped(recipe.name, str(error)) for recipe in alike]
                    continue
                for candidate in candidates:
                    if group and sum(each.bytes for each in (*group, candidate)) > room:
                        self._measure(group, reference, windows, answers)
                        group.clear()
                        held.close()
                    require_room(candidate.opened.plan, available_memory())
                    held.enter_context(candidate.opened)
                    candidate.opened.pack()
                    group.append(candidate)
            self._measure(group, reference, windows, answers)
        return Trial(
            self._copies, tuple(self._skipped), _bytes(self._subject.checkpoint), penalised
        )

    @contextmanager
    def _made(self, recipe: Recipe) -> Iterator[_Made]:
        """The copy on disk, where it stays until the block ends, or the model as it is stored."""
        checkpoint, scheme, methods = self._subject.checkpoint, recipe.scheme, recipe.methods
        if scheme is None:
            yield _Made(checkpoint, _bytes(checkpoint), None, "")
            return
        units = _effort_of_making(recipe)

        def tell(stage: str, _: str, share: float) -> None:
            share = (share + (stage == "write")) / 2 if methods else share
            self._countdown.say(f"{stage} {recipe.name}", units * share)

        with scratch() as folder:
            as_gguf = (
                isinstance(checkpoint, GGUFFile)
                and {scheme, *(rule.scheme for rule in recipe.others)} <= GGUF_FORMATS.keys()
                and Method.STATIC_INPUTS not in methods
            )
            out = folder / ("copy.gguf" if as_gguf else "copy")
            needing = NEEDS_TEXT & {*methods}
            wish = Wish(scheme, recipe.others, methods, self._calibration if needing else None)
            report = quantize(checkpoint, out, wish, progress=tell)
            self._countdown.finish(units)
            with open_checkpoint(out) as copy:
                yield _Made(
                    copy, report.bytes, report.bits_per_weight, _substitutes(report, scheme)
                )

    def _candidate(self, recipe: Recipe, made: _Made) -> _Candidate:
        settings = Settings(self._subject.kv_dtype, self._subject.activations)
        opened = self._open(made.checkpoint, EXACT if recipe.weights_only else settings)
        opened.sign()
        return _Candidate(recipe, made, opened)

    def _open(self, checkpoint: Checkpoint, settings: Settings) -> Opened:
        return Opened(checkpoint, settings, window=self._window, threads=self._subject.threads)

    def _measure(
        self,
        group: Sequence[_Candidate],
        reference: Opened,
        windows: Windows,
        answers: Answers | None,
    ) -> None:
        """Compares all of the group, and asks those that are computed as served."""
        if not group:
            return
        started = perf_counter()
        self._subject.gauge.look()
        units = _EXACT + sum(_effort_of_comparing(each.recipe) for each in group)
        together = f"{len(group)} copies and the reference read {windows.count} windows"
        scores = compare_all(
            [candidate.opened.backend for candidate in group],
            reference.backend,
            windows,
            lambda share: self._countdown.say(together, units * share),
        )
        self._countdown.finish(units)
        seconds = (perf_counter() - started) / len(group)
        for candidate, found in zip(group, scores, strict=True):
            recipe, made, opened = candidate.recipe, candidate.made, candidate.opened
            own = penalised = None
            if not recipe.weights_only:
                own, penalised = self._ask(opened, recipe.name)
            measurement = measurement_of(
                opened, reference, self._text, windows, found, own, answers, seconds
            )
            bits = opened.bits_per_weight if made.bits_per_weight is None else made.bits_per_weight
            self._copies[recipe.name] = Copy(
                recipe, made.bytes, bits, made.substitutes, measurement, penalised
            )

    def _skip_battery(self, answers: Answers) -> None:
        reason = (
            f"the model itself answers {answers.correct} of {len(answers.right)} questions: too "
            "few to tell its copies apart by"
        )
        self._skipped.append(Skipped("battery", reason))
        self._asked = ()

    def _ask(self, opened: Opened, name: str) -> tuple[Answers | None, Answers | None]:
        """The battery without and with a repetition penalty; nothing where there is none."""
        if not self._asked:
            return None, None
        self._countdown.say(f"{name} answers")
        self._subject.gauge.look()
        plain = ask(opened.engine, self._asked)
        penalised = ask(opened.engine, self._asked, repetition_penalty=PENALTY)
        self._countdown.finish(_ASKING)
        return plain, penalised

    def _effort(self) -> float:
        """All that there is to do, about."""
        makings = {_file_of(recipe): recipe for recipe in self._recipes}
        asked = 1 + sum(not recipe.weights_only for recipe in self._recipes)
        return (
            _EXACT
            + sum(map(_effort_of_making, makings.values()))
            + sum(map(_effort_of_comparing, self._recipes))
            + (_ASKING * asked if self._asked else 0)
        )


def _file_of(recipe: Recipe) -> tuple[object, ...]:
    """Two that have this in common are computed from one file."""
    return recipe.scheme, recipe.methods, recipe.others


def _effort_of_making(recipe: Recipe) -> float:
    if recipe.scheme is None:
        return 0.0
    return _CALIBRATING if recipe.methods else _WRITING


def _effort_of_comparing(recipe: Recipe) -> float:
    return _EXACT if recipe.weights_only else _SERVED


def _bytes(checkpoint: Checkpoint) -> int:
    return sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())


def _substitutes(report: QuantizeReport, scheme: str) -> str:
    """What the matrices have that the scheme's blocks do not divide: "180 matrices as Q5_0"."""
    if not report.fallbacks:
        return ""
    others = (
        f"{share.tensors} as {name}" for name, share in report.matrices.items() if name != scheme
    )
    total = sum(share.tensors for share in report.matrices.values())
    return f"of {total} matrices {', '.join(others)}"
