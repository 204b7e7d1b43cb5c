from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import Request, SamplingParams
from farthing.engine.sequence import Sequence
from farthing.engine.waiting import WaitingLine

if TYPE_CHECKING:
    from collections.abc import Mapping


class Line:
    """A line whose sequences are called by numbers, in order of arrival."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.line = WaitingLine(weights or {})
        self.sequences: list[Sequence] = []

    def push(self, key: str = "", priority: int = 0) -> int:
        request = Request("text", (1,), SamplingParams(), key=key, priority=priority)
        self.sequences.append(Sequence(request, 10, frozenset(), len(self.sequences)))
        self.line.push(self.sequences[-1])
        return len(self.sequences) - 1

    def admit(self, tokens: int = 0) -> int:
        """Admits who is next, serves it so many tokens, and lets it go."""
        sequence = self.line.next()
        assert sequence is not None
        self.line.admit(sequence)
        self.line.serve(sequence.request.key, tokens)
        self.line.release(sequence)
        return self.sequences.index(sequence)


def test_one_key_is_served_in_order_of_arrival() -> None:
    line = Line()
    for _ in range(4):
        line.push()
    assert [line.admit(tokens) for tokens in (50, 1, 9, 3)] == [0, 1, 2, 3]
    assert len(line.line) == 0
    assert line.line.next() is None


def test_a_key_that_floods_does_not_hold_up_another() -> None:
    line = Line()
    flood = [line.push("flood") for _ in range(10)]
    calm = line.push("calm")
    assert [line.admit(100) for _ in range(3)] == [flood[0], calm, flood[1]]


def test_keys_get_tokens_by_weight() -> None:
    line = Line({"heavy": 3.0})
    for _ in range(40):
        line.push("heavy")
        line.push("light")
    served = [line.sequences[line.admit(10)].request.key for _ in range(40)]
    assert served.count("heavy") == 30


def test_a_key_that_was_away_has_saved_nothing_up() -> None:
    line = Line()
    for _ in range(20):
        line.push("busy")
    for _ in range(10):
        line.admit(100)
    for _ in range(10):
        line.push("late")
    keys = [line.sequences[line.admit(100)].request.key for _ in range(10)]
    assert keys.count("late") in (5, 6)


def test_a_higher_priority_goes_first_whoever_asks() -> None:
    line = Line()
    low = line.push("a")
    high = line.push("b", priority=2)
    middle = line.push("a", priority=1)
    assert [line.admit() for _ in range(3)] == [high, middle, low]


def test_who_is_pushed_to_the_front_is_next_of_its_key() -> None:
    line = Line()
    first, second = line.push(), line.push()
    sequence = line.sequences[first]
    line.line.admit(sequence)
    line.line.push(sequence, first=True)
    line.line.release(sequence)
    assert [line.admit(), line.admit()] == [first, second]


def test_who_leaves_the_line_is_not_served() -> None:
    line = Line()
    first, second = line.push("a"), line.push("b")
    line.line.remove(line.sequences[first])
    assert [s.request.key for s in line.line] == ["b"]
    assert line.admit() == second
