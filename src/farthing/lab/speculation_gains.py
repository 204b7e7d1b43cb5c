"""What guessing gains on this machine: predicted by the formula, and measured in turns with plain.

The prediction is made from what was measured apart: what a step takes with guesses and without, on
the backend and on the host, and, from a run that is not the one that is predicted, in which share
of steps there is a guess, how often the one at each place is right, and what a draft's pass takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, CheckFailedError, SamplingParams, StepPlan
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.engine.rows import FixedRows
from farthing.engine.speculate import Speculation
from farthing.lab.samples import Samples, interleaved
from farthing.plan.memory import CATCH_UP_TOKENS, DRAFT_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farthing.backends.native import NativeBackend
    from farthing.engine.draft_model import ModelDrafter
    from farthing.engine.verification import DraftCounts
    from farthing.lab.speculation_prompts import Task
    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.text.chat import ChatTemplate

GUESSES = 4
"""The length of every draft whose gain is predicted."""

_STEPS = 24
"""Of each length, to time them."""

_AUTO_GUESSES = 8


@dataclass(frozen=True)
class Seen:
    """What a run with guesses showed, of one text.

    In `share` of its steps there was a guess, `length` of them on average, of which the one at each
    place was `right` so often where those before it were; `pass_seconds` is what one took.
    """

    share: float
    length: float
    right: tuple[float, ...]
    pass_seconds: float

    @classmethod
    def of(cls, before: DraftCounts, after: DraftCounts, tokens: int, seconds: float) -> Seen:
        """Of two counts, between which `tokens` were decoded, and `seconds` spent on guesses."""
        drafts = after.drafts - before.drafts
        proposed = after.proposed - before.proposed
        if not drafts:
            return cls(0.0, 0.0, (), 0.0)
        tested = [late - early for early, late in zip(before.tested, after.tested, strict=True)]
        right = [late - early for early, late in zip(before.right, after.right, strict=True)]
        plain = max(0, tokens - drafts - sum(right))
        return cls(
            drafts / (drafts + plain),
            proposed / drafts,
            tuple(one / all_ for one, all_ in zip(right, tested, strict=True) if all_),
            seconds / proposed,
        )

    @property
    def tokens_a_pass(self) -> float:
        """Of a step with guesses, by the rate of each place."""
        product, tokens = 1.0, 1.0
        for place, rate in enumerate(self.right):
            product *= rate
            tokens += product * min(1.0, max(0.0, self.length - place))
        return tokens


@dataclass(frozen=True)
class Outcome:
    """One text with one way to guess.

    `verify` is the time of a step with guesses over that of a plain one, `draft` that of a guess.
    `always` and `auto` are gains over plain decoding: with as many guesses in each step as are to
    be had, up to `GUESSES`, which is what is `predicted`; and with what the engine chooses.
    """

    way: str
    task: str
    plain: Samples
    seen: Seen
    verify: float
    draft: float
    predicted: float
    always: Samples
    auto: Samples

    @property
    def miss(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted / self.always.median - 1


class Turns:
    """Three engines over one model that decode in turns: plain, guessing always, and `auto`.

    Each has weights and cache of its own, and nothing is kept from one text to the next, so that
    none is spared anything. Where `draft` is a model, it guesses, else what stood before.
    """

    def __init__(
        self, subject: Subject, template: ChatTemplate | None, room: int, draft: Model | None = None
    ) -> None:
        """Raises `DoesNotFitError` where the machine has not the memory for all of them."""
        self._subject, self._template = subject, template
        self._room = min(room, subject.model.config.context_length)
        self._draft = draft
        with ExitStack() as stack:
            self._stack = stack
            self.target = self._backend(subject.model, draft_rows=DRAFT_ROWS)
            self.plain = self._engine(self.target, None)
            self.always_speculation = self._speculation(GUESSES, always=True)
            self.auto_speculation = self._speculation(_AUTO_GUESSES, always=False)
            guessing = [
                self._engine(self._backend(subject.model, draft_rows=DRAFT_ROWS), each)
                for each in (self.always_speculation, self.auto_speculation)
            ]
            self.always, self.auto = guessing
            self._stack = stack.pop_all()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _backend(
        self, model: Model, draft_rows: int = 0, step_tokens: int | None = None
    ) -> NativeBackend:
        return self._subject.open_native(
            min(self._room, model.config.context_length),
            model=model,
            draft_rows=draft_rows,
            step_tokens=step_tokens,
        )

    def _speculation(self, longest: int, *, always: bool) -> Speculation:
        if self._draft is None:
            from farthing.engine.lookup import LookupDrafter

            return Speculation(LookupDrafter(), longest, always=always)
        drafter = self._drafter(self._draft)
        return Speculation(drafter, longest, costly=drafter, always=always)

    def _drafter(self, draft: Model) -> ModelDrafter:
        from farthing.engine.draft_model import ModelDrafter

        return ModelDrafter(self._backend(draft, step_tokens=CATCH_UP_TOKENS))

    def _engine(self, backend: NativeBackend, speculation: Speculation | None) -> Engine:
        engine = Engine(
            backend,
            self._subject.tokenizer,
            self._template,
            policy=Policy(sharing=False),
            speculation=speculation,
        )
        self._stack.callback(engine.close)
        return engine


def texts_of(engine: Engine, tasks: Iterable[Task]) -> list[tuple[list[int], int]]:
    """What the model writes for each task: all tokens, and how many of them are the prompt."""
    texts = []
    for task in tasks:
        prompt = engine.encode(task.prompt)
        made = engine.generate(task.prompt, task.sampling)
        texts.append(([*prompt, *made.token_ids], len(prompt)))
    return texts


def outcomes(
    turns: Turns, way: str, tasks: Sequence[Task], rounds: int, say: Callable[[str], None]
) -> list[Outcome]:
    """Predicts, then measures every task."""
    found = []
    for task in tasks:
        label = f"{way}, {task.group}"
        say(f"{label}: what is predicted")
        _, text = _decoded(turns.plain, task)
        for engine in (turns.always, turns.auto):  # what is done for the first time takes longer
            _decoded(engine, task)
        speculation, before = turns.always_speculation, turns.always.stats().counters.drafts
        spent = speculation.spent
        _decoded(turns.always, task)
        seen = Seen.of(
            before,
            turns.always.stats().counters.drafts,
            len(text) - 1,
            speculation.spent - spent,
        )
        context = len(turns.plain.encode(task.prompt)) + len(text) // 2
        lengths = range(1, GUESSES + 2)
        steps = step_seconds(turns.target, lengths, context, task.sampling)
        gains = interleaved(
            {
                name: partial(_decoded_alike, engine, task, text)
                for name, engine in (
                    ("plain", turns.plain),
                    ("always", turns.always),
                    ("auto", turns.auto),
                )
            },
            rounds,
            partial(_say_of, say, label),
        )
        plain, always, auto = (gains[name] for name in ("plain", "always", "auto"))
        found.append(
            Outcome(
                way,
                task.group,
                plain.per(1.0),
                seen,
                _at(steps, 1 + seen.length) / steps[1],
                seen.pass_seconds / steps[1],
                predicted_gain(seen, steps, *_host(turns)),
                plain.over(always),
                plain.over(auto),
            )
        )
    return found


def predicted_gain(
    seen: Seen, steps: Mapping[int, float], host: float, host_guessing: float
) -> float:
    """Tokens a second over plain decoding.

    S = E / cost, where a step gives E tokens and costs so much of a plain one: with guesses in a
    share s of steps, E = 1 - s + s * (tokens a pass), and as much of the time. `steps` are seconds
    by the tokens of a step, `host` and `host_guessing` the host's in steps without and with.
    """
    plain = steps[1] + host
    guessing = _at(steps, 1 + seen.length) + host_guessing + seen.length * seen.pass_seconds
    tokens = 1 - seen.share + seen.share * seen.tokens_a_pass
    return tokens * plain / ((1 - seen.share) * plain + seen.share * guessing)


def step_seconds(
    backend: NativeBackend, lengths: Iterable[int], context: int, sampling: SamplingParams
) -> dict[int, float]:
    """Median seconds of a step of each number of tokens, all sampled, behind `context` others."""
    lengths = list(lengths)
    context = max(0, min(context, backend.context_length - max(lengths)))
    plans = {length: _plan(length, context, sampling) for length in lengths}
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(_STEPS + 1):
        for length, plan in plans.items():
            started = perf_counter()
            backend.run(plan)
            if number:  # the first one touches what was not touched before
                seconds[length].append(perf_counter() - started)
    return {length: median(each) for length, each in seconds.items()}


def _plan(length: int, context: int, sampling: SamplingParams) -> StepPlan:
    end = context + length
    rows = FixedRows([(SamplingParams(temperature=sampling.temperature), 0, 0)] * length)
    return StepPlan(
        token_ids=np.zeros(length, np.int32),
        positions=np.arange(context, end, dtype=np.int32),
        starts=np.array([0, length], np.int32),
        block_tables=np.arange(-(-end // BLOCK_TOKENS), dtype=np.int32)[None],
        rows=np.arange(length, dtype=np.int32),
        sampling=rows.at(range(context + 1, end + 1), [None] * length),
    )


def _decoded(engine: Engine, task: Task) -> tuple[float, tuple[int, ...]]:
    """Seconds a token from the first one on, and the tokens."""
    made = engine.generate(task.prompt, task.sampling)
    return made.timing.decode_seconds / max(1, len(made.token_ids) - 1), made.token_ids


def _decoded_alike(engine: Engine, task: Task, text: tuple[int, ...]) -> float:
    seconds, tokens = _decoded(engine, task)
    if tokens != text:
        raise CheckFailedError(
            f"guessing changed the text of {task.group}: this is a fault of farthing; farthing "
            "verify shows where, please report it"
        )
    return seconds


def _host(turns: Turns) -> tuple[float, float]:
    """Of the host in steps without and with guesses, by whoever made some."""
    hosts = [each.host for each in (turns.always_speculation, turns.auto_speculation)]
    without, with_guesses = (
        next((found for each in hosts if (found := each.of(1, guesses))), 0.0)
        for guesses in (False, True)
    )
    return without, with_guesses


def _at(steps: Mapping[int, float], length: float) -> float:
    return float(np.interp(length, list(steps), list(steps.values())))


def _say_of(say: Callable[[str], None], label: str, what: str) -> None:
    say(f"{label}: {what}")
