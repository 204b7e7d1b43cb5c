"""What guesses cost is measured while nobody waits, and nobody waits for it."""

from __future__ import annotations

import threading
from time import sleep
from typing import Any

import pytest

from engine.scripted import VOCABULARY, engine, rambling, tokenizer
from engine.threads import PATIENCE, eventually
from farthing.backends.null import NullBackend
from farthing.core import SamplingParams
from farthing.engine import loop
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.draft_model import ModelDrafter
from farthing.engine.engine import Engine
from farthing.engine.kv import BlockPool
from farthing.engine.lookup import LookupDrafter
from farthing.engine.probe import Probe
from farthing.engine.speculate import Speculation


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GRACE_SECONDS", 0.02)


class Counting(NullBackend):
    """Counts steps; may wait in each."""

    def __init__(self, held: threading.Event | None = None) -> None:
        super().__init__(rambling, VOCABULARY)
        self.sizes: list[int] = []
        self.held = held

    def run(self, plan: Any, want_logits: bool = False) -> Any:
        self.sizes.append(len(plan.token_ids))
        if self.held is not None:
            assert self.held.wait(PATIENCE)
        return super().run(plan, want_logits)


def guessing(backend: NullBackend, speculation: Speculation | None = None) -> Engine:
    speculation = Speculation(LookupDrafter()) if speculation is None else speculation
    return Engine(backend, tokenizer(), speculation=speculation)


def test_an_idle_engine_measures_what_steps_of_few_tokens_take_and_then_sleeps() -> None:
    backend = Counting()
    with guessing(backend) as one:
        cost = one._loop.scheduler.cost
        assert eventually(lambda: not one._loop._probes)
        assert {size.bit_length() for size in backend.sizes} == {1, 2, 3, 4}
        assert all(cost.seen(tokens) for tokens in (1, 2, 4, 9))
        assert cost.seconds(StepShape(1, 1, 1, 1)) > 0
        steps = len(backend.sizes)
        sleep(0.1)
        assert len(backend.sizes) == steps
        stats = one.stats()
        assert (stats.held_blocks, stats.steps) == (0, 0)  # none of anybody's


def test_nothing_is_measured_before_it_is_idle_or_where_nothing_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends = [Counting(), Counting()]
    with Engine(backends[0], tokenizer()) as plain:
        sleep(0.1)
        assert not backends[0].sizes
        assert plain.idle
    monkeypatch.setattr(loop, "GRACE_SECONDS", PATIENCE)
    with guessing(backends[1]) as one:
        one.generate("x>", SamplingParams(max_tokens=5))
        assert backends[1].sizes == [len(one.tokenizer.encode("x>")), 1, 1, 1, 1]


def test_a_text_waits_for_one_step_at_most_and_is_the_same() -> None:
    with engine() as plain:
        expected = plain.generate("x>", SamplingParams(max_tokens=20)).token_ids
    held = threading.Event()
    backend = Counting(held)
    with guessing(backend) as one:
        assert eventually(lambda: bool(backend.sizes))
        [stream] = one.submit("x>", SamplingParams(max_tokens=20))
        held.set()
        assert stream.result().token_ids == expected
        # The prompt, right after the step that ran.
        assert backend.sizes[1] == len(one.tokenizer.encode("x>"))
        assert one.stats().held_blocks == 0


def test_what_is_known_already_is_not_measured() -> None:
    cost = StepCost()
    cost.observe(StepShape(2, 2, 3, 2), 0.1)
    probe = Probe(Counting(), BlockPool(4), cost)
    assert probe.done
    assert not Probe(Counting(), BlockPool(4), StepCost()).done


def test_a_cache_that_is_full_of_known_texts_loses_none_to_it() -> None:
    pool = BlockPool(2)
    pool.take(2)
    probe = Probe(Counting(), pool, StepCost())
    assert probe.next_plan() is None
    assert probe.done


def test_steps_that_fail_are_given_up_and_texts_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(NullBackend):
        fails = True

        def run(self, plan: Any, want_logits: bool = False) -> Any:
            if self.fails:
                raise OSError("no such device")
            return super().run(plan, want_logits)

    backend = Failing(rambling, VOCABULARY)
    with guessing(backend) as one:
        assert eventually(lambda: not one._loop._probes)
        backend.fails = False
        assert one.generate("x>", SamplingParams(max_tokens=5)).token_ids
        assert one.stats().held_blocks == 0
    assert "no such device" in caplog.text


def test_what_a_profile_foretells_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = ModelDrafter(Counting())
    backend = Counting()
    steps = [(StepShape(n, n, 64 * n, 64 * n), 1.0 + n / 10) for n in (1, 2, 4)] * 4
    monkeypatch.setattr(loop, "GRACE_SECONDS", PATIENCE)
    with guessing(backend, Speculation(drafter, costly=drafter)) as one:
        one.expect(steps, [(shape, seconds / 10) for shape, seconds in steps])
        monkeypatch.setattr(loop, "GRACE_SECONDS", 0.02)
        one.expect([])  # wakes it, so that it waits so long from now on
        assert eventually(lambda: not one._loop._probes)
        assert not backend.sizes
        assert drafter.pass_seconds(1, 64) == pytest.approx(0.11, rel=0.05)


def test_a_draft_is_measured_too() -> None:
    drafter = ModelDrafter(Counting())
    with guessing(Counting(), Speculation(drafter, costly=drafter)) as one:
        assert eventually(lambda: not one._loop._probes)
        assert drafter.pass_seconds(1, 100) > 0
        assert drafter._pool.free == drafter._pool.total
