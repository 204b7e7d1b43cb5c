from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import VOCABULARY, engine, engine_over, rambling, saying
from engine.threads import PATIENCE, Held, in_threads
from farthing.backends.null import NullBackend
from farthing.core import BusyError, FarthingError, RequestError, SamplingParams
from farthing.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from farthing.core import StepPlan, StepResult

FEW = SamplingParams(max_tokens=3)


class Failing(NullBackend):
    """Raises `error` in the steps of the given numbers, from 1, after the cache is written."""

    def __init__(self, error: BaseException, *at: int) -> None:
        super().__init__(rambling, VOCABULARY, max_step_rows=2)
        self.error = error
        self.at = at

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        result = super().run(plan, want_logits)
        if self.steps in self.at:
            raise self.error
        return result


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FarthingError("the accelerator is gone: plug it in"), "^the accelerator is gone"),
        (MemoryError("4 TB"), r"the step failed \(MemoryError: 4 TB\).*can be made again"),
        (ValueError("a bad plan"), r"the step failed \(ValueError: a bad plan\)"),
    ],
    ids=repr,
)
def test_a_failed_step_ends_its_texts_alone(error: Exception, message: str) -> None:
    one = engine_over(Failing(error, 2))
    sampling = SamplingParams(max_tokens=4, temperature=1.0, seed=1)
    streams = [one.stream(f"text {number}", sampling) for number in range(6)]
    failed = 0
    for number, stream in enumerate(streams):
        try:
            completion = stream.result()
        except FarthingError as raised:
            failed += 1
            with pytest.raises(FarthingError, match=message):
                raise raised
        else:
            assert completion.token_ids == engine().generate(f"text {number}", sampling).token_ids
    assert 1 <= failed <= 2
    assert one.idle
    assert one.stats().held_blocks == 0


def test_a_backend_that_fails_in_every_step_ends_every_text() -> None:
    one = engine_over(Failing(OSError("broken"), *range(1, 1000)))
    for _ in range(3):
        for stream in one.submit("abc", n=3):
            with pytest.raises(FarthingError, match="OSError: broken"):
                stream.result()
    assert one.idle


@pytest.mark.parametrize("part", ["schedule", "commit", "check"])
def test_a_fault_of_the_engine_itself_ends_every_text_with_its_name(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Held(max_step_rows=1)
    one = engine_over(backend)
    running, waiting = one.stream("abc"), one.stream("def")
    backend.wait_entered(1)

    def broken(*_: object) -> None:
        raise AssertionError("of the scheduler")

    monkeypatch.setattr(Scheduler, part, broken)
    backend.allow()
    for stream in (running, waiting):
        with pytest.raises(FarthingError, match="broken down .AssertionError: of the scheduler"):
            stream.result()
    with pytest.raises(RequestError, match="broken down .*load the model again"):
        one.generate("abc")
    assert one.idle
    one.close()


def test_a_token_that_cannot_be_shown_ends_its_text_alone() -> None:
    # The model has more tokens than the tokenizer.
    def script(prefix: Any) -> int:
        return VOCABULARY + 3 if prefix[1] == ord("a") else 98

    one = engine_over(NullBackend(script, VOCABULARY + 9))
    bad, good = one.stream("a"), one.stream("b", FEW)
    with pytest.raises(FarthingError):
        bad.result()
    assert good.result().text == "bbb"
    assert one.idle


def test_a_text_past_its_deadline_ends_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    for module in ("engine", "loop"):
        monkeypatch.setattr(f"farthing.engine.{module}.monotonic", lambda: now)
    backend = Held(saying("answer END? more"), max_step_rows=1)
    one = engine_over(backend)
    stop = SamplingParams(stop="END?!")
    running, waiting = (one.stream(">", stop, timeout=0.2) for _ in range(2))
    backend.allow(9)
    backend.wait_entered(10)
    now += 0.2
    backend.allow(9)
    deltas = list(running)
    assert "".join(delta.text for delta in deltas) == "answer END" == running.completion.text
    assert deltas[-1].finish_reason == "timeout" == running.completion.finish_reason
    assert [(delta.text, delta.finish_reason) for delta in waiting] == [("", "timeout")]
    assert backend.steps == 10
    assert one.idle


def test_a_deadline_that_is_met_does_nothing() -> None:
    one = engine(saying("yes"))
    for _ in range(200):
        assert one.stream(">", timeout=PATIENCE).result().finish_reason == "stop"
    assert len(one._loop._deadlines) < 100


def test_a_queue_that_is_full_refuses_and_says_when_to_come_back() -> None:
    backend = Held(saying("yes"))
    one = engine_over(backend, queue_tokens=60)
    streams = [one.stream("x" * 50 + ">"), one.stream("y>")]
    backend.wait_entered(1)
    with pytest.raises(BusyError, match="55 tokens of prompts wait already, and with 20") as busy:
        one.stream("z" * 18 + ">")
    assert busy.value.retry_after > 0
    assert one.stats().queued_tokens == 55
    backend.allow(2)
    backend.wait_entered(3)
    assert one.stats().queued_tokens == 0
    streams.append(one.stream("z" * 18 + ">"))
    backend.allow(99)
    assert [stream.result().text for stream in streams] == ["yes"] * 3


def test_a_prompt_longer_than_the_queue_is_taken_when_it_waits_alone() -> None:
    one = engine(saying("yes"), queue_tokens=10)
    assert one.stream("x" * 50 + ">").result().text == "yes"
    assert [stream.result().text for stream in one.submit("x" * 50 + ">", n=3)] == ["yes"] * 3


def test_generate_feeds_itself_whatever_the_queue_takes() -> None:
    one = engine(saying("yes"), queue_tokens=30, max_step_rows=4)
    found: list[str] = []

    def work() -> None:
        found.extend(each.text for each in one.generate([f"{n:025}>" for n in range(20)]))

    in_threads(work, work, work)
    assert found == ["yes"] * 60


def test_stats_add_up_while_texts_come_and_go() -> None:
    one = engine(total_blocks=9)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            stats = one.stats()
            assert stats.free_blocks + stats.cached_blocks + stats.held_blocks == 9
            assert stats.waiting >= 0

    def work() -> None:
        for _ in range(5):
            one.generate(["x" * 40, "y" * 40, "z"], SamplingParams(max_tokens=20))
        done.set()

    in_threads(look, work)
    stats = one.stats()
    assert (stats.running, stats.waiting, stats.queued_tokens, stats.held_blocks) == (0, 0, 0, 0)
    assert stats.steps == one.steps > 0
    assert stats.native_seconds == one.native_seconds > 0
    assert stats.counters.generated_tokens == 5 * 3 * 20
    assert stats.counters is not one._loop.scheduler.counters


def test_blocks_are_checked_after_each_step_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(Scheduler, "check", lambda _: checks.append(1))
    engine().generate("abc", FEW)
    assert len(checks) == 3
    monkeypatch.delenv("FARTHING_CHECK")
    engine().generate("abc", FEW)
    assert len(checks) == 3


def test_what_it_did_lately_is_told_while_somebody_holds_the_state() -> None:
    one = engine(saying("yes"))
    one.generate(">")
    before = one.lately()
    held, seen = threading.Event(), threading.Event()

    def hold() -> None:
        with one._loop.state:
            held.set()
            assert seen.wait(PATIENCE)

    def look() -> None:
        assert held.wait(PATIENCE)
        assert one.lately() is before
        seen.set()

    in_threads(hold, look)
    one.generate(">")
    assert one.lately().steps == one.steps > before.steps
