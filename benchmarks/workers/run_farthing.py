"""farthing behind the protocol of stepping.py, measured twice over the same backend.

"farthing" is what `Engine.generate` does with a list of prompts: streams, native sampling, decoding
to text. "farthing, steps alone" leaves out streams and text: schedule, run (sampled natively),
commit.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from stepping import Measure, Steps, rate, serve

from farthing import Engine, SamplingParams
from farthing.backends.native import NativeBackend
from farthing.core import Request
from farthing.engine.engine import limits_of
from farthing.engine.scheduler import Scheduler
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT = 4352
CACHE_SEQUENCES = 16
STEP_ROWS = 64
MOST_PROMPT_TOKENS_TWICE = 8192
"""Prompts that take longer are computed for "farthing" alone."""


def load(model: str, threads: int) -> Measure:
    checkpoint = open_checkpoint(resolve(model))
    loaded = load_model(checkpoint)
    plan = plan_memory(
        loaded,
        context_length=CONTEXT,
        sequences=CACHE_SEQUENCES,
        threads=threads,
        step_rows=STEP_ROWS,
    )
    backend = NativeBackend(loaded, plan)
    engine = Engine(backend, load_tokenizer(checkpoint))

    def measure(point: dict[str, Any]) -> dict[str, Any]:
        native, started = engine.native_seconds, perf_counter()
        whole = rate(through_engine(engine), point)
        share = 1 - (engine.native_seconds - native) / (perf_counter() - started)
        rates = {"farthing": whole}
        if point["prompt"] * point["sequences"] <= MOST_PROMPT_TOKENS_TWICE:
            rates["farthing, steps alone"] = rate(through_steps(backend), point)
        return {"rates": rates, "python_share": share, "isa": backend.tier}

    return measure


def sampling(generated: int) -> SamplingParams:
    return SamplingParams(max_tokens=generated, ignore_eos=True)


def through_engine(engine: Engine) -> Callable[[list[list[int]], int], Steps]:
    def begin(prompts: list[list[int]], generated: int) -> Steps:
        streams = [engine.stream(prompt, sampling(generated)) for prompt in prompts]
        made = [0] * len(streams)

        def step() -> list[int]:
            behind = made.index(min(made))
            made[behind] += len(next(streams[behind]).token_ids)
            for number, stream in enumerate(streams):
                while made[number] < generated and not stream.waits:
                    made[number] += len(next(stream).token_ids)
            return made

        def finish() -> None:
            for stream in streams:
                for _ in stream:
                    pass

        return Steps(step, finish)

    return begin


def through_steps(backend: NativeBackend) -> Callable[[list[list[int]], int], Steps]:
    def begin(prompts: list[list[int]], generated: int) -> Steps:
        scheduler = Scheduler(limits_of(backend))
        sequences = [
            scheduler.submit(Request(str(number), tuple(prompt), sampling(generated)))
            for number, prompt in enumerate(prompts)
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
