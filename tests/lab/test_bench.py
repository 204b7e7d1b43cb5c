"""The benchmark on a machine of known speed, which moves the clock itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.backends.native import NativeBackend
from farthing.core import BLOCK_TOKENS, ActivationMode, StepPlan, StepResult
from farthing.lab import bench_steps
from farthing.lab.bench import DECODE_TOKENS, BenchResult, bench, buffer_bytes
from farthing.lab.bench_ops import op_times
from farthing.lab.bench_points import BATCH_CONTEXT, Points
from farthing.lab.bench_steps import Steps
from farthing.plan.cost import Cost
from farthing.plan.memory import MemoryPlan, plan_memory
from native_steps import model_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.models.load import Model

VOCABULARY = 300
BLOCKS = 64
READS = {"plain": 2e9, "prefetched": 4e9}
MULTIPLY = dict.fromkeys(ActivationMode, 1e12)


class Clock:
    """Stands still but for what the machine does."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A backend and its ceilings. A step takes `speed` * (1 ms + 10 us a token)."""

    samples = True
    vocabulary_size = VOCABULARY
    context_length = 1024
    total_blocks = BLOCKS
    max_step_tokens = 512
    max_step_rows = 64
    buffer_bytes = 1 << 20

    def __init__(self, clock: Clock, labels: list[str]) -> None:
        self.clock = clock
        self.labels = labels
        self.speed = 1.0
        self.plans: list[StepPlan] = []
        self.log: list[str] = []
        self.pool = np.zeros((BLOCKS, 4), np.uint8)

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        assert not want_logits
        self.plans.append(
            StepPlan(
                plan.token_ids.copy(), plan.positions, plan.starts, plan.block_tables, plan.rows
            )
        )
        self.log.append(f"run {len(plan.starts) - 1} x {len(plan.token_ids)}")
        self.clock.now += self.speed * (1e-3 + 1e-5 * len(plan.token_ids))
        assert (plan.sampling is not None) == (len(plan.rows) > 0)
        tokens = (plan.token_ids[plan.rows] + 1) % VOCABULARY
        nothing = np.empty((0, 0), np.float32)
        return StepResult(tokens, np.empty(0, np.float32), nothing.astype(np.int32), nothing)

    def close(self) -> None:
        raise AssertionError("the benchmark does not own the backend")

    def cache_bytes(self) -> NDArray[np.uint8]:
        return self.pool

    def profile(self, on: bool) -> None:
        self.log.append(f"profile {on}")

    def stage_seconds(self) -> list[tuple[str, float]]:
        return [*((label, 1.0) for label in self.labels), ("sample", 3.0)]

    def read(self) -> dict[str, float]:
        self.log.append("ceilings")
        return {name: rate / self.speed for name, rate in READS.items()}

    def multiply(self) -> dict[ActivationMode, float]:
        return {mode: rate / self.speed for mode, rate in MULTIPLY.items()}


@pytest.fixture
def machine(plan: MemoryPlan, monkeypatch: pytest.MonkeyPatch) -> Machine:
    clock = Clock()
    monkeypatch.setattr(bench_steps, "perf_counter", clock)
    return Machine(clock, [stage.output for stage in plan.stages])


@pytest.fixture(scope="module")
def model() -> Model:
    return model_at(tiny.shared("llama", "gguf", "Q4_0"))


@pytest.fixture(scope="module")
def plan(model: Model) -> MemoryPlan:
    return plan_memory(model, context_length=1024)


def test_a_prompt_is_one_sequence_in_steps_as_long_as_allowed(machine: Machine) -> None:
    seconds = Steps(machine, seed=1).prefill(700)
    assert seconds == pytest.approx(2e-3 + 7e-3)
    first, second = machine.plans
    assert [len(p.token_ids) for p in machine.plans] == [512, 188]
    assert np.concatenate((first.positions, second.positions)).tolist() == list(range(700))
    assert first.block_tables.tolist() == second.block_tables.tolist() == [list(range(22))]
    # Only the end of the prompt is followed by a token.
    assert first.rows.tolist() == []
    assert second.rows.tolist() == [187]
    assert machine.plans[0].token_ids.max() < VOCABULARY


def test_decoding_stays_at_its_context_and_feeds_what_was_sampled(machine: Machine) -> None:
    seconds = Steps(machine, seed=1).decode([100], 4)
    assert seconds == pytest.approx(4 * 1.01e-3)
    assert [p.positions.tolist() for p in machine.plans] == [[99]] * 4
    fed = [int(p.token_ids[0]) for p in machine.plans]
    assert fed == [(fed[0] + step) % VOCABULARY for step in range(4)]
    assert machine.plans[0].block_tables.tolist() == [[0, 1, 2, 3]]


def test_sequences_of_a_batch_share_no_block(machine: Machine) -> None:
    Steps(machine, seed=1).decode([33, 64, 1], 1)
    plan = machine.plans[0]
    assert plan.block_tables.tolist() == [[0, 1], [2, 3], [4, -1]]
    assert plan.positions.tolist() == [32, 63, 0]
    assert plan.rows.tolist() == [0, 1, 2]


def test_the_same_seed_gives_the_same_tokens(machine: Machine) -> None:
    for seed in (1, 1, 2):
        Steps(machine, seed).prefill(50)
    one, same, other = (p.token_ids.tolist() for p in machine.plans)
    assert one == same != other


@pytest.mark.parametrize("tokens", [2 * BLOCK_TOKENS, BLOCK_TOKENS - 1, 7 * BLOCK_TOKENS])
def test_every_block_is_filled_with_a_prompts_keys_and_values(
    machine: Machine, tokens: int
) -> None:
    filled = max(1, tokens // BLOCK_TOKENS)
    machine.pool[:filled] = np.arange(1, filled + 1)[:, None]
    Steps(machine, seed=1).fill_cache(tokens)
    assert machine.pool[:, 0].tolist() == [1 + block % filled for block in range(BLOCKS)]


def measured(machine: Machine, model: Model, plan: MemoryPlan, repeats: int = 2) -> BenchResult:
    points = Points(prefill=(16, 600), decode=(64, 1000), batch=(1, 8))
    return bench(
        machine,
        machine,
        model.program,
        plan,
        points,
        repeats=repeats,
        seed=1,
        progress=machine.log.append,
    )


def test_rates_and_shares_are_those_of_the_machine(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    result = measured(machine, model, plan)
    assert [each.point for each in result.prefill] == [16, 600]
    assert [each.tokens_per_second for each in result.prefill] == pytest.approx(
        [16 / 1.16e-3, 600 / 8e-3]
    )
    assert [each.tokens_per_second for each in result.decode] == pytest.approx([1 / 1.01e-3] * 2)
    assert [each.tokens_per_second for each in result.batch] == pytest.approx(
        [1 / 1.01e-3, 8 / 1.08e-3]
    )
    assert result.batch_context == BATCH_CONTEXT
    for each in (*result.prefill, *result.decode, *result.batch):
        assert each.memory_share == pytest.approx(each.cost.memory_seconds(4e9) / each.step_seconds)
        assert each.arithmetic_share == pytest.approx(
            each.cost.total_products / 1e12 / each.step_seconds
        )
    assert result.ceilings.best_read == 4e9
    assert result.ceilings.read == READS
    assert result.ceilings.multiply == MULTIPLY
    assert result.knee is not None
    assert result.knee.sequences is None


def test_a_machine_that_slows_down_keeps_its_shares(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    alone = measured(machine, model, plan, repeats=1)
    rounds = iter((1.0, 3.0, 2.0))

    def slowing(what: str) -> None:
        if what.startswith("prefill 16,"):
            machine.speed = next(rounds)

    points = Points(prefill=(16,), decode=(64,), batch=(1, 8))
    result = bench(
        machine, machine, model.program, plan, points, repeats=3, seed=1, progress=slowing
    )
    assert result.decode[0].tokens_per_second == pytest.approx(1 / 2.02e-3)
    assert result.decode[0].spread == pytest.approx((1 / 3.03e-3, 1 / 1.01e-3))
    assert result.decode[0].memory_share == pytest.approx(alone.decode[0].memory_share)
    assert result.batch[1].arithmetic_share == pytest.approx(alone.batch[1].arithmetic_share)
    assert result.ceilings.best_read_spread == pytest.approx((4e9 / 3, 4e9))


def test_every_round_measures_every_point_right_after_the_ceilings(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    measured(machine, model, plan)
    labels = ["prefill 16", "prefill 600", "decode 64", "decode 1,000", "batch 1", "batch 8"]
    told = [entry for entry in machine.log if " round " in entry]
    assert told == [f"{label}, round {n} of 2" for n in (1, 2) for label in labels]
    for entry, after in zip(machine.log, machine.log[1:], strict=False):
        assert (" round " in entry) == (after == "ceilings")
    # 128 tokens at each decode point and as many for a batch of one, and the larger decode point
    # once more for the time by kind.
    assert machine.log.count("run 1 x 1") == 2 * DECODE_TOKENS * (2 + 1 + 1)


def test_only_the_extra_pass_of_three_points_is_profiled(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    measured(machine, model, plan, repeats=1)
    ends = [index for index, entry in enumerate(machine.log) if entry == "profile False"]
    spans = [
        machine.log[machine.log.index("profile True", after) + 1 : end]
        for after, end in zip([0, *ends], ends, strict=False)
    ]
    assert [set(span) for span in spans] == [{"run 1 x 16"}, {"run 1 x 1"}, {"run 8 x 8"}]


def test_batches_over_other_contexts_are_measured_at_these(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    points = Points(prefill=(), decode=(), batch=(8,), cross=((4, 300), (2, 500)))
    result = bench(machine, machine, model.program, plan, points, repeats=1, seed=1, progress=print)
    assert [(context, each.point) for context, each in result.cross] == [(300, 4), (500, 2)]
    (_, four), (_, two) = result.cross
    assert four.tokens_per_second == pytest.approx(4 / 1.04e-3)
    assert two.tokens_per_second == pytest.approx(2 / 1.02e-3)
    last = {len(each.starts) - 1: int(each.positions.max()) for each in machine.plans[1:]}
    assert (last[4], last[2]) == (299, 499)


def test_the_middle_round_tells_the_time_by_kind(
    machine: Machine, model: Model, plan: MemoryPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((9.0, 1.0, 4.0))
    monkeypatch.setattr(
        machine,
        "stage_seconds",
        lambda: [*((label, 0.0) for label in machine.labels), ("sample", next(times))],
    )
    points = Points(prefill=(), decode=(64,), batch=())
    result = bench(machine, machine, model.program, plan, points, repeats=3, seed=1, progress=print)
    assert [each.seconds for each in result.ops] == [4.0 / DECODE_TOKENS]


def test_time_by_kind_is_of_one_step_of_each_sweep(
    machine: Machine, model: Model, plan: MemoryPlan
) -> None:
    ops = measured(machine, model, plan).ops
    assert {(each.phase, each.point) for each in ops} == {
        ("prefill", 16),
        ("decode", 1000),
        ("batch", 8),
    }
    of_batch = [each for each in ops if each.phase == "batch"]
    assert of_batch[0].kind == "sample"
    assert of_batch[0].seconds == 3.0 / 16
    assert sum(each.share for each in of_batch) == pytest.approx(1.0)
    assert of_batch[0].memory_share == of_batch[0].arithmetic_share == 0.0


def test_stages_of_one_kind_are_added_up() -> None:
    cost = Cost({ActivationMode.INT8: 10}, weight_bytes=20, cache_bytes=20)
    found = op_times(
        "decode",
        7,
        [("linear", 1.0), ("attend", 3.0), ("linear", 4.0), ("rows", 0.0), ("sample", 2.0)],
        [cost, cost, cost, Cost()],
        100.0,
        {ActivationMode.INT8: 10.0},
    )
    assert [(each.kind, each.seconds, each.share) for each in found] == [
        ("linear", 5.0, 0.5),
        ("attend", 3.0, 0.3),
        ("sample", 2.0, 0.2),
    ]
    assert found[0].memory_share == pytest.approx(0.8 / 5)
    assert found[0].arithmetic_share == pytest.approx(2.0 / 5)


def test_the_buffers_are_half_a_gibibyte_or_a_part_of_what_is_free() -> None:
    assert buffer_bytes(64 << 30) == 512 << 20
    assert buffer_bytes(800 << 20) == 100 << 20


def test_filled_blocks_and_hand_made_steps_are_what_an_engine_computes(model: Model) -> None:
    # The native backend holds the plans to its own rules, and a prompt's cache to its tokens.
    plan = plan_memory(model, context_length=256, sequences=4, threads=1)
    backend = NativeBackend(model, plan)
    steps = Steps(backend, seed=3)
    steps.fill_cache(64)
    pool = backend.cache_bytes()
    assert pool[0].any()
    assert (pool[::2] == pool[0]).all()
    assert (pool[1::2] == pool[1]).all()
    assert steps.decode([40, 256, 1], 2) > 0
    assert (pool[4] == pool[0]).all()
    backend.close()
