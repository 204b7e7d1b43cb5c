from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farthing.backends.null import NullBackend
from farthing.core import StepPlan


def script(prefix: np.ndarray) -> int:
    """A token that depends on every token of the prefix and on their order."""
    return int(np.dot(prefix, np.arange(1, len(prefix) + 1)) % 97)


def null(**settings: Any) -> NullBackend:
    return NullBackend(script, 100, **settings)


def step(tokens: list[int], first: int, table: list[int], rows: list[int]) -> StepPlan:
    return StepPlan(
        token_ids=np.array(tokens, np.int32),
        positions=np.arange(first, first + len(tokens), dtype=np.int32),
        starts=np.array([0, len(tokens)], np.int32),
        block_tables=np.array([table], np.int32),
        rows=np.array(rows, np.int32),
    )


TOKENS = [7 * i % 100 for i in range(40)]


def chosen(backend: NullBackend, plan: StepPlan) -> list[int]:
    result = backend.run(plan)
    assert result.logits is not None
    assert len(result.tokens) == 0
    return result.logits.argmax(1).tolist()


def test_each_wanted_row_gets_what_the_script_says_of_its_prefix() -> None:
    wanted = [script(np.array(TOKENS[: row + 1])) for row in (0, 31, 39)]
    assert chosen(null(), step(TOKENS, 0, [5, 2], [0, 31, 39])) == wanted


def test_a_prefix_is_read_back_through_the_block_table() -> None:
    backend = null()
    backend.run(step(TOKENS[:33], 0, [5, 2], []))
    assert chosen(backend, step(TOKENS[33:], 33, [5, 2], [6])) == [script(np.array(TOKENS))]
    assert backend.steps == 2


def test_two_sequences_in_a_step_have_a_prefix_each() -> None:
    plan = StepPlan(
        token_ids=np.array([1, 2, 3, 4, 5], np.int32),
        positions=np.array([0, 1, 0, 1, 2], np.int32),
        starts=np.array([0, 2, 5], np.int32),
        block_tables=np.array([[3], [1]], np.int32),
        rows=np.array([1, 4], np.int32),
    )
    assert chosen(null(), plan) == [script(np.array([1, 2])), script(np.array([3, 4, 5]))]


def test_a_block_that_another_sequence_overwrote_shows() -> None:
    backend = null()
    backend.run(step([1, 2, 3], 0, [4], []))
    backend.run(step([9, 9], 0, [4], []))
    assert chosen(backend, step([5], 3, [4], [0])) != [script(np.array([1, 2, 3, 5]))]


def test_a_script_may_give_logits() -> None:
    numbers = np.linspace(-1, 1, 100, dtype=np.float32)
    result = NullBackend(lambda prefix: numbers, 100).run(step([1], 0, [0], [0]))
    np.testing.assert_array_equal(result.logits, [numbers])


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (step([1] * 9, 0, [0], [8]), "out of bounds"),
        (step([1, 2, 3], 0, [0], [0, 1, 2]), "out of bounds"),
        (step([], 0, [0], []), "out of bounds"),
        (step([1], 0, [8], [0]), "none of the pool's"),
        (step([1], 0, [-1], [0]), "none of the pool's"),
        (step([1], 5, [0], [0]), "nobody has computed"),
        (step([1], 32, [-1, 1], [0]), "ends before its sequence"),
        (step([1], 64, [0, 1, 2], [0]), "outside the context"),
        (step([100], 0, [0], [0]), "outside the vocabulary"),
        (step([1, 2], 0, [0], [1, 0]), "ascending"),
        (step([1, 2], 0, [0], [2]), "ascending"),
        (replace(step([1, 2], 0, [0], [1]), positions=np.array([0, 2])), "consecutive"),
        (replace(step([1, 2], 0, [0], [1]), starts=np.array([0, 1])), "do not divide"),
        (replace(step([1, 2], 0, [0], [1]), starts=np.array([0, 2, 2])), "do not divide"),
    ],
)
def test_a_plan_that_breaks_its_contract_raises(plan: StepPlan, says: str) -> None:
    backend = null(total_blocks=8, context_length=64, max_step_tokens=8, max_step_rows=2)
    with pytest.raises(ValueError, match=says):
        backend.run(plan)


def test_a_closed_backend_has_forgotten() -> None:
    backend = null()
    backend.run(step([1, 2], 0, [0], []))
    backend.close()
    with pytest.raises(ValueError, match="nobody has computed"):
        backend.run(step([3], 2, [0], [0]))
