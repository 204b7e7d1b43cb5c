"""Three engines that decode in turns over one model: plain, guessing always, and as they choose.

They share the model's weights and cache, and a draft's where there is one, which hold nothing from
one text to the next: so none is spared anything, and none has memory that suits it better. What
each runs is remembered step by step.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farthing.backends.wrapped import WrappedBackend
from farthing.core import BLOCK_TOKENS, SamplingParams, StepPlan
from farthing.engine.cost import StepShape, attended
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.engine.rows import FixedRows
from farthing.engine.speculate import Speculation
from farthing.plan.memory import CATCH_UP_TOKENS, DRAFT_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farthing.backends import Backend
    from farthing.core import StepResult
    from farthing.engine.verification import DraftCounts
    from farthing.lab.speculation_prompts import Task
    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.text.chat import ChatTemplate

GUESSES = 4
"""The length of every draft whose gain is predicted."""

_AUTO_GUESSES = 8
_LENGTHS = range(1, GUESSES + 2)
_STEPS = 8
"""Of each length, to time them."""


class Step(NamedTuple):
    """One that ran: `rows` of its `tokens` gave a token; `began` is on `perf_counter`'s clock."""

    tokens: int
    rows: int
    began: float
    seconds: float


class Watched(WrappedBackend):
    """An engine's way to a backend that others use too, in turns: `steps` is what it ran.

    Whoever opened the backend closes it.
    """

    def __init__(self, inner: Backend, turn: Lock) -> None:
        """`turn` is held while the backend runs, by whoever lets it."""
        super().__init__(inner)
        self.steps: list[Step] = []
        self._turn = turn

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """The backend's own step."""
        with self._turn:
            began = perf_counter()
            result = super().run(plan, want_logits)
            seconds = perf_counter() - began
        self.steps.append(Step(len(plan.token_ids), len(plan.rows), began, seconds))
        return result

    def close(self) -> None:
        """Nothing: others may use the backend yet."""


@dataclass(frozen=True)
class Decoded:
    """A text that was decoded: `seconds` from its first token to its last, and where these went.

    `passes` counts the steps after the first token by their tokens, which took `in_passes`, and
    `guesses` those of a draft, which took `in_guesses`. `plain_host` and `guess_host` are the mean
    seconds of the host before a step without and with guesses. `before` and `after` are the
    engine's counts of guesses.
    """

    tokens: tuple[int, ...]
    seconds: float
    passes: Counter[int]
    in_passes: float
    guesses: Counter[int]
    in_guesses: float
    plain_host: float
    guess_host: float
    before: DraftCounts
    after: DraftCounts

    @property
    def each_token(self) -> float:
        """Seconds a token from the first one on."""
        return self.seconds / max(1, len(self.tokens) - 1)

    def foretold(self, steps: Mapping[int, float], guesses: Mapping[int, float]) -> float:
        """Its seconds, where steps, and those of the draft, take what is said by their tokens."""
        plain = self.passes[1]
        return (
            summed(self.passes, steps)
            + summed(self.guesses, guesses)
            + plain * self.plain_host
            + (self.passes.total() - plain) * self.guess_host
        )


class Way:
    """One engine, the way in which it guesses, and what it ran."""

    def __init__(self, engine: Engine, target: Watched, draft: Watched | None) -> None:
        self.engine = engine
        self._target = target
        self._draft = draft

    def decode(self, task: Task) -> Decoded:
        """Decodes the task, alone."""
        drafts = [] if self._draft is None else self._draft.steps
        self._target.steps.clear()
        drafts.clear()
        before = self.engine.stats().counters.drafts
        made = self.engine.generate(task.prompt, task.sampling)
        steps = list(self._target.steps)
        first = next(number for number, step in enumerate(steps) if step.rows)
        later = steps[first + 1 :]
        ended = steps[first].began + steps[first].seconds
        own = [step for step in drafts if step.began > ended]
        gaps: dict[bool, list[float]] = {False: [], True: []}
        for step in later:
            within = [each.seconds for each in own if ended <= each.began < step.began]
            gaps[step.tokens > 1].append(step.began - ended - sum(within))
            ended = step.began + step.seconds
        return Decoded(
            made.token_ids,
            made.timing.decode_seconds,
            Counter(step.tokens for step in later),
            sum(step.seconds for step in later),
            Counter(step.tokens for step in own),
            sum(step.seconds for step in own),
            _mean(gaps[False]),
            _mean(gaps[True]),
            before,
            self.engine.stats().counters.drafts,
        )


class Turns:
    """The engines. Where `draft` is a model, it guesses, else what stood before."""

    def __init__(
        self, subject: Subject, template: ChatTemplate | None, room: int, draft: Model | None = None
    ) -> None:
        """Raises `DoesNotFitError` where the machine has not the memory."""
        self._subject, self._template = subject, template
        with ExitStack() as stack:
            context = min(room, subject.model.config.context_length)
            turn = Lock()
            # Room for two texts: the last free blocks of a cache are for no guess.
            self.target = subject.open_native(context, 2, draft_rows=DRAFT_ROWS)
            stack.callback(self.target.close)
            self.draft: Backend | None = None
            if draft is not None:
                self.draft = subject.open_native(
                    min(context, draft.config.context_length),
                    model=draft,
                    step_tokens=CATCH_UP_TOKENS,
                )
                stack.callback(self.draft.close)
            self._stack, self._turn = stack, turn
            # What steps take is told to all of them: one that has to find out would do so while
            # another's turn is timed.
            steps = _observed(self.step_seconds(_LENGTHS, 0, SamplingParams()))
            guesses = _observed(self.guess_seconds((1, 2), 0))
            self.plain = self._way(None, steps, guesses)
            self.always = self._way(GUESSES, steps, guesses, always=True)
            self.auto = self._way(_AUTO_GUESSES, steps, guesses)
            self._stack = stack.pop_all()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def step_seconds(
        self, lengths: Iterable[int], context: int, sampling: SamplingParams
    ) -> dict[int, float]:
        """Seconds of a step of each number of tokens behind `context` others, all sampled."""
        return step_seconds(self.target, lengths, context, sampling)

    def guess_seconds(self, lengths: Iterable[int], context: int) -> dict[int, float]:
        """The same of the draft's, where there is one, of which the last token is sampled."""
        if self.draft is None:
            return {}
        return step_seconds(self.draft, lengths, context, SamplingParams(), rows=1)

    def _way(
        self,
        longest: int | None,
        steps: Sequence[tuple[StepShape, float]],
        guesses: Sequence[tuple[StepShape, float]],
        *,
        always: bool = False,
    ) -> Way:
        target = Watched(self.target, self._turn)
        draft = None
        speculation = None
        if longest is not None and self.draft is None:
            from farthing.engine.lookup import LookupDrafter

            speculation = Speculation(LookupDrafter(), longest, always=always)
        elif longest is not None and self.draft is not None:
            from farthing.engine.draft_model import ModelDrafter

            draft = Watched(self.draft, self._turn)
            drafter = ModelDrafter(draft)
            speculation = Speculation(drafter, longest, costly=drafter, always=always)
        engine = Engine(
            target,
            self._subject.tokenizer,
            self._template,
            policy=Policy(sharing=False),
            speculation=speculation,
        )
        self._stack.callback(engine.close)
        engine.expect(steps, guesses)
        return Way(engine, target, draft)


def step_seconds(
    backend: Backend,
    lengths: Iterable[int],
    context: int,
    sampling: SamplingParams,
    rows: int | None = None,
) -> dict[int, float]:
    """Median seconds of a step of each number of tokens behind `context` others.

    The last `rows` of them are sampled, all where that is None.
    """
    lengths = list(lengths)
    context = max(0, min(context, backend.context_length - max(lengths, default=0)))
    plans = {length: _plan(length, context, sampling, rows) for length in lengths}
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(_STEPS + 1):
        for length, plan in plans.items():
            started = perf_counter()
            backend.run(plan)
            if number:  # the first one touches what was not touched before
                seconds[length].append(perf_counter() - started)
    return {length: median(each) for length, each in seconds.items()}


def at(seconds: Mapping[int, float], length: float) -> float:
    """Of a step of so many tokens, between those that were timed; beyond them, as the last two."""
    sizes = sorted(seconds)
    if length <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(length, sizes, [seconds[size] for size in sizes]))
    last, other = sizes[-1], sizes[-2]
    slope = (seconds[last] - seconds[other]) / (last - other)
    return seconds[last] + max(0.0, slope) * (length - last)


def summed(counts: Mapping[int, int], seconds: Mapping[int, float]) -> float:
    """Seconds of so many steps of each number of tokens."""
    return sum(count * at(seconds, size) for size, count in counts.items())


def _plan(length: int, context: int, sampling: SamplingParams, rows: int | None) -> StepPlan:
    end = context + length
    count = length if rows is None else rows
    fixed = FixedRows([(SamplingParams(temperature=sampling.temperature), 0, 0)] * count)
    return StepPlan(
        token_ids=np.zeros(length, np.int32),
        positions=np.arange(context, end, dtype=np.int32),
        starts=np.array([0, length], np.int32),
        block_tables=np.arange(-(-end // BLOCK_TOKENS), dtype=np.int32)[None],
        rows=np.arange(length - count, length, dtype=np.int32),
        sampling=fixed.at(range(end - count + 1, end + 1), [None] * count),
    )


def _observed(seconds: Mapping[int, float]) -> list[tuple[StepShape, float]]:
    """As an engine learns what steps take, from a beginning without any context."""
    return [
        (StepShape(size, size, attended(0, size), size), each) for size, each in seconds.items()
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
