"""What a measurement has found so far, on disk as it comes: who is stopped goes on from there.

A line of JSON for each figure. The first names what the figures depend on; a journal of anything
else, or one that is old, is begun anew. The first line that is not sound ends what is read: a
process that was killed leaves half of one. Whoever has a journal open has it alone.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from farthing.core import ActivationMode, FarthingError, RequestError
from farthing.files.locks import take
from farthing.files.replacing import write_advice
from farthing.files.text_files import read_bounded
from farthing.lab.tune_points import Step
from farthing.lab.tune_rounds import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

VERSION = 1

MOST_AGE = 24 * 3600.0
"""Seconds: what was measured longer ago may be of a machine that has changed."""

_MOST_BYTES = 64 << 20

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e300)]


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    digest: str
    began: _Time


class _StepLine(msgspec.Struct, tag="step", forbid_unknown_fields=True):
    """`step` are the numbers of a `Step`; `spent` is the time that the measurement took so far."""

    engine: str
    step: tuple[_Count, _Count, _Count, _Count]
    seconds: _Positive
    spent: _Time


class _CeilingsLine(msgspec.Struct, tag="ceilings", forbid_unknown_fields=True):
    engine: str
    read: _Positive
    products: dict[ActivationMode, _Positive]
    spent: _Time


_Line = _StepLine | _CeilingsLine


class Journal:
    """Of one question, in a folder of them. `seconds` is the time that what it has took.

    `clock` gives seconds since the epoch.
    """

    def __init__(
        self, folder: Path, question: Mapping[str, Any], clock: Callable[[], float] = time.time
    ) -> None:
        """Raises `FarthingError` where the folder cannot be written to, and where another process
        is answering the same question.
        """
        text = json.dumps({"version": VERSION, **question}, sort_keys=True)
        self._digest = sha256(text.encode()).hexdigest()
        self.path = folder / f"{self._digest[:32]}.jsonl"
        self.samples: dict[str, Samples] = {}
        self.seconds = 0.0
        self._clock = clock
        self._started = clock()
        busy = FarthingError(
            "another farthing tune is measuring the same on this machine, and each would slow the "
            "other: wait until it is done"
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = take(self.path, busy)
        except OSError as error:
            raise FarthingError(write_advice(self.path, error)) from error
        head, lines = self._read()
        for each in lines:
            self._take(each)
        self._before = self.seconds
        # Written anew without what was not understood, so that lines are whole from here on.
        self._file.truncate()
        self._write(head)
        for line in lines:
            self._write(line)

    @property
    def figures(self) -> int:
        """How many times of steps it has."""
        return sum(len(each) for one in self.samples.values() for each in one.seconds.values())

    def add_step(self, engine: str, step: Step, seconds: float) -> None:
        """One measurement of a step."""
        numbers = (step.decoding, step.context, step.first, step.chunk)
        self._write(_StepLine(engine, numbers, seconds, self._spent()))

    def add_ceilings(
        self, engine: str, read: float, products: Mapping[ActivationMode, float]
    ) -> None:
        """One measurement of the ceilings."""
        self._write(_CeilingsLine(engine, read, dict(products), self._spent()))

    def close(self) -> None:
        """It stays, for whoever asks the same again."""
        self._file.close()

    def remove(self) -> None:
        """The question is answered."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _spent(self) -> float:
        return self._before + max(0.0, self._clock() - self._started)

    def _write(self, line: _Head | _Line) -> None:
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise FarthingError(write_advice(self.path, error)) from error

    def _read(self) -> tuple[_Head, list[_Line]]:
        """What is there; a head of now and no line where that is of something else."""
        lines: list[_Line] = []
        with suppress(msgspec.DecodeError, RecursionError, RequestError, StopIteration):
            texts = iter(read_bounded(self.path, _MOST_BYTES).split(b"\n"))
            head = msgspec.json.decode(next(texts), type=_Head)
            if head.digest == self._digest and 0 <= self._started - head.began <= MOST_AGE:
                with suppress(msgspec.DecodeError, RecursionError):
                    lines.extend(msgspec.json.decode(text, type=_Line) for text in texts)
                return head, lines
        return _Head(self._digest, self._started), lines

    def _take(self, line: _Line) -> None:
        samples = self.samples.setdefault(line.engine, Samples())
        self.seconds = max(self.seconds, line.spent)
        if isinstance(line, _StepLine):
            samples.seconds.setdefault(Step(*line.step), []).append(line.seconds)
            return
        samples.reads.append(line.read)
        for mode, rate in line.products.items():
            samples.products.setdefault(mode, []).append(rate)
