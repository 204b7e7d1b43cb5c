"""What a sequence takes from others, and gives up for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.test_scheduler import LIMITS, answer, limits, planned, request, run_until_done
from farthing.core import FarthingError, Request, SamplingParams
from farthing.engine.limits import Policy
from farthing.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from farthing.engine.sequence import Sequence

TEXT = tuple(10 + i % 37 for i in range(99))
ROOMY = limits(step_tokens=128, total_blocks=40, step_rows=8)


def asked(prompt: tuple[int, ...], key: str = "", priority: int = 0, more: int = 2) -> Request:
    sampling = SamplingParams(max_tokens=more)
    return Request("test", prompt, sampling, key=key, priority=priority)


def served(scheduler: Scheduler, *requests: Request) -> list[Sequence]:
    sequences = [scheduler.submit(each) for each in requests]
    run_until_done(scheduler)
    return sequences


def test_the_second_of_two_equal_prompts_computes_its_last_token_only() -> None:
    scheduler = Scheduler(ROOMY)
    served(scheduler, asked(TEXT[:64]))
    second = scheduler.submit(asked(TEXT[:64]))
    plan = planned(scheduler)
    assert plan.positions.tolist() == [63]
    assert second.reused == 63
    assert second.miss is None
    assert plan.copies.tolist() == [[1, 2]]
    assert plan.block_tables.tolist() == [[0, 2]]


def test_a_prompt_is_reused_to_the_token_where_it_differs() -> None:
    scheduler = Scheduler(ROOMY)
    served(scheduler, asked(TEXT[:90]))
    prompt = (*TEXT[:50], 5, *TEXT[51:90])
    second = scheduler.submit(asked(prompt))
    plan = planned(scheduler)
    assert plan.positions.tolist() == list(range(50, 90))
    assert second.miss is not None
    miss = second.miss
    assert (miss.reason, miss.position, miss.token, miss.other_token) == (
        "differs",
        50,
        5,
        TEXT[50],
    )
    assert (miss.reused, miss.recomputed, miss.avoidable) == (50, 40, 14)


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    scheduler = Scheduler(ROOMY)
    sequences = [scheduler.submit(asked((*TEXT[:64], 5 + i))) for i in range(4)]
    sizes = [len(plan.token_ids) for plan in run_until_done(scheduler)]
    assert sizes == [65, 4, 3]
    assert [sequence.reused for sequence in sequences] == [0, 64, 64, 64]
    counters = scheduler.counters
    assert (counters.prompt_tokens, counters.reused_tokens) == (260, 192)


def test_what_an_answer_added_is_found_by_the_next_turn() -> None:
    scheduler = Scheduler(ROOMY)
    [first] = served(scheduler, asked(TEXT[:40], more=30))
    [second] = served(scheduler, asked((*first.tokens, 9, 9)))
    assert second.reused == 64


def test_a_sequence_waits_for_no_one_that_is_gone() -> None:
    scheduler = Scheduler(limits(step_tokens=8, total_blocks=40))
    first = scheduler.submit(asked(TEXT[:64]))
    second = scheduler.submit(asked(TEXT[:64]))
    planned(scheduler)
    scheduler.commit(answer(planned(scheduler), 20))
    assert second.computed == 0
    scheduler.end(first, "cancelled")
    run_until_done(scheduler)
    assert second.finish_reason == "length"


def test_no_key_finds_what_another_left() -> None:
    scheduler = Scheduler(ROOMY)
    served(scheduler, asked(TEXT[:64], key="a"))
    [other] = served(scheduler, asked(TEXT[:64], key="b"))
    [same] = served(scheduler, asked(TEXT[:64], key="a"))
    assert (other.reused, same.reused) == (0, 63)
    assert other.miss is not None
    assert (other.miss.reason, other.miss.other_token) == ("new", None)


def test_without_sharing_nothing_is_kept() -> None:
    scheduler = Scheduler(ROOMY, policy=Policy(sharing=False))
    sequences = served(scheduler, asked(TEXT[:64]), asked(TEXT[:64]))
    assert [sequence.reused for sequence in sequences] == [0, 0]
    assert scheduler.index is None
    assert scheduler.pool.free == scheduler.pool.total


@pytest.mark.parametrize("sharing", [True, False])
def test_choices_of_one_prompt_share_its_cache_until_they_write(sharing: bool) -> None:
    scheduler = Scheduler(ROOMY, policy=Policy(sharing=sharing))
    first = scheduler.submit(asked(TEXT[:70], more=3))
    others = [scheduler.submit(asked(TEXT[:70], more=3), fork_of=first) for _ in range(2)]
    assert {first.seed} == {sequence.seed for sequence in others}
    assert len(planned(scheduler).token_ids) == 70
    scheduler.commit(answer(planned(scheduler), 20))
    plan = planned(scheduler)
    assert plan.positions.tolist() == [70, 69, 69]
    # Two of the three copy the block they share; the last one writes to it in place.
    assert plan.block_tables.tolist() == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]
    assert plan.copies.tolist() == [[2, 3], [2, 4]]
    run_until_done(scheduler)
    assert [sequence.reused for sequence in others] == [69, 69]


def test_a_choice_whose_first_one_is_gone_computes_the_prompt_itself() -> None:
    scheduler = Scheduler(ROOMY, policy=Policy(sharing=False))
    first = scheduler.submit(asked(TEXT[:70]))
    second = scheduler.submit(asked(TEXT[:70]), fork_of=first)
    planned(scheduler)
    scheduler.end(first, "cancelled")
    assert len(planned(scheduler).token_ids) == 70
    run_until_done(scheduler)
    assert second.finish_reason == "length"


def grown(scheduler: Scheduler, *lengths: int, more: int = 40) -> list[Sequence]:
    """Sequences of different prompts that run side by side."""
    return [
        scheduler.submit(asked(tuple((i + j) % 50 for j in range(length)), more=more))
        for i, length in enumerate(lengths)
    ]


def test_the_youngest_is_preempted_and_nothing_of_it_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "farthing.engine")
    scheduler = Scheduler(limits(total_blocks=4, step_tokens=64))
    first, second = grown(scheduler, 30, 30)
    run_until_done(scheduler)
    assert [len(first.output), len(second.output)] == [40, 40]
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert scheduler.counters.preemptions == 1
    assert scheduler.counters.recomputed_tokens > 0
    assert "request test (choice 0) is preempted: the cache is full" in caplog.text
    assert "tokens are to be computed again" in caplog.text


def test_a_preempted_sequence_takes_back_what_survived() -> None:
    scheduler = Scheduler(ROOMY)
    [first] = grown(scheduler, 70, more=30)
    scheduler.commit(answer(planned(scheduler), 20))
    scheduler.preempt(first)
    assert (first.computed, first.blocks) == (0, [])
    plan = planned(scheduler)
    assert plan.positions.tolist() == list(range(64, 71))
    scheduler.commit(answer(plan, 20))
    assert scheduler.counters.recomputed_tokens == 6


def test_a_higher_priority_is_not_preempted_for_an_older_one() -> None:
    scheduler = Scheduler(limits(total_blocks=3, step_tokens=64))
    low = scheduler.submit(asked(tuple(range(30)), more=30))
    scheduler.commit(answer(planned(scheduler), 20))
    high = scheduler.submit(asked(tuple(range(1, 31)), priority=1, more=30))
    run_until_done(scheduler)
    assert (low.preemptions, high.preemptions) == (1, 0)


def test_a_cache_too_small_for_all_serves_all_in_turn() -> None:
    scheduler = Scheduler(limits(total_blocks=3, step_tokens=64, step_rows=8))
    sequences = grown(scheduler, 20, 25, 30, 35, 31)
    run_until_done(scheduler)
    assert [len(sequence.output) for sequence in sequences] == [40] * 5
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.generated_tokens == 200


def test_a_text_that_fills_the_whole_pool_can_reuse_a_block_that_it_writes_to() -> None:
    """No block is left to copy to: the one it shares with nobody is taken out of the index."""
    scheduler = Scheduler(limits(total_blocks=2, step_tokens=64))
    served(scheduler, asked(TEXT[:64], more=1))
    changed = (*TEXT[:40], 5, *TEXT[41:63])
    [second] = served(scheduler, asked(changed, more=2))
    assert second.reused == 40
    assert second.finish_reason == "length"


def test_a_failed_step_ends_its_sequences_and_keeps_what_earlier_steps_gave() -> None:
    scheduler = Scheduler(limits(step_tokens=40, total_blocks=20))
    first = scheduler.submit(asked(TEXT[:64]))
    scheduler.commit(answer(planned(scheduler), 20))
    planned(scheduler)
    error = FarthingError("no")
    assert scheduler.fail(error) == [first]
    assert (first.finish_reason, first.error) == ("error", error)
    scheduler.check()
    [second] = served(scheduler, asked(TEXT[:64]))
    assert second.reused == 32


def test_the_shape_of_a_step_counts_tokens_rows_and_what_they_attend_to() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(5, max_tokens=3))
    planned(scheduler)
    assert scheduler.shape == (5, 1, 15, 5)
    scheduler.commit(answer(planned(scheduler), 20))
    scheduler.submit(request((30, 31), max_tokens=3))
    planned(scheduler)
    assert scheduler.shape == (3, 2, 6 + 3, 6 + 2)


def test_a_plan_that_was_never_run_still_copies_when_planned_anew() -> None:
    scheduler = Scheduler(ROOMY)
    served(scheduler, asked(TEXT[:64]))
    scheduler.submit(asked(TEXT[:64]))
    first, second = planned(scheduler), planned(scheduler)
    assert np.array_equal(first.copies, second.copies)
    scheduler.commit(answer(second, 20))
    assert len(planned(scheduler).copies) == 0


def test_a_choice_whose_prompt_is_scored_takes_no_position_that_it_has_no_row_of() -> None:
    scheduler = Scheduler(limits(step_rows=4))
    sampling = SamplingParams(max_tokens=9, prompt_logprobs=0)
    first = scheduler.submit(Request("test", TEXT[:6], sampling))
    second = scheduler.submit(Request("test", TEXT[:6], sampling, choice=1), fork_of=first)
    while second.scores is None or second.scores.taken == 0:
        scheduler.commit(answer(planned(scheduler), 20))
    assert second.scores.taken < second.scores.end
    scheduler.preempt(second)
    run_until_done(scheduler)
    for sequence in (first, second):
        assert sequence.scores is not None
        assert len(sequence.scores.entries) == 6
