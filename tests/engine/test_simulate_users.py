"""Users who ask again as soon as they have an answer, in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.engine.simulate import Clock, Job, simulate
from farthing.plan.profile import ServerWork

if TYPE_CHECKING:
    from farthing.engine.cost import StepShape


def one(shape: StepShape) -> float:
    """Every step takes a second."""
    return 1.0


def test_a_user_asks_again_when_the_answer_is_there_whatever_arrival_the_next_job_had() -> None:
    jobs = [Job(1, 3), Job(1, 2), Job(1, 1, arrival=100.0)]
    outcome = simulate(jobs, one, slots=3, users=1)
    assert [each.job.arrival for each in outcome.served] == [0, 3, 5]
    assert [each.last_token for each in outcome.served] == [3, 5, 6]


def test_the_first_jobs_come_when_they_arrive_and_the_next_goes_to_whoever_is_ready() -> None:
    jobs = [Job(1, 5), Job(1, 1, arrival=2.0), Job(1, 2)]
    outcome = simulate(jobs, one, slots=2, users=2)
    assert [each.job.arrival for each in outcome.served] == [0, 2, 3]
    assert [each.last_token for each in outcome.served] == [5, 3, 5]


def test_who_pauses_misses_the_step_that_begins_at_once() -> None:
    jobs = [Job(1, 6), Job(1, 2), Job(1, 1)]
    outcome = simulate(jobs, one, slots=2, users=2, pause=0.25)
    assert outcome.served[2].job.arrival == 2.25
    assert outcome.served[2].admitted == 3
    alone = simulate([Job(1, 1), Job(1, 1)], one, slots=1, users=1, pause=0.25)
    assert [each.last_token for each in alone.served] == [1, 2.25]


def test_more_users_than_jobs_ask_for_all_of_them_at_their_arrivals() -> None:
    jobs = [Job(3, 2), Job(2, 2, arrival=1.0)]
    assert simulate(jobs, one, slots=2, users=5) == simulate(jobs, one, slots=2)


def test_a_request_is_with_the_engine_when_it_was_read_and_a_token_with_its_user_when_written() -> (
    None
):
    server = ServerWork(request=0.25, prompt_token=0.125, token=0.5)
    jobs = [Job(2, 2), Job(2, 1)]
    outcome = simulate(jobs, one, slots=2, users=1, server=server, core_of_its_own=True)
    first, second = outcome.served
    assert first.admitted == 0.5
    assert (first.first_token, first.last_token) == (2.0, 3.0)
    assert first.latency(Clock.ARRIVAL_TO_FIRST_TOKEN) == 2.0
    assert second.job.arrival == 3.0
    assert second.admitted == 3.5


def test_the_step_that_runs_meanwhile_bears_the_servers_work_where_cores_are_shared() -> None:
    server = ServerWork(request=0.25, token=0.5)
    apart = simulate([Job(1, 4)], one, slots=1, server=server, core_of_its_own=True)
    shared = simulate([Job(1, 4)], one, slots=1, server=server)
    assert apart.served[0].last_token == 0.25 + 4 + 0.5
    # The first step bears the reading, and each of the others the token before.
    assert shared.served[0].last_token == 0.25 + 4 + 0.25 + 3 * 0.5 + 0.5


def test_work_that_is_done_while_nothing_runs_is_borne_by_no_step() -> None:
    server = ServerWork(token=0.5)
    jobs = [Job(1, 1), Job(1, 1, arrival=10.0)]
    assert [each.last_token for each in simulate(jobs, one, slots=1, server=server).served] == [
        1.5,
        11.5,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(1, 6)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_never_are_more_answers_wanted_at_once_than_there_are_users(
    lengths: list[tuple[int, int]], users: int, slots: int
) -> None:
    outcome = simulate([Job(*each) for each in lengths], one, slots=slots, users=users)
    served = outcome.served
    for each in served:
        at = each.job.arrival
        assert sum(other.job.arrival <= at < other.last_token for other in served) <= users
    # Nobody who has an answer waits before asking again.
    ends = sorted(each.last_token for each in served)
    later = [each.job.arrival for each in served[users:]]
    assert later == pytest.approx(ends[: len(later)])
