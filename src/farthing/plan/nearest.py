"""Where what is asked for does not fit, the nearest that does: one thing changed at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, FarthingError, KVDtype, RequestError
from farthing.plan.grid import MOST_USERS, Question, largest, memory_of, most_users
from farthing.plan.precision import PRECISIONS, STORED
from farthing.plan.traffic import fixed_traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farthing.plan.precision import Precision
    from farthing.plan.subject import Subject
    from farthing.plan.traffic import Traffic

    Maker = Callable[[Precision, KVDtype], Subject]

_LONGEST = 1 << 26


@dataclass(frozen=True)
class Nearest:
    """A change after which it fits: in words, and the flags that ask for it."""

    what: str
    flags: str


def nearest(
    subject: Subject, traffic: Traffic, users: int, question: Question, make: Maker
) -> list[Nearest]:
    """What of these would fit alone: fewer users, shorter texts, a smaller cache, smaller weights.

    `make` gives the same model in another precision or with another cache.
    """
    return list(_changes(subject, traffic, users, question, make))


def _changes(
    subject: Subject, traffic: Traffic, users: int, question: Question, make: Maker
) -> Iterator[Nearest]:
    fewer = most_users(subject, None, traffic, question)
    if 0 < fewer < min(users, MOST_USERS):
        yield Nearest(f"{fewer:,} user{'s' if fewer > 1 else ''} instead", f"--users {fewer}")
    shorter = _shorter(subject, traffic, users, question)
    if 0 < shorter < traffic.context:
        yield Nearest(f"a context of {shorter:,} tokens", f"--context {shorter}")
    yield from _smaller(subject, traffic, users, question, make)


def _shorter(subject: Subject, traffic: Traffic, users: int, question: Question) -> int:
    """The longest context, in whole blocks, that so many users could have."""

    def possible(blocks: int) -> bool:
        context = blocks * BLOCK_TOKENS
        try:
            shorter = fixed_traffic(context, min(traffic.answer, context // 2), traffic.shared)
            return memory_of(subject, shorter, users).total <= question.room
        except RequestError:
            # No room for the shared prefix, or longer than the model's context.
            return False

    least = traffic.shared // BLOCK_TOKENS + 2 if traffic.shared else 1
    most = min(traffic.context, subject.context_length or _LONGEST) // BLOCK_TOKENS
    if most < least or not possible(least):
        return 0
    return BLOCK_TOKENS * (
        least - 1 + largest(lambda more: possible(least - 1 + more), most - least + 1)
    )


def _smaller(
    subject: Subject, traffic: Traffic, users: int, question: Question, make: Maker
) -> Iterator[Nearest]:
    weights = PRECISIONS[subject.weights]
    for kv_dtype in sorted(KVDtype, key=lambda each: make(weights, each).bytes_per_token)[::-1]:
        other = make(weights, kv_dtype)
        if other.bytes_per_token < subject.bytes_per_token and _fits(
            other, traffic, users, question
        ):
            yield Nearest(f"a cache of {kv_dtype.value}", f"--kv-dtype {kv_dtype.value}")
            break
    for name in ("bf16", "int8", "int4"):
        if name == subject.weights or name == STORED:
            continue
        try:
            other = make(PRECISIONS[name], subject.kv_dtype)
        except FarthingError:
            continue
        if other.weight_bytes < subject.weight_bytes and _fits(other, traffic, users, question):
            yield Nearest(f"weights in {name}", f"--weights {name}")
            break


def _fits(subject: Subject, traffic: Traffic, users: int, question: Question) -> bool:
    return memory_of(subject, traffic, users).total <= question.room
