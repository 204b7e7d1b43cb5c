"""Contexts x users x precisions: what fits, how fast it goes, what it costs, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from farthing.core import BLOCK_TOKENS
from farthing.plan.price import Prices, prices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from farthing.plan.objective import Objective
    from farthing.plan.speed import Speed
    from farthing.plan.subject import Subject
    from farthing.plan.sum import MemorySum
    from farthing.plan.traffic import Traffic

MOST_USERS = 1 << 16
"""Nobody is told of more: no engine runs so many texts at once."""


@dataclass(frozen=True)
class Question:
    """What a grid is asked for.

    `room` bytes are there; None for `users` asks for one, and for the most that fit. `step_seconds`
    is what the engine keeps a step within while others write.
    """

    room: int
    traffics: tuple[Traffic, ...]
    users: tuple[int, ...] | None
    objective: Objective | None = None
    price_per_hour: float | None = None
    step_seconds: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds to a first token while the others write, and of a step in which all gain a token."""

    first_token: float
    step: float
    users: int
    basis: str
    prices: Prices | None

    @property
    def per_user(self) -> float:
        """Tokens a second that one of them gets."""
        return 1 / self.step

    @property
    def in_all(self) -> float:
        """Tokens a second that all of them get."""
        return self.users / self.step


@dataclass(frozen=True)
class Cell:
    """One combination.

    `memory_bytes` is the room. `tokens` is how many the formula leaves room for beside everything
    else, `allocated_tokens` how many the engine's whole blocks hold. `needed_*` is what these users
    take; `missing_bytes` what they lack, and `short_bytes` what is lacking before there is any
    cache at all. `most_users` fit at this context, and keep to the objective if there is one.
    `binding` is "memory" where it does not fit, else what a step waits for most.
    """

    weights: str
    kv_dtype: str
    memory_bytes: int
    weight_bytes: int
    bytes_per_token: int
    tokens: int
    allocated_tokens: int
    context: int
    users: int
    needed_tokens: int
    needed_bytes: int
    missing_bytes: int
    short_bytes: int
    most_users: int
    timing: Timing | None
    binding: Literal["memory", "bandwidth", "arithmetic"]
    meets_objective: bool | None

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.missing_bytes == 0

    @property
    def answers(self) -> bool:
        """Whether it is what was asked for: there is room, and it is fast enough."""
        return self.fits and self.meets_objective is not False

    @property
    def tokens_left(self) -> int:
        """Tokens that the cache could hold besides what these users need."""
        return max(0, self.allocated_tokens - self.needed_tokens)


def grid(subjects: Iterable[tuple[Subject, Speed | None]], question: Question) -> list[Cell]:
    """A cell for each subject, each kind of traffic and each number of users.

    Raises `RequestError` for a context longer than a model's own.
    """
    return [
        cell
        for subject, speed in subjects
        for traffic in question.traffics
        for cell in _cells(subject, speed, traffic, question)
    ]


def memory_of(subject: Subject, traffic: Traffic, users: int) -> MemorySum:
    """What so many users take."""
    return subject.memory(traffic.context, users, traffic.tokens(users))


def most_users(subject: Subject, speed: Speed | None, traffic: Traffic, question: Question) -> int:
    """How many users there is room for, and time for where there is an objective."""

    def possible(users: int) -> bool:
        if memory_of(subject, traffic, users).total > question.room:
            return False
        wanted = question.objective
        if wanted is None or speed is None:
            return True
        timing = timing_of(speed, traffic, users, question)
        return wanted.met(timing.first_token, timing.step)

    return largest(possible, MOST_USERS)


def largest(possible: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` from which down to 1 all are possible; 0 for none.

    As in all of memory and time: what is possible stays so with less.
    """
    if not possible(1):
        return 0
    high = 2
    while high <= most and possible(high):
        high *= 2
    low, high = high // 2, min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low


def timing_of(speed: Speed, traffic: Traffic, users: int, question: Question) -> Timing:
    """How fast it goes for so many users, each halfway through an answer."""
    context = min(traffic.context, traffic.prompt + -(-traffic.answer // 2))
    own = max(1, traffic.prompt - traffic.shared)
    step = speed.decode_seconds(context, users)
    first_token = speed.prompt_seconds(
        own,
        first=traffic.shared,
        others=users - 1,
        context=context,
        most_step_seconds=question.step_seconds,
    )
    cost = None
    if question.price_per_hour is not None:
        # A cached token costs what attending to it costs: half a prompt shows it.
        cached = max(1, traffic.shared or traffic.prompt // 2)
        rest = max(1, traffic.prompt - cached)
        alone = speed.prompt_seconds(rest)
        behind = speed.prompt_seconds(rest, first=cached)
        cost = prices(
            question.price_per_hour,
            speed.prompt_seconds(own, first=traffic.shared) / own,
            max(0.0, behind - alone) / cached,
            step / users,
        )
    return Timing(first_token, step, users, speed.basis, cost)


def _cells(
    subject: Subject, speed: Speed | None, traffic: Traffic, question: Question
) -> list[Cell]:
    most = most_users(subject, speed, traffic, question)
    asked: Sequence[int] = question.users or sorted({1, max(1, most)})
    return [_cell(subject, speed, traffic, users, most, question) for users in asked]


def _cell(
    subject: Subject,
    speed: Speed | None,
    traffic: Traffic,
    users: int,
    most: int,
    question: Question,
) -> Cell:
    memory = memory_of(subject, traffic, users)
    blocks = -(-traffic.tokens(users) // BLOCK_TOKENS)
    left = question.room - (memory.total - blocks * subject.block_bytes)
    fits = memory.total <= question.room
    timing = None if speed is None or not fits else timing_of(speed, traffic, users, question)
    wanted, meets = question.objective, None
    if wanted is not None and timing is not None:
        meets = wanted.met(timing.first_token, timing.step)
    return Cell(
        weights=subject.weights,
        kv_dtype=subject.kv_dtype.value,
        memory_bytes=question.room,
        weight_bytes=subject.weight_bytes,
        bytes_per_token=subject.bytes_per_token,
        tokens=max(0, left * BLOCK_TOKENS // subject.block_bytes),
        allocated_tokens=max(0, left // subject.block_bytes * BLOCK_TOKENS),
        context=traffic.context,
        users=users,
        needed_tokens=traffic.tokens(users),
        needed_bytes=memory.total,
        missing_bytes=max(0, memory.total - question.room),
        short_bytes=max(0, -left),
        most_users=most,
        timing=timing,
        binding="memory" if speed is None or not fits else speed.binding(traffic.context, users),
        meets_objective=meets,
    )
