"""A draft or a small student made of a teacher: text, training, the model, what it is worth.

The teacher writes texts by the engine and what it drew each token from is kept (`teacher.py`,
`lessons.py`); a model of some of its layers (`student.py`) is trained to give the same
distributions (`trainer.py`), stored as an ordinary model, and measured beside its teacher
(`gain.py`). Everything on the way lies in a workplace (`workplace.py`), from which a run that was
ended goes on bit for bit.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import DoesNotFitError, FarthingError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.formats import spelling
from farthing.files.receipt import tensors_digest
from farthing.forge.container import identity
from farthing.forge.curve import curve
from farthing.forge.distill_receipt import CURVE_FILE, RECEIPT_FILE, Distilled
from farthing.forge.gain import measure_gain
from farthing.forge.lessons import (
    TOKEN_BYTES,
    likeliest_tokens,
    read_shard,
    text_hash,
    write_shard,
)
from farthing.forge.openings import openings_of, shipped_openings
from farthing.forge.outline import check_name
from farthing.forge.output import check_output, check_room, put_in_place, remove
from farthing.forge.receipt import put_inside
from farthing.forge.student import StudentShape, check_teacher, weights_of_teacher, write_student
from farthing.forge.teacher import TEXT_TOKENS, Teacher
from farthing.forge.trainer import Taught, Trainer, repeatable
from farthing.forge.workplace import discard, workplace
from farthing.models.load import load_model
from farthing.plan.machine import available_memory
from farthing.quality.measure import measure, receipt_of
from farthing.quality.windows import WINDOW_TOKENS
from farthing.text.chat import load_chat_template
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.receipt import Receipt
    from farthing.forge.distill_wish import DistillWish
    from farthing.forge.gain import Gain
    from farthing.forge.lessons import Lesson, Lessons
    from farthing.forge.openings import Openings
    from farthing.forge.trainer import Point
    from farthing.forge.workplace import Workplace
    from farthing.models.load import Model

    Told = Callable[[str, str, float], None]
    Stop = Callable[[], bool]

_TEXT_SHARE = 0.4
"""Of the time that everything may take, for writing the text; the rest is for training."""

_SPARE_SHARE = 0.05
"""Of the time that training may take: evaluations and checkpoints."""

_MOST_READINGS = 8
_MOST_TEXTS, _LEAST_TEXTS = 96, 4
_HELD_OUT_TEXTS = 24
_MEASURED_PROMPTS = 6
_STATE_BYTES = 16
"""Of each weight in training: itself, its gradient, two moments."""


def distill(
    checkpoint: Checkpoint,
    out: Path | str,
    wish: DistillWish,
    *,
    force: bool = False,
    restart: bool = False,
    told: Told = lambda stage, what, share: None,
    stop: Stop = lambda: False,
) -> Distilled | None:
    """Makes the model that is wished for, a folder at `out`; None where `stop` answered True first.

    A run that was stopped or killed goes on with the same wish; `restart` throws away what it has.
    `force` replaces a model at `out`. `told` is given the stage ("write", "train", "measure"), how
    it is going, and its share. Raises `FarthingError`: for a wish that does not fit the teacher,
    other settings than the workplace was begun with, a place that is taken or cannot be written to,
    a disk or a memory without room, a text too short.
    """
    out = Path(out)
    teacher = load_model(checkpoint)
    check_teacher(teacher, checkpoint)
    wish.check(teacher)
    check_name(out, checkpoint, as_gguf=False)
    check_output(out, folder=True, force=force)
    making = _Making(checkpoint, teacher, wish, told, stop)
    making.check_sizes(out)
    with workplace(out, {**wish.facts(), **identity(checkpoint)}, restart) as place:
        shards = making.text(place)
        if shards is None:
            return None
        trainer = making.trained(place, shards)
        if trainer is None:
            return None
        made = making.result(place, out, shards, trainer)
        try:
            put_in_place(place.result, out)
        except OSError as error:
            raise FarthingError(f"{out} cannot be put in its place: {error.strerror}") from error
    discard(out)
    return made


class _Making:
    """One distillation."""

    def __init__(
        self, checkpoint: Checkpoint, teacher: Model, wish: DistillWish, told: Told, stop: Stop
    ) -> None:
        self._checkpoint, self._teacher, self._wish = checkpoint, teacher, wish
        self._told, self._stop = told, stop
        self._tokenizer = load_tokenizer(checkpoint)
        self._chat_template = load_chat_template(checkpoint, self._tokenizer)
        self._parameters = _parameters(teacher, wish)
        self._name = f"{wish.kind} of {teacher.name}"

    def check_sizes(self, out: Path) -> None:
        """Raises before anything is made where disk or memory cannot hold what is to be."""
        text = TOKEN_BYTES * (self._wish.tokens or 0)
        state = _STATE_BYTES * self._parameters
        # A checkpoint is written beside the last one; the start and the result have weights only.
        check_room(out, text + 2 * state)
        room = available_memory()
        if text + 2 * state > room:
            raise DoesNotFitError(
                f"training takes about {2 * state / 1e6:,.0f} MB and its text "
                f"{text / 1e6:,.0f} MB, and {room / 1e6:,.0f} MB are available: take fewer layers "
                "or tokens"
            )

    def text(self, place: Workplace) -> list[Lessons] | None:
        """All shards, the held-out one first; those that are missing are written. None: stopped."""
        wish = self._wish
        found: list[Lessons] = []
        while place.shard(len(found)).exists():
            found.append(read_shard(place.shard(len(found))))
        if self._is_enough(found):
            return found
        with Teacher(self._checkpoint, self._teacher, wish.threads, wish.temperature) as teacher:
            openings = self._openings(teacher.prompt_tokens)
            while not self._is_enough(found):
                number = len(found)
                check_room(place.shard(number), TOKEN_BYTES * TEXT_TOKENS * self._texts(number))
                lessons = teacher.write(
                    openings, number, self._texts(number), wish.seed, self._telling(found)
                )
                if lessons is None:
                    return None
                write_shard(place.shard(number), lessons)
                found.append(lessons)
        return found

    def trained(self, place: Workplace, shards: list[Lessons]) -> Trainer | None:
        """The student when it has made all its steps. None: stopped."""
        held_out, lessons = _divided(shards)
        shape = self._shape(lessons)
        self._told("train", "", 0.0)
        if not place.start.exists():
            begun = place.start.with_name("start.partial")
            remove(begun)
            weights = weights_of_teacher(self._teacher, shape)
            write_student(begun, self._checkpoint, self._teacher, shape, weights, self._name)
            begun.rename(place.start)
        wish = self._wish
        taught = Taught(wish.kind, wish.seed, wish.temperature, wish.hard_share, wish.reverse)
        with open_checkpoint(place.start) as start, repeatable(wish.threads):

            def trainer(steps: int) -> Trainer:
                return Trainer(
                    load_model(start), shape.head_tokens, lessons, held_out, taught, steps
                )

            schedule = place.schedule()
            if schedule is None:
                schedule = {"steps": self._steps(shards, trainer(1000))}
                place.decide(schedule)
            found = trainer(schedule["steps"])
            if place.checkpoint.exists():
                found.restore(place.checkpoint)
            done = found.train(place.checkpoint, self._telling_of(found), self._stop)
        return found if done else None

    def result(
        self, place: Workplace, out: Path, shards: list[Lessons], trainer: Trainer
    ) -> Distilled:
        """Writes the model into the workplace, with what it is worth and how it came about."""
        held_out, lessons = _divided(shards)
        shape = self._shape(lessons)
        remove(place.result)
        wish, teacher = self._wish, self._teacher
        write_student(
            place.result,
            self._checkpoint,
            teacher,
            shape,
            trainer.weights,
            self._name,
            wish.scheme,
        )
        vocabulary = teacher.program.vocabulary_size
        made = Distilled(
            wish=wish,
            path=out,
            teacher=teacher.name,
            tensors=tensors_digest(self._checkpoint),
            head_tokens=vocabulary if shape.head_tokens is None else len(shape.head_tokens),
            text_sha256=text_hash(lessons),
            text_tokens=sum(each.written_tokens for each in shards[1:]),
            held_out_tokens=shards[0].written_tokens,
            steps=trainer.steps,
            history=tuple(trainer.history),
            seconds=sum(each.seconds for each in shards) + trainer.seconds,
            bytes=sum(file.stat().st_size for file in place.result.glob("*.safetensors")),
            gain=self._gain(place, held_out) if wish.kind == "draft" else None,
            receipt=self._receipt(place) if wish.kind == "student" else None,
        )
        if made.receipt is not None:
            put_inside(made.receipt, place.result)
        (place.result / CURVE_FILE).write_text(curve(made.history, self._name), encoding="utf-8")
        (place.result / RECEIPT_FILE).write_text(made.to_json(), encoding="utf-8")
        return made

    def _gain(self, place: Workplace, held_out: list[Lesson]) -> Gain:
        prompts = [tuple(each.token_ids[: each.written].tolist()) for each in held_out]
        with open_checkpoint(place.result) as made:
            return measure_gain(
                self._teacher,
                load_model(made),
                self._tokenizer,
                prompts[:_MEASURED_PROMPTS],
                self._wish.threads,
                lambda share: self._told("measure", "", share),
            )

    def _receipt(self, place: Workplace) -> Receipt:
        """What a student lost against its teacher, on the test text, without the battery."""
        with open_checkpoint(place.result) as made:
            measurement = measure(
                made,
                self._checkpoint,
                battery=(),
                window=min(WINDOW_TOKENS, load_model(made).config.context_length),
                threads=self._wish.threads,
                progress=lambda phase, share: self._told("measure", phase, share),
            )
        return receipt_of(measurement, scheme=f"{spelling(self._wish.scheme)}, distilled")

    def _shape(self, lessons: list[Lesson]) -> StudentShape:
        count, vocabulary = self._wish.head_tokens, self._teacher.program.vocabulary_size
        if count is None or count >= vocabulary:
            return StudentShape(self._wish.layers)
        return StudentShape(self._wish.layers, likeliest_tokens(lessons, count, vocabulary))

    def _openings(self, most_tokens: int) -> Openings:
        parts = self._tokenizer, self._chat_template, most_tokens, self._wish.seed
        if self._wish.prompts:
            return openings_of(self._wish.prompts, *parts)
        return shipped_openings(*parts)

    def _texts(self, number: int) -> int:
        """How many texts a shard has."""
        if self._wish.tokens is None:
            return _HELD_OUT_TEXTS if number == 0 else _MOST_TEXTS
        wanted = self._wish.tokens // (4 * TEXT_TOKENS)
        return max(_LEAST_TEXTS, min(_MOST_TEXTS if number else _HELD_OUT_TEXTS, wanted))

    def _is_enough(self, shards: list[Lessons]) -> bool:
        if len(shards) < 2:
            return False
        return self._share_written(shards, 0, 0.0) >= 1.0

    def _share_written(self, shards: list[Lessons], tokens: int, seconds: float) -> float:
        """Of the text; `tokens` and `seconds` are those of a shard that is being written."""
        written = sum(each.written_tokens for each in shards[1:]) + tokens * (len(shards) > 0)
        if self._wish.tokens is not None:
            return written / self._wish.tokens
        assert self._wish.hours is not None
        spent = sum(each.seconds for each in shards) + seconds
        by_time = spent / (_TEXT_SHARE * 3600 * self._wish.hours)
        # All of the text is in memory while a student learns from it.
        return max(by_time, written * TOKEN_BYTES / (available_memory() / 4))

    def _telling(self, shards: list[Lessons]) -> Callable[[int, float], bool]:
        def telling(tokens: int, seconds: float) -> bool:
            speed = f"{tokens / seconds:,.0f} tokens/s" if seconds > 1 else ""
            share = self._share_written(shards, tokens, seconds)
            self._told("write", speed, min(1.0, share))
            return not self._stop()

        return telling

    def _telling_of(self, trainer: Trainer) -> Callable[[Point, float], None]:
        def telling(point: Point, speed: float) -> None:
            what = (
                f"loss {trainer.newest_loss:.3f}, divergence {point.divergence:.3f}, acceptance "
                f"{point.acceptance:.1%}, {speed:,.0f} tokens/s"
            )
            self._told("train", what, trainer.step / trainer.steps)

        return telling

    def _steps(self, shards: list[Lessons], trial: Trainer) -> int:
        """How many steps there are to be; `trial` is thrown away."""
        if self._wish.hours is None:
            return trial.steps_of(self._wish.passes)
        spent = sum(each.seconds for each in shards)
        left = (3600 * self._wish.hours - spent) * (1 - _SPARE_SHARE)
        steps = int(left / trial.seconds_a_step())
        return max(1, min(steps, trial.steps_of(_MOST_READINGS)))


def _divided(shards: list[Lessons]) -> tuple[list[Lesson], list[Lesson]]:
    """What is held out, and what is learnt from."""
    return list(shards[0].texts), [text for shard in shards[1:] for text in shard.texts]


def _parameters(teacher: Model, wish: DistillWish) -> int:
    """How many weights the student has, or a few more."""
    count = 0
    for name, weight in teacher.program.weights.items():
        part = name.split(".")
        if part[0] != "layers" or int(part[1]) < len(wish.layers):
            count += prod(weight.shape)
    if wish.head_tokens is not None:
        count += wish.head_tokens * teacher.config.hidden_size
    return count
