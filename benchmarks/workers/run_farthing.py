"""farthing behind the protocol of stepping.py, measured twice over the same backend.

"farthing" is what a caller of `Engine.submit` has: streams, native sampling, decoding to text, all
in the engine's own thread. "farthing, steps alone" leaves out thread, streams and text: schedule,
run (sampled natively), commit. Under load there is the former alone, with all that it is shipped
with: its prefix index, and its guesses ahead.
"""

from __future__ import annotations

from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stepping import Measure, Steps, measured, rate, serve

from farthing import Engine, SamplingParams
from farthing.backends.native import NativeBackend
from farthing.core import Request
from farthing.engine.engine import limits_of
from farthing.engine.limits import Policy
from farthing.engine.scheduler import Scheduler
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from stepping import Begin

CONTEXT = 4352
CACHE_SEQUENCES = 16
USUAL_SLOTS = 64
MOST_PROMPT_TOKENS_TWICE = 8192
"""Prompts that take longer are computed for "farthing" alone."""


def load(model: str, threads: int, slots: int | None) -> Measure:
    return load_steps(model, threads) if slots is None else load_slots(model, threads, slots)


def load_slots(model: str, threads: int, slots: int) -> Measure:
    """The engine as it is shipped, which runs so many texts at once."""
    engine = Engine.load(
        resolve(model),
        threads=threads,
        context_length=CONTEXT,
        sequences=CACHE_SEQUENCES,
        slots=slots,
    )
    assert engine.report is not None
    isa = engine.report.isa
    return lambda point: {**measured_engine(engine, point), "isa": isa}


def load_steps(model: str, threads: int) -> Measure:
    """The engine, and the steps of its backend."""
    checkpoint = open_checkpoint(resolve(model))
    loaded = load_model(checkpoint)
    plan = plan_memory(
        loaded,
        context_length=CONTEXT,
        sequences=CACHE_SEQUENCES,
        threads=threads,
        slots=USUAL_SLOTS,
    )
    backend = NativeBackend(loaded, plan)
    # The steps alone write to the engine's blocks, so it may not look for anything there. And where
    # only speed counts, prompts need not leave others the time to decode.
    policy = Policy(latency_target=None, sharing=False)
    engine = Engine(backend, load_tokenizer(checkpoint), policy=policy)

    def measure(point: dict[str, Any]) -> dict[str, Any]:
        answer = measured_engine(engine, point)
        if point["prompt"] * point["sequences"] <= MOST_PROMPT_TOKENS_TWICE:
            answer["rates"]["farthing, steps alone"] = rate(through_steps(backend), point)
        return {**answer, "isa": backend.tier}

    return measure


def measured_engine(engine: Engine, point: dict[str, Any]) -> dict[str, Any]:
    """A turn of it, and which share of the time was not the backend's."""
    native, started = engine.native_seconds, perf_counter()
    answer = measured("farthing", through_engine(engine), point)
    share = 1 - (engine.native_seconds - native) / (perf_counter() - started)
    return {**answer, "python_share": share}


def sampling(generated: int) -> SamplingParams:
    return SamplingParams(max_tokens=generated, ignore_eos=True)


def through_engine(engine: Engine) -> Begin:
    def begin(prompts: list[list[int]], lengths: list[int]) -> Steps:
        streams = [
            engine.submit(prompt, sampling(generated))[0]
            for prompt, generated in zip(prompts, lengths, strict=True)
        ]
        made = [0] * len(streams)
        # Numbers of the streams that may have more to read.
        bell: SimpleQueue[int] = SimpleQueue()

        def read(number: int) -> None:
            stream = streams[number]
            if (delta := stream.take()) is not None:
                made[number] += len(delta.token_ids)
            ring = partial(bell.put, number)
            if not stream.finished and not stream.arm(ring):
                ring()

        def step() -> list[int]:
            read(bell.get())
            try:
                while True:
                    read(bell.get_nowait())
            except Empty:
                return made

        def finish() -> None:
            for stream in streams:
                stream.result()

        for number in range(len(streams)):
            bell.put(number)
        return Steps(step, finish)

    return begin


def through_steps(backend: NativeBackend) -> Begin:
    def begin(prompts: list[list[int]], lengths: list[int]) -> Steps:
        policy = Policy(latency_target=None, sharing=False)
        scheduler = Scheduler(limits_of(backend), policy=policy)
        sequences = [
            scheduler.submit(Request(str(number), tuple(prompt), sampling(generated)))
            for number, (prompt, generated) in enumerate(zip(prompts, lengths, strict=True))
        ]

        def step() -> list[int]:
            plan = scheduler.schedule()
            if plan is not None:
                scheduler.commit(backend.run(plan))
            return [len(sequence.tokens) - len(sequence.request.prompt) for sequence in sequences]

        def finish() -> None:
            while (plan := scheduler.schedule()) is not None:
                scheduler.commit(backend.run(plan))

        return Steps(step, finish)

    return begin


if __name__ == "__main__":
    serve(load)
