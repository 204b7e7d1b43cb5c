from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from farthing.core import Request, RequestError, SamplingParams, StepResult
from farthing.engine.limits import Limits, Policy
from farthing.engine.scheduler import Scheduler
from farthing.engine.sequence import draw_seed

if TYPE_CHECKING:
    from farthing.core import StepPlan

EOS = 7
LIMITS = Limits(total_blocks=8, context_length=100, step_tokens=16, step_rows=4, vocabulary_size=50)


def limits(**changes: int) -> Limits:
    return Limits(**{**vars(LIMITS), **changes})


def request(prompt: int | tuple[int, ...], **sampling: Any) -> Request:
    """A request whose prompt is given, or as many tokens as the number says."""
    ids = tuple(10 + i % 40 for i in range(prompt)) if isinstance(prompt, int) else prompt
    return Request("test", ids, SamplingParams(**sampling))


def answer(plan: StepPlan, *tokens: int) -> StepResult:
    """A result that gives each wanted row the token listed, the last one again and again."""
    count = len(plan.rows)
    chosen = [tokens[min(row, len(tokens) - 1)] for row in range(count)]
    top = 0 if plan.sampling is None else max([0, *plan.sampling.logprobs.tolist()])
    return StepResult(
        tokens=np.array(chosen, np.int32),
        logprob=np.full(count, -0.5, np.float32),
        top_ids=np.tile(np.arange(top, dtype=np.int32), (count, 1)),
        top_logprobs=np.tile(-np.arange(top, dtype=np.float32), (count, 1)),
    )


def planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def run_until_done(scheduler: Scheduler, token: int = 20) -> list[StepPlan]:
    plans = []
    while (plan := scheduler.schedule()) is not None:
        plans.append(plan)
        scheduler.commit(answer(plan, token))
        scheduler.check()
    return plans


def test_a_prompt_is_computed_in_chunks_and_only_the_last_wants_a_row() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(40, max_tokens=2))
    plans = run_until_done(scheduler)
    assert [len(plan.token_ids) for plan in plans] == [16, 16, 8, 1]
    assert [plan.rows.tolist() for plan in plans] == [[], [], [7], [0]]
    assert [plan.positions.tolist() for plan in plans[:2]] == [
        list(range(16)),
        list(range(16, 32)),
    ]
    assert plans[3].positions.tolist() == [40]
    assert plans[3].token_ids.tolist() == [20]


def test_a_step_without_a_wanted_row_asks_for_no_sampling() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(40, max_tokens=2))
    plans = run_until_done(scheduler)
    assert [plan.sampling is None for plan in plans] == [True, True, False, False]


def test_a_plan_has_the_dtypes_that_the_backends_are_promised() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(3, max_tokens=2, logit_bias={4: 1.0}))
    plan = planned(scheduler)
    for array in (plan.token_ids, plan.positions, plan.starts, plan.block_tables, plan.rows):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert plan.sampling is not None
    arrays = {name: array for name, array in vars(plan.sampling).items() if array is not None}
    kinds = {name: str(array.dtype) for name, array in arrays.items()}
    assert kinds == {
        "temperature": "float32",
        "top_k": "int32",
        "top_p": "float32",
        "min_p": "float32",
        "repetition_penalty": "float32",
        "presence_penalty": "float32",
        "frequency_penalty": "float32",
        "seed": "uint64",
        "choice": "uint32",
        "position": "uint32",
        "logprobs": "int32",
        "target": "int32",
        "adjusted_starts": "int32",
        "adjusted_ids": "int32",
        "adjusted_bias": "float32",
        "adjusted_seen": "uint8",
        "adjusted_count": "int32",
    }


def test_a_step_can_be_asked_to_be_smaller_but_not_larger_than_the_limits() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(40, max_tokens=2))
    sizes = []
    for step_tokens in (3, 1, 99, None, 7):
        plan = scheduler.schedule(step_tokens)
        assert plan is not None
        sizes.append(len(plan.token_ids))
        scheduler.commit(answer(plan, 20))
    assert sizes == [3, 1, 16, 16, 4]


def test_sequences_share_a_step_in_order_of_arrival() -> None:
    scheduler = Scheduler(LIMITS)
    for length in (5, 20, 3):
        scheduler.submit(request(length, max_tokens=4))
    plan = planned(scheduler)
    assert plan.starts.tolist() == [0, 5, 13, 16]
    assert plan.rows.tolist() == [4, 15]
    scheduler.commit(answer(plan, 20))
    plan = planned(scheduler)
    assert plan.starts.tolist() == [0, 1, 13, 14]
    assert plan.rows.tolist() == [0, 12, 13]
    assert plan.positions.tolist() == [5, *range(8, 20), 3]


def test_block_tables_grow_with_the_sequence_and_are_padded() -> None:
    scheduler = Scheduler(limits(step_tokens=64))
    scheduler.submit(request(31, max_tokens=4))
    scheduler.submit(request(2, max_tokens=4))
    tables = [plan.block_tables.tolist() for plan in run_until_done(scheduler)]
    assert tables == [[[0], [1]], [[0], [1]], [[0, 2], [1, -1]], [[0, 2], [1, -1]]]
    assert (scheduler.pool.free, scheduler.pool.cached) == (7, 1)


def test_the_last_token_is_never_fed_and_needs_no_block() -> None:
    scheduler = Scheduler(limits(total_blocks=1))
    sequence = scheduler.submit(request(31, max_tokens=2))
    run_until_done(scheduler)
    assert len(sequence.output) == 2
    with pytest.raises(RequestError, match="need 33 places in the cache, and it has 32"):
        scheduler.submit(request(31, max_tokens=3))


def test_a_newcomer_waits_for_room_for_its_prompt_and_a_block_for_each_that_runs() -> None:
    scheduler = Scheduler(limits(step_tokens=128), policy=Policy(sharing=False))
    first = scheduler.submit(request(90, max_tokens=10))  # 3 blocks
    second = scheduler.submit(request(60, max_tokens=40))  # 2 blocks
    third = scheduler.submit(request(33, max_tokens=20))  # 2 blocks: 3 are left, 2 to be kept
    fourth = scheduler.submit(request(2, max_tokens=2))  # 1 block, but nobody overtakes
    plan = planned(scheduler)
    assert scheduler.running == (first, second)
    assert scheduler.waiting == (third, fourth)
    scheduler.commit(answer(plan, 20))
    scheduler.end(first, "cancelled")
    planned(scheduler)
    assert scheduler.running == (second, third, fourth)


@pytest.mark.parametrize("change", [{"step_rows": 2}, {"step_tokens": 2}])
def test_no_more_run_than_a_step_has_rows_and_tokens_for(change: dict[str, int]) -> None:
    scheduler = Scheduler(limits(**change))
    for _ in range(3):
        scheduler.submit(request(2, max_tokens=3))
    planned(scheduler)
    assert len(scheduler.running) == 2


def test_an_end_of_text_token_ends_the_sequence_and_is_kept() -> None:
    scheduler = Scheduler(LIMITS, frozenset({EOS}))
    sequence = scheduler.submit(request(2, max_tokens=9))
    scheduler.commit(answer(planned(scheduler), 20))
    scheduler.commit(answer(planned(scheduler), EOS))
    assert sequence.output == [20, EOS]
    assert sequence.finish_reason == "stop"
    assert scheduler.schedule() is None


def test_ignore_eos_goes_on_but_a_stop_token_still_stops() -> None:
    scheduler = Scheduler(LIMITS, frozenset({EOS}))
    sequence = scheduler.submit(request(2, max_tokens=9, ignore_eos=True, stop_token_ids=[30]))
    for token in (EOS, EOS, 30):
        scheduler.commit(answer(planned(scheduler), token))
    assert sequence.output == [EOS, EOS, 30]
    assert sequence.finish_reason == "stop"


def test_max_tokens_ends_with_length() -> None:
    scheduler = Scheduler(LIMITS)
    sequence = scheduler.submit(request(2, max_tokens=3))
    run_until_done(scheduler)
    assert len(sequence.output) == 3
    assert sequence.finish_reason == "length"


def test_without_max_tokens_the_context_is_the_end() -> None:
    scheduler = Scheduler(LIMITS)
    sequence = scheduler.submit(request(2))
    run_until_done(scheduler)
    assert len(sequence.tokens) == 100
    assert sequence.finish_reason == "length"


def test_a_token_that_ends_and_is_the_last_allowed_counts_as_stop() -> None:
    scheduler = Scheduler(LIMITS, frozenset({EOS}))
    sequence = scheduler.submit(request(2, max_tokens=1))
    scheduler.commit(answer(planned(scheduler), EOS))
    assert sequence.finish_reason == "stop"


def test_min_tokens_bans_the_ending_tokens_until_enough_are_made() -> None:
    scheduler = Scheduler(LIMITS, frozenset({EOS}))
    scheduler.submit(
        request(2, max_tokens=5, min_tokens=2, stop_token_ids=[9], logit_bias={9: 3.0, 12: -1.0})
    )
    biases = []
    for _ in range(4):
        plan = planned(scheduler)
        assert plan.sampling is not None
        biases.append(
            dict(
                zip(
                    plan.sampling.adjusted_ids.tolist(),
                    plan.sampling.adjusted_bias.tolist(),
                    strict=True,
                )
            )
        )
        scheduler.commit(answer(plan, 20))
    banned = {9: -np.inf, EOS: -np.inf, 12: -1.0}
    allowed = {9: 3.0, EOS: 0.0, 12: -1.0}
    assert biases == [banned, banned, allowed, allowed]


def test_penalties_list_what_was_seen_and_how_often_it_was_made() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request((10, 11, 10), max_tokens=9, repetition_penalty=1.5))
    scheduler.submit(request((10, 11), max_tokens=9, frequency_penalty=0.5))
    scheduler.submit(request((10,), max_tokens=9))
    for tokens in ((11, 12, 13), (30, 12, 13)):
        scheduler.commit(answer(planned(scheduler), *tokens))
    rows = planned(scheduler).sampling
    assert rows is not None
    assert rows.adjusted_starts.tolist() == [0, 3, 4, 4]
    assert rows.adjusted_ids.tolist() == [10, 11, 30, 12]
    assert rows.adjusted_seen.tolist() == [1, 1, 1, 1]
    assert rows.adjusted_count.tolist() == [0, 1, 1, 2]


def test_many_different_tokens_are_all_counted() -> None:
    scheduler = Scheduler(limits(step_tokens=64))
    scheduler.submit(request(1, max_tokens=90, presence_penalty=0.5))
    made = [token % 50 for token in range(0, 178, 2)]
    for token in made:
        scheduler.commit(answer(planned(scheduler), token))
    rows = planned(scheduler).sampling
    assert rows is not None
    counts = dict(zip(rows.adjusted_ids.tolist(), rows.adjusted_count.tolist(), strict=True))
    assert counts == {token: made.count(token) for token in set(made)}


def test_a_step_plan_does_not_change_when_the_state_moves_on() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(3, max_tokens=9, presence_penalty=0.5))
    scheduler.commit(answer(planned(scheduler), 20))
    plan = planned(scheduler)
    assert plan.sampling is not None
    arrays = [*vars(plan).values(), *vars(plan.sampling).values()]
    before = [array.copy() for array in arrays if isinstance(array, np.ndarray)]
    scheduler.commit(answer(plan, 20))
    planned(scheduler)
    after = [array for array in arrays if isinstance(array, np.ndarray)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_row_carries_its_seed_choice_and_the_position_of_its_token() -> None:
    scheduler = Scheduler(LIMITS)
    ids = tuple(range(10, 15))
    scheduler.submit(Request("a", ids, SamplingParams(seed=2**64 - 1, max_tokens=9), choice=3))
    scheduler.commit(answer(planned(scheduler), 20))
    rows = planned(scheduler).sampling
    assert rows is not None
    assert (rows.seed.tolist(), rows.choice.tolist(), rows.position.tolist()) == (
        [2**64 - 1],
        [3],
        [6],
    )


def test_a_seed_that_is_not_given_is_drawn_once_and_kept() -> None:
    scheduler = Scheduler(LIMITS)
    sequence = scheduler.submit(request(2, max_tokens=3, temperature=1.0))
    seeds = {int(plan.sampling.seed[0]) for plan in run_until_done(scheduler) if plan.sampling}
    assert seeds == {sequence.seed}
    assert len({draw_seed() for _ in range(20)}) == 20


def test_log_probabilities_are_recorded_for_those_who_asked() -> None:
    scheduler = Scheduler(LIMITS)
    plain = scheduler.submit(request(2, max_tokens=1))
    chosen_only = scheduler.submit(request(2, max_tokens=1, logprobs=0))
    two = scheduler.submit(request(2, max_tokens=1, logprobs=2))
    scheduler.commit(answer(planned(scheduler), 20))
    assert plain.logprobs is None
    assert chosen_only.logprobs is not None
    assert two.logprobs is not None
    assert [(entry.token_id, entry.logprob, entry.top) for entry in chosen_only.logprobs] == [
        (20, -0.5, ())
    ]
    assert two.logprobs[0].top == ((0, 0.0), (1, -1.0))


def test_a_plan_that_was_never_run_is_planned_anew() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request(20, max_tokens=2))
    first, second = planned(scheduler), planned(scheduler)
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert first.block_tables.tolist() == second.block_tables.tolist()
    scheduler.check()


def test_ending_twice_or_after_the_end_changes_nothing() -> None:
    scheduler = Scheduler(LIMITS)
    done = scheduler.submit(request(2, max_tokens=1))
    waiting = scheduler.submit(request(2, max_tokens=1))
    scheduler.end(waiting, "cancelled")
    scheduler.end(waiting, "stop")
    run_until_done(scheduler)
    scheduler.end(done, "cancelled")
    assert done.finish_reason == "length"
    assert waiting.finish_reason == "cancelled"
    scheduler.check()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(0), "the prompt is empty"),
        (request(100), "the prompt has 100 tokens, and the context holds 100"),
        (request(60, max_tokens=41), "max_tokens is 41, together more than the context of 100"),
        (request((3, 50)), "the prompt names token 50, and the model's vocabulary has 50"),
        (request((3, -1)), "the prompt names token -1"),
        (request(3, stop_token_ids=[50]), "stop_token_ids names token 50"),
        (request(3, logit_bias={-2: 1.0}), "logit_bias names token -2"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(asked: Request, message: str) -> None:
    scheduler = Scheduler(LIMITS)
    with pytest.raises(RequestError, match=message):
        scheduler.submit(asked)
    assert scheduler.schedule() is None


def test_a_request_that_needs_more_blocks_than_there_are_is_refused_at_once() -> None:
    scheduler = Scheduler(limits(total_blocks=2))
    with pytest.raises(RequestError, match="need 69 places in the cache, and it has 64"):
        scheduler.submit(request(60, max_tokens=10))
    scheduler.submit(request(60, max_tokens=5))


def test_the_check_notices_a_block_in_two_tables() -> None:
    scheduler = Scheduler(LIMITS)
    for _ in range(2):
        scheduler.submit(request(2, max_tokens=2))
    planned(scheduler)
    first, second = scheduler.running
    second.blocks = list(first.blocks)
    with pytest.raises(ValueError, match="the tables list block 0 2 times"):
        scheduler.check()
