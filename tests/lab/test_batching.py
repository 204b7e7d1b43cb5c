"""The tables of many requests at once, on what was served by a tiny model and on made-up times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.core import ActivationMode
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.foretold import Foretold
from farthing.engine.simulate import Batching, Clock, Job, Served
from farthing.lab import batching
from farthing.lab import bench as lab_bench
from farthing.lab.batching import jobs_of, measure
from farthing.lab.batching_gains import Arrivals, Gain, GainSpread, Moves, Spread
from farthing.lab.batching_served import LoadServer, admit, shape_of
from farthing.lab.batching_tables import curve_table, gain_table, spread_table
from farthing.lab.bench import BenchResult, CeilingFigures
from farthing.lab.bench_points import Measured
from farthing.lab.bench_shapes import find_knee
from farthing.lab.drift import Drift
from farthing.lab.samples import Samples
from farthing.plan.cost import Cost
from lab_subject import subject_at
from native_steps import step

if TYPE_CHECKING:
    from farthing.core import StepPlan, StepResult
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

STEADY = Drift(9, 0.0, 0.0, 0.0, 0.0)
READ, MULTIPLY = 1e9, dict.fromkeys(ActivationMode, 1e9)


def result_of(
    milliseconds: dict[int, float], second: dict[int, float] | None = None
) -> BenchResult:
    """A sweep of two rounds; the second takes a tenth longer where nothing else is said."""
    batch = tuple(
        Measured(
            count,
            count,
            Cost({ActivationMode.INT8: count * 1_000_000}, 4_000_000, count * 1000),
            (time / 1e3, (second or {}).get(count, 1.1 * time) / 1e3),
            (0.004, 0.004),
            (count * 0.001, count * 0.001),
        )
        for count, time in milliseconds.items()
    )
    ceilings = CeilingFigures(READ, (READ, READ), {"plain": READ}, MULTIPLY, 1)
    return BenchResult(ceilings, (), (), batch, (), 128, find_knee(batch, READ, MULTIPLY), ())


def test_the_knee_is_found_where_no_doubling_pays_any_more() -> None:
    table = curve_table(result_of({1: 4.0, 2: 4.2, 4: 4.5, 8: 8.5, 16: 17.0}), STEADY)
    assert "The knee is a batch of 4, because of arithmetic: the next doubling adds 6%." in (
        table.finding
    )
    assert "From 1 to 16 sequences throughput grows 3.8 times and each one's wait 4.25" in (
        table.finding
    )
    assert table.expectation is not None
    assert table.expectation.met
    assert table.rows[0][3] is None


def test_a_curve_without_a_knee_is_told_as_it_is() -> None:
    table = curve_table(result_of({1: 4.0, 2: 4.0, 4: 4.0}), STEADY)
    assert "The knee is not reached up to a batch of 4: the last doubling still adds 100%" in (
        table.finding
    )
    assert table.expectation is not None
    assert table.expectation.met is False


def test_the_sentence_says_what_the_table_says_of_the_doubling_after_the_knee() -> None:
    table = curve_table(result_of({1: 4.0, 2: 4.2, 4: 8.8}, {4: 7.9}), STEADY)
    added = table.rows[2][3]
    assert isinstance(added, Samples)
    assert f"the next doubling adds {added.median:.0f}%." in table.finding


@pytest.mark.parametrize(("drift", "met"), [(0.0, False), (0.1, None)])
def test_throughput_grows_more_than_the_wait_only_where_a_doubling_adds_enough(
    drift: float, met: bool | None
) -> None:
    """A third more throughput is a wait of a half more: the wait grew more."""
    moved = Drift(9, drift, drift, drift, drift)
    table = curve_table(result_of({1: 4.0, 2: 6.0, 4: 12.0}), moved)
    assert table.expectation is not None
    assert table.expectation.met is met


def test_more_throughput_for_more_latency_is_not_what_was_expected() -> None:
    def met(latency: float, drift: float = 0.0) -> bool | None:
        gain = Gain(1.5, dict.fromkeys(Clock, latency))
        moves = Moves(
            {each: dict.fromkeys(Clock, 1.0) for each in Batching}, dict.fromkeys(Clock, 1.0)
        )
        table = gain_table(
            {"all at once": [(gain, gain)]},
            {"all at once": moves},
            Drift(9, drift, drift, drift, drift),
        )
        assert table.expectation is not None
        return table.expectation.met

    assert met(2.0) is True
    assert met(0.9) is False
    assert met(0.9, drift=0.1) is None  # the machine moves as far


@pytest.mark.parametrize(
    ("milliseconds", "place", "met"),
    [
        ({1: 4.0, 2: 4.2, 4: 6.6, 8: 13.2}, "between a batch of 2 and one of 4", True),
        ({1: 4.0, 2: 4.2, 4: 6.6}, "between a batch of 2 and more than 4", None),
    ],
)
def test_a_knee_that_the_rounds_leave_open_is_told_by_its_bounds_and_not_judged_before_its_time(
    milliseconds: dict[int, float], place: str, met: bool | None
) -> None:
    """From 2 to 4 throughput grows by 27 % in one round, and by 20 % in the other."""
    table = curve_table(result_of(milliseconds, {4: 7.7}), STEADY)
    assert f"The knee is {place}: the measured intervals leave it open." in table.finding
    assert table.expectation is not None
    assert table.expectation.met is met
    assert table.plots[0].marks == ()


def test_the_quoted_pair_is_looked_for_in_every_way_of_arriving() -> None:
    def gain(pair: float) -> GainSpread:
        spread = Spread(1.6, 1.5, 1.7, 1.4, 1.8)
        return GainSpread(10, spread, dict.fromkeys(Clock, spread), dict.fromkeys(Clock, pair))

    table = spread_table({("x", Arrivals(0)): gain(0.0), ("x", Arrivals(6)): gain(0.3)}, 10)
    assert "nearest with one every 6 steps" in table.finding
    assert "it appears in 30% of the draws. With all at once it appears in 0%" in table.finding
    assert table.expectation is not None
    assert table.expectation.met
    worse = spread_table({("x", Arrivals(0)): gain(0.1)}, 10)
    assert worse.expectation is not None
    assert worse.expectation.met is False


def test_a_request_is_admitted_when_a_slot_is_free() -> None:
    served = [Served(Job(1, 1, arrival), last_token=end) for arrival, end in ((0, 5), (0, 3))]
    served += [Served(Job(1, 1, 1), last_token=8), Served(Job(1, 1, 7), last_token=9)]
    admit(served, 2)
    assert [each.admitted for each in served] == [0, 0, 3, 7]


def test_a_steps_shape_counts_tokens_rows_and_positions() -> None:
    plan = step([([1, 2, 3], 4, [0]), ([9], 10, [1])], wanted=[2, 3])
    assert shape_of(plan) == StepShape(4, 2, 5 + 6 + 7 + 11, 7 + 11)


@pytest.fixture
def server() -> LoadServer:
    subject = subject_at(tiny.shared("llama", "gguf", "Q4_0"))
    backend = subject.open_native(64, 3)
    run = backend.run

    def slowly(plan: StepPlan, want_logits: bool = False) -> StepResult:
        # So slow that requests which come together are there before the first step has ended.
        if len(plan.token_ids) > 2:
            time.sleep(0.2)
        return run(plan, want_logits)

    backend.run = slowly  # type: ignore[method-assign]
    return LoadServer(backend, subject.tokenizer, 2, lambda count: [7] * count)


def test_static_batches_return_together_and_take_their_longest_members_steps(
    server: LoadServer,
) -> None:
    jobs = [Job(4, 12), Job(4, 2), Job(4, 3)]
    with server.engine:
        static = server.serve(jobs, Batching.STATIC)
        continuous = server.serve(jobs, Batching.CONTINUOUS)
    first, second, third = static.served
    assert first.returned == second.returned == max(first.last_token, second.last_token)
    assert third.admitted >= first.returned
    assert [each.job for each in continuous.served] == jobs
    assert all(each.returned == each.last_token for each in continuous.served)
    assert continuous.served[2].admitted <= continuous.served[0].last_token
    # 12 steps, then 3; or all within 12. Whoever comes after the first step began costs one more.
    assert 15 <= static.steps <= 16
    assert 12 <= continuous.steps <= 13


def test_a_server_teaches_what_its_steps_take(server: LoadServer) -> None:
    cost = StepCost()
    with server.engine:
        server.learn(cost, jobs_of([6, 5, 4], Arrivals(0), 0.0))
        assert cost.seconds(StepShape(2, 2, 20, 20)) > 0
        learned = StepShape(2, 2, 20, 20)
        before = cost.seconds(learned)
        server.serve(jobs_of([6], Arrivals(0), 0.0), Batching.CONTINUOUS)
        assert cost.seconds(learned) == before


def test_all_its_tables_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_bench, "_BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(batching, "DRAWS", 2)
    monkeypatch.setattr(batching, "SERVED_ARRIVALS", (Arrivals(0), Arrivals(1)))
    monkeypatch.setattr(batching, "SEQUENCES", (1, 2))
    lengths = (3, 1, 9, 2, 1, 4, 2, 8, 3, 1)
    monkeypatch.setattr(batching, "skewed_lengths", lambda seed: lengths)
    told: list[str] = []
    subject = subject_at(tiny.shared("llama", "gguf", "Q4_0"), rounds=2)
    monkeypatch.setattr(subject.progress, "phase", told.append)
    tables = {table.key: table for table in measure(subject)}
    assert list(tables) == ["curve", "served", "gain", "spread"]
    assert [row[:2] for row in tables["served"].rows] == [
        ("all at once", "continuous"),
        ("all at once", "static"),
        ("one every 1 steps", "continuous"),
        ("one every 1 steps", "static"),
    ]
    assert tables["served"].repeats == 2
    assert isinstance(tables["gain"].rows[0][2], Samples)
    assert [row[1] for row in tables["gain"].rows] == ["served", "simulated"] * 2
    assert len(tables["spread"].rows) == 2 * len(batching.DRAWN_ARRIVALS)
    assert told[-1] == "simulate Poisson, one every 6 steps, learned here, draw 2 of 2"


def test_draws_are_simulated_by_the_stored_profile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = StepShape(4, 4, 400, 400)
    asked = []

    def foretell(model: Model, plan: MemoryPlan, **key: str) -> tuple[Foretold, str]:
        asked.append((plan.threads, plan.kv_dtype, sorted(key)))
        return Foretold(((shape, 0.01),) * 8, "2030-01-02"), ""

    monkeypatch.setattr(batching, "DRAWS", 1)
    monkeypatch.setattr(batching, "foretell", foretell)
    cost = StepCost()
    cost.observe(shape, 0.02)
    subject = subject_at(tiny.shared("llama", "gguf", "Q4_0"))
    table = batching.spread(subject, cost)
    assert asked == [(subject.threads, subject.kv_dtype, ["isa", "kernels"])]
    assert "profile of 2030-01-02" in {cell for row in table.rows for cell in row}
    assert len(table.rows) == 3 * len(batching.DRAWN_ARRIVALS)


def test_jobs_are_short_prompts_in_order_of_arrival() -> None:
    assert jobs_of([3, 1], Arrivals(2), 0.5) == [Job(8, 3, 0.0), Job(8, 1, 1.0)]
