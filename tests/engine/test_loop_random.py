"""Random callers, side by side: whatever they do, each answer ends once and is what it is alone."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import VOCABULARY, engine, engine_over, rambling
from engine.threads import eventually, in_threads
from farthing.backends.null import NullBackend
from farthing.core import BusyError, FarthingError, RequestError, SamplingParams
from farthing.engine.limits import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.core import StepPlan, StepResult
    from farthing.engine.engine import Engine
    from farthing.engine.stream import Stream

PROMPTS = ["a", "some words", "x" * 40, "x" * 40 + "y", "x" * 70]
MOST = 70


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    """Threads take turns a hundred times as often as they do, in the middle of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


@cache
def alone(prompt: str, choice: int, temperature: float) -> tuple[int, ...]:
    sampling = SamplingParams(max_tokens=MOST, temperature=temperature, seed=7)
    with engine(policy=Policy(sharing=False)) as one:
        *_, stream = one.submit(prompt, sampling, n=choice + 1)
        return stream.result().token_ids


class Unreliable(NullBackend):
    def __init__(self, seed: int, failing: float, total_blocks: int) -> None:
        super().__init__(rambling, VOCABULARY, total_blocks, max_step_tokens=40, max_step_rows=6)
        self._draw = random.Random(seed)
        self._failing = failing

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        result = super().run(plan, want_logits)
        if self._draw.random() < self._failing:
            raise OSError("as this test wants it")
        return result


class Caller:
    """Asks, reads, leaves and forgets at random; counts how its answers ended."""

    def __init__(self, one: Engine, seed: int) -> None:
        self.one = one
        self.draw = random.Random(seed)
        self.ends: Counter[str] = Counter()

    def ask(self) -> list[tuple[Stream, tuple[int, ...]]]:
        draw = self.draw
        prompt, temperature = draw.choice(PROMPTS), draw.choice((0.0, 1.0))
        sampling = SamplingParams(max_tokens=draw.randint(1, MOST), temperature=temperature, seed=7)
        settings: dict[str, Any] = {
            "n": draw.choice((1, 1, 2, 3)),
            "key": draw.choice(("", "one", "two")),
            "priority": draw.choice((0, 0, 1)),
            "timeout": draw.choice((None, None, 0.001, 0.1, 60)),
        }
        while True:
            try:
                streams = self.one.submit(prompt, sampling, **settings)
                break
            except BusyError as error:
                time.sleep(min(error.retry_after, 0.001))
        return [(s, alone(prompt, choice, temperature)) for choice, s in enumerate(streams)]

    def check(self, stream: Stream, expected: tuple[int, ...], reasons: list[str]) -> None:
        completion = stream.completion
        most = stream._answer.request.sampling.max_tokens or 0
        assert len(reasons) == 1, reasons
        assert completion.finish_reason == reasons[0]
        made = completion.token_ids
        assert made == expected[: len(made)]
        assert completion.text == bytes(made).decode(errors="replace") or reasons[0] != "length"
        assert (len(made) == most) or reasons[0] != "length"
        self.ends[reasons[0]] += 1

    def in_thread(self, times: int) -> None:
        for _ in range(times):
            for stream, expected in self.ask():
                if self.draw.random() < 0.1:
                    self.ends["dropped"] += 1
                    continue
                cut = self.draw.choice((None, None, 0, 1, 5))
                read: list[int] = []
                reasons: list[str] = []
                if cut == 0:
                    stream.close()
                try:
                    for delta in stream:
                        read += delta.token_ids
                        reasons += [delta.finish_reason] if delta.finish_reason else []
                        if cut is not None and len(read) >= cut:
                            stream.close()
                except FarthingError as error:
                    reasons.append("error" if "as this test wants it" in str(error) else str(error))
                assert tuple(read) == stream.completion.token_ids
                self.check(stream, expected, reasons)

    async def in_task(self, times: int) -> None:
        for _ in range(times):
            for stream, expected in self.ask():
                cut = self.draw.choice((None, None, None, 0.0, 0.003))
                if cut is not None:
                    asyncio.get_running_loop().call_later(cut, stream.close)
                reasons: list[str] = []
                try:
                    if self.draw.random() < 0.5:
                        reasons.append((await stream).finish_reason or "")
                    else:
                        async for delta in stream:
                            reasons += [delta.finish_reason] if delta.finish_reason else []
                except FarthingError:
                    reasons.append("error")
                self.check(stream, expected, reasons)


@pytest.mark.parametrize("queue_tokens", [None, 150])
@pytest.mark.parametrize("failing", [0.0, 0.02])
@pytest.mark.parametrize("total_blocks", [6, 40])
def test_each_answer_ends_once_whatever_callers_do(
    queue_tokens: int | None, failing: float, total_blocks: int
) -> None:
    backend = Unreliable(1, failing, total_blocks)
    one = engine_over(backend, queue_tokens=queue_tokens, policy=Policy(slots=4))
    callers = [Caller(one, seed) for seed in range(8)]

    async def all_tasks() -> None:
        await asyncio.gather(*[caller.in_task(12) for caller in callers[4:]])

    in_threads(
        *[lambda caller=caller: caller.in_thread(12) for caller in callers[:4]],
        lambda: asyncio.run(all_tasks()),
    )
    assert eventually(lambda: one.idle)
    stats = one.stats()
    assert (stats.running, stats.waiting, stats.queued_tokens, stats.held_blocks) == (0, 0, 0, 0)
    ends = sum((caller.ends for caller in callers), Counter())
    assert ends["length"] > 0
    assert ends["cancelled"] > 0
    assert (ends["error"] > 0) == (failing > 0)


@pytest.mark.parametrize("seed", range(6))
def test_each_answer_ends_once_when_the_engine_is_closed_meanwhile(seed: int) -> None:
    one = engine_over(Unreliable(seed, 0.02, 10), queue_tokens=300)
    draw = random.Random(seed)
    callers = [Caller(one, seed * 10 + number) for number in range(4)]
    refused: list[RequestError] = []

    def until_closed(caller: Caller) -> None:
        try:
            caller.in_thread(10_000)
        except RequestError as error:
            refused.append(error)

    def close() -> None:
        assert eventually(lambda: one.steps > draw.randint(1, 60))
        one.close(draw.choice((0.0, 0.0, 0.01, 60.0)))

    in_threads(*[lambda caller=caller: until_closed(caller) for caller in callers], close, close)
    assert [str(each) for each in refused] == ["the engine is closed: load the model again"] * 4
    assert one.idle
    assert one.stats().held_blocks == 0
