from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from engine.scripted import VOCABULARY, engine, engine_over, rambling, saying
from engine.threads import PATIENCE, Held, eventually
from farthing.backends.null import NullBackend
from farthing.core import BusyError, FarthingError, SamplingParams
from farthing.engine.answer import wake

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from farthing.core import StepPlan, StepResult
    from farthing.engine.completion import Completion, Delta
    from farthing.engine.engine import Engine

PROMPTS = [f"{number}>" for number in range(20)]


def test_async_for_gives_what_a_for_gives() -> None:
    one = engine(saying("the answer"))

    async def read() -> list[Delta]:
        return [delta async for delta in one.stream(">")]

    deltas = asyncio.run(read())
    assert "".join(delta.text for delta in deltas) == "the answer"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]


def test_many_tasks_share_the_steps_and_each_text_is_what_it_is_alone() -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
    alone = [engine().generate(prompt, sampling).text for prompt in PROMPTS]
    one = engine()

    async def text_of(prompt: str) -> str:
        return "".join([delta.text async for delta in one.stream(prompt, sampling)])

    async def all_texts() -> list[str]:
        return await asyncio.gather(*map(text_of, PROMPTS))

    assert asyncio.run(all_texts()) == alone
    assert one.idle


def test_awaiting_a_stream_gives_its_completion() -> None:
    one = engine(saying("yes"))

    async def ask() -> Completion:
        return await one.stream(">")

    assert asyncio.run(ask()).text == "yes"


def calls_from_the_engine(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> list[object]:
    """Grows by one whenever another thread wakes the loop."""
    calls: list[object] = []
    original = loop.call_soon_threadsafe

    def counted(callback: Callable[..., Any], *arguments: Any, **rest: Any) -> asyncio.Handle:
        calls.append(callback)
        return original(callback, *arguments, **rest)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return calls


def test_a_step_wakes_a_loop_once_however_many_streams_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Held()
    one = engine_over(backend)

    async def read() -> tuple[int, int]:
        calls = calls_from_the_engine(monkeypatch, asyncio.get_running_loop())
        streams = one.submit("abc", SamplingParams(max_tokens=5, temperature=1.0), n=8)
        tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        backend.allow(2)  # the choices wait for the prompt of the first
        await asyncio.gather(*tasks)
        return len(calls), backend.entered

    woken, _ = asyncio.run(read())
    assert woken <= 2
    backend.allow(9)


def asked(one: Engine) -> int:
    """How many answers have not ended."""
    stats = one.stats()
    return stats.running + stats.waiting


def test_a_newcomer_is_seen_before_all_readers_of_a_step_have_had_their_turn() -> None:
    near, far = socket.socketpair()
    read, seen = 0, []

    async def reader(future: asyncio.Future[None]) -> None:
        nonlocal read
        await future
        if not read:
            far.send(b"x")  # as the first of them is answered, somebody new comes
        read += 1

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(near, lambda: seen.append(read) or near.recv(1))
        futures = [loop.create_future() for _ in range(64)]
        readers = [asyncio.create_task(reader(each)) for each in futures]
        await asyncio.sleep(0)
        await asyncio.to_thread(wake, futures)
        await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
        loop.remove_reader(near)

    with near, far:
        asyncio.run(watch())
    assert read == 64
    assert 0 < seen[0] < 32


def test_whoever_waits_for_the_end_alone_is_woken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine()

    async def ask() -> int:
        calls = calls_from_the_engine(monkeypatch, asyncio.get_running_loop())
        completion = await one.stream("abc", SamplingParams(max_tokens=50))
        assert completion.usage.completion_tokens == 50
        return len(calls)

    assert asyncio.run(ask()) <= 1


def test_a_cancelled_task_leaves_its_stream_open_and_nothing_behind() -> None:
    backend = Held(saying("yes"))
    one = engine_over(backend)

    async def ask() -> str:
        stream = one.stream(">")
        for _ in range(50):  # a reader that looks in between, as for a heartbeat
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.001)
        assert not stream._answer.waiters
        backend.allow(9)
        return "".join([delta.text async for delta in stream])

    assert asyncio.run(ask()) == "yes"


def test_leaving_an_async_for_frees_the_blocks() -> None:
    one = engine()

    async def leave() -> None:
        async for _ in one.stream("abc"):
            break

    asyncio.run(leave())
    assert eventually(lambda: one.idle)


def test_closing_a_stream_wakes_the_task_that_waits_for_it() -> None:
    backend = Held()
    one = engine_over(backend)

    async def ask() -> list[str | None]:
        stream = one.stream("abc")
        asyncio.get_running_loop().call_later(0.01, stream.close)
        return [delta.finish_reason async for delta in stream]

    assert asyncio.run(ask()) == ["cancelled"]
    backend.allow()


def test_a_loop_that_is_closed_harms_nobody_else() -> None:
    backend = Held(saying("yes"))
    one = engine_over(backend)
    gone, staying = one.stream(">"), one.stream(">")

    async def leave() -> None:
        task = asyncio.ensure_future(anext(gone))
        await asyncio.sleep(0.001)
        del task

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(leave())
    loop.run_until_complete(waiting)
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    backend.allow(9)
    assert staying.result().text == "yes"
    assert gone.result().text == "yes"


class FailingAtOnce(NullBackend):
    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        raise ZeroDivisionError("of a backend")


@pytest.mark.parametrize("waits_for_end", [False, True])
def test_a_failed_step_is_raised_in_the_task(waits_for_end: bool) -> None:
    one = engine_over(FailingAtOnce(rambling, VOCABULARY))

    async def ask() -> None:
        stream = one.stream("abc")
        if waits_for_end:
            await stream
        async for _ in stream:
            raise AssertionError("there is no delta")

    with pytest.raises(FarthingError, match="ZeroDivisionError: of a backend") as caught:
        asyncio.run(ask())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert one.idle


def test_submitting_from_asyncio_waits_for_no_step() -> None:
    backend = Held(saying("yes"))
    one = engine_over(backend, queue_tokens=100)

    async def ask() -> list[str]:
        streams = [one.stream(">")]
        backend.wait_entered(1)  # and is held there
        streams += [one.stream(f"{'x' * 40}>") for _ in range(2)]
        with pytest.raises(BusyError):
            one.stream(f"{'x' * 40}>")
        backend.allow(99)
        return [(await stream).text for stream in streams]

    assert asyncio.run(ask()) == ["yes"] * 3
