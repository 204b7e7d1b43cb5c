"""Twice the requests that the engine can answer, for ten minutes, and nothing may be lost.

    python benchmarks/soak.py [--minutes 10] [--json soak.json]

Requests of random lengths arrive at random (Poisson) at twice the rate that the engine reached in
the beginning of the run; some are cancelled on the way, all have a deadline, some begin alike, some
want two choices. The cache is too small for all that run, so the engine preempts. After every step
it checks its own books (FARTHING_CHECK). Judged: memory is flat, every answer ends exactly once,
nothing fails, nothing is held afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from farthing import Engine, SamplingParams
from farthing.core import FarthingError
from farthing.files import catalog
from neighbours import resident_bytes
from real_text import RealText
from soak_report import Latencies, Report, Sample, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.engine.stream import Stream

OVERLOAD = 2.0
ANSWER_PART, ANSWER_SPREAD = 16, 1.2
"""The median answer is this part of the longest text; the logarithms of the lengths spread so."""

CANCELLED = 0.15
TWO_CHOICES = 0.05
BEGIN_ALIKE = 0.3
PATIENCE = (1.0, 5.0)
"""Deadlines, in mean latencies of the beginning of the run."""

IDLE_WITHIN = 10.0
"""Seconds after the last answer."""

LONGEST = 512
"""Tokens of a prompt and its answer together."""


class Soak:
    """Clients of one engine, all in one thread of asyncio; the engine has its own."""

    def __init__(
        self, engine: Engine, text: Callable[[int], tuple[int, ...]], longest: int, seed: int = 0
    ) -> None:
        """`text` gives so many tokens; a prompt and its answer have at most `longest` together."""
        self._engine = engine
        self._text = text
        self._longest = longest
        self._draw = random.Random(seed)
        self._beginnings = [text(longest // 4) for _ in range(4)]
        self._report = Report()
        self._times = {name: Latencies() for name in ("first_token", "latency", "gap")}
        self._open: set[asyncio.Task[None]] = set()

    async def run(
        self, warm_up: int, clients: int, enough: Callable[[float], bool], interval: float
    ) -> Report:
        """Finds the engine's rate with `warm_up` requests of `clients` at a time, then overloads it
        until so many seconds of it are `enough`, looking at the process every `interval` seconds.
        """
        report, draw = self._report, self._draw
        started = time.perf_counter()
        await self._saturate(warm_up, clients)
        elapsed = time.perf_counter() - started
        report.requests_per_second = warm_up / elapsed
        report.offered_per_second = OVERLOAD * report.requests_per_second
        usual = clients * elapsed / warm_up
        self._times = {name: Latencies() for name in self._times}
        started = next_arrival = time.perf_counter()
        watching = asyncio.create_task(self._watch(started, interval))
        while not enough(time.perf_counter() - started):
            next_arrival += draw.expovariate(report.offered_per_second)
            await asyncio.sleep(max(0.0, next_arrival - time.perf_counter()))
            self._submit(timeout=usual * draw.uniform(*PATIENCE), impatience=usual)
        report.seconds = time.perf_counter() - started
        watching.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=10 * PATIENCE[1] * usual)
        # A stream that is closed ends for its reader at once, for the engine before its next step.
        late = time.perf_counter() + IDLE_WITHIN
        while not self._engine.idle and time.perf_counter() < late:
            await asyncio.sleep(0.01)
        return self._finish()

    async def _saturate(self, requests: int, clients: int) -> None:
        """So many clients, each with the next request as soon as the last is answered."""
        left = iter(range(requests))

        async def client() -> None:
            for _ in left:
                await asyncio.gather(*self._submit())

        await asyncio.gather(*(client() for _ in range(clients)))

    def _submit(
        self, timeout: float | None = None, impatience: float | None = None
    ) -> list[asyncio.Task[None]]:
        """One random request, each of its answers read by a task.

        Some are cancelled: after a number of tokens, or after up to twice `impatience` seconds.
        """
        draw = self._draw
        prompt = self._text(draw.randint(1, self._longest // 4))
        if draw.random() < BEGIN_ALIKE:
            prompt = draw.choice(self._beginnings) + prompt
        most = round(draw.lognormvariate(math.log(self._longest / ANSWER_PART), ANSWER_SPREAD))
        most = min(max(most, 1), self._longest - len(prompt))
        sampling = SamplingParams(max_tokens=most, temperature=draw.choice((0.0, 1.0)))
        streams = self._engine.submit(
            prompt,
            sampling,
            n=2 if draw.random() < TWO_CHOICES else 1,
            key=draw.choice(("", "one", "another")),
            priority=draw.choice((0, 0, 0, 1)),
            timeout=timeout,
        )
        tasks = []
        for stream in streams:
            self._report.submitted += 1
            cut = None
            if impatience is not None and draw.random() < CANCELLED:
                if draw.random() < 0.5:
                    cut = draw.randint(1, most)
                else:
                    delay = draw.uniform(0, 2 * impatience)
                    asyncio.get_running_loop().call_later(delay, stream.close)
            task = asyncio.create_task(self._read(stream, cut))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            tasks.append(task)
        return tasks

    async def _read(self, stream: Stream, cut: int | None) -> None:
        """One answer to its end, closed after `cut` tokens."""
        report, times = self._report, self._times
        last = started = time.perf_counter()
        made = 0
        ends: list[str] = []
        try:
            async for delta in stream:
                now = time.perf_counter()
                if delta.token_ids:
                    times["gap" if made else "first_token"].add(now - last)
                    made, last = made + len(delta.token_ids), now
                if delta.finish_reason is not None:
                    ends.append(delta.finish_reason)
                elif cut is not None and made >= cut:
                    stream.close()
        except FarthingError as error:
            ends.append("error")
            report.failures.append(str(error))
        report.repeated += len(ends) > 1
        report.lost += not ends
        for reason in ends:
            report.ended[reason] = report.ended.get(reason, 0) + 1
        if {"length", "stop"} & set(ends):
            times["latency"].add(last - started)

    async def _watch(self, started: float, interval: float) -> None:
        while True:
            stats = self._engine.stats()
            self._report.samples.append(
                Sample(
                    seconds=time.perf_counter() - started,
                    resident_bytes=resident_bytes(os.getpid()),
                    waiting=stats.waiting,
                    running=stats.running,
                )
            )
            await asyncio.sleep(interval)

    def _finish(self) -> Report:
        report, stats = self._report, self._engine.stats()
        report.lost += len(self._open)
        report.steps = stats.steps
        report.preemptions = stats.counters.preemptions
        report.recomputed_tokens = stats.counters.recomputed_tokens
        report.reused_tokens = stats.counters.reused_tokens
        report.generated_tokens = stats.counters.generated_tokens
        report.left_over = {
            "waiting": stats.waiting,
            "running": stats.running,
            "held blocks": stats.held_blocks,
        }
        report.latencies = {
            name: {f"p{part}": values.percentile(part) for part in (50, 95, 99)}
            for name, values in self._times.items()
        }
        return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--cache-tokens", type=int, default=1024, help="too few for all slots")
    parser.add_argument("--warm-up", type=int, default=600, help="requests that find the rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["FARTHING_CHECK"] = "1"
    with Engine.load(
        arguments.model,
        threads=arguments.threads,
        context_length=LONGEST,
        slots=arguments.slots,
        cache_tokens=arguments.cache_tokens,
    ) as engine:
        soak = Soak(engine, RealText().take, LONGEST, arguments.seed)
        clients = 2 * arguments.slots
        seconds = 60 * arguments.minutes
        report = asyncio.run(
            soak.run(
                arguments.warm_up,
                clients,
                enough=lambda elapsed: elapsed >= seconds,
                interval=min(1.0, seconds / 100),
            )
        )
    show(report)
    if arguments.json is not None:
        facts = {**asdict(report), "growth_bytes": report.growth, "flat_bytes": report.most_growth}
        facts["complaints"] = report.complaints()
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if report.complaints():
        sys.exit(1)


if __name__ == "__main__":
    main()
