"""Four times what a server can answer, for two minutes, over HTTP.

    python benchmarks/overload.py [--seconds 120] [--json overload.json]

Three keys. `good` asks now and then, and is timed alone, beside a machine whose slots are just
full, and in the overload. `obeying` asks for more than its share and comes back exactly when it was
told to; `flood` asks for the rest and never comes back. Judged: whether an accepted request is
lost, how fast the others are refused, whether who comes back is let in and could have come much
earlier, whether `good` keeps its latency, and whether memory is flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.engine.simulate import skewed_lengths
from farthing.files import catalog
from neighbours import machine, resident_bytes
from overload_report import ALONE, FULL, OVERLOAD, Report, Sample, show
from real_text import RealText
from serving.client import Connections, Lateness
from serving.crowd import Crowd
from serving.metrics import scrape
from serving.process import farthing_server

if TYPE_CHECKING:
    from typing import Any

    from serving.process import ServerProcess

GOOD, OBEYING, FLOOD = "good", "obeying", "flood"
GOOD_SHARE = 0.05
OBEYING_SHARE = 1.0
"""Of what the machine can answer: twice the half that fairness leaves to a key beside another that
asks for all it can get."""

WARM_UP = "warm-up"
FREE_BLOCKS = 64
"""Fewer blocks than these are touched by a few requests more."""

SCRAPE_SECONDS = 1 / 3
LAST_SECONDS = 180
"""The time that those have who were told to come back when no more come."""


class Overload:
    """The run against one server of so many `slots`."""

    def __init__(
        self, server: ServerProcess, keys: dict[str, str], slots: int, seed: int = 0
    ) -> None:
        self._server = server
        self._slots = slots
        self._connections = Connections(server.port)
        self._authorization = {"Authorization": f"Bearer {keys[GOOD]}"}
        text, lengths = RealText(), list(skewed_lengths())
        self.crowds = {
            name: Crowd(
                name,
                secret,
                self._connections,
                text.text,
                lengths,
                random.Random(f"{name} {seed}"),
                obeys=name == OBEYING,
            )
            for name, secret in keys.items()
        }
        self.report = Report()

    async def run(self, times: float, before: float, seconds: float) -> Report:
        """First the machine alone and full, `before` seconds each, then `times` what it can answer.

        It is full for so long at least before anything counts, and until all of its cache is
        touched: only then its memory can be flat.
        """
        report, good, flood = self.report, self.crowds[GOOD], self.crowds[FLOOD]
        started = time.perf_counter()
        free = asyncio.create_task(self._cache_is_full())
        await flood.take_turns(
            WARM_UP, self._slots, lambda: free.done() and time.perf_counter() > started + before
        )
        warm = self._rate(WARM_UP, started, time.perf_counter() - started)
        await good.arrive(ALONE, GOOD_SHARE * warm, before)
        await good.leave(LAST_SECONDS)
        started = time.perf_counter()
        await asyncio.gather(
            flood.take_turns(FULL, self._slots, lambda: time.perf_counter() > started + before),
            good.arrive(FULL, GOOD_SHARE * warm, before),
        )
        await good.leave(LAST_SECONDS)
        report.capacity = self._rate(FULL, started, before)
        report.offered = times * report.capacity
        async with Lateness() as lateness:
            await self._overload(GOOD_SHARE * warm, seconds)
        report.client_late_seconds = lateness.seconds
        report.unanswered = sum([await each.leave(LAST_SECONDS) for each in self.crowds.values()])
        self._connections.close()
        return report

    async def _cache_is_full(self) -> None:
        """Returns when no block of the cache has never been used."""
        while True:
            metrics = await scrape(self._connections, self._authorization)
            if metrics.total("farthing:cache_blocks", 'state="free"') < FREE_BLOCKS:
                return
            await asyncio.sleep(SCRAPE_SECONDS)

    async def _overload(self, good_rate: float, seconds: float) -> None:
        report, crowds = self.report, self.crowds
        obeying = OBEYING_SHARE * report.capacity
        started = time.perf_counter()
        watching = asyncio.create_task(self._watch(started))
        await asyncio.gather(
            crowds[GOOD].arrive(OVERLOAD, good_rate, seconds),
            crowds[OBEYING].arrive(OVERLOAD, obeying, seconds),
            crowds[FLOOD].arrive(OVERLOAD, report.offered - obeying - good_rate, seconds),
        )
        watching.cancel()
        report.seconds = seconds
        report.answered = self._rate(OVERLOAD, started, seconds)

    def _rate(self, phase: str, started: float, seconds: float) -> float:
        """Answers of a phase that ended within its time, a second."""
        ended = [
            each.ended
            for crowd in self.crowds.values()
            for each in crowd.of(phase)
            if each.id is not None and each.fault is None
        ]
        return sum(started <= each <= started + seconds for each in ended) / seconds

    async def _watch(self, started: float) -> None:
        """Looks at the server as a Prometheus does, and at its memory."""
        while True:
            metrics = await scrape(self._connections, self._authorization)
            self.report.scrapes.append(metrics.seconds)
            self.report.samples.append(
                Sample(
                    seconds=time.perf_counter() - started,
                    resident_bytes=resident_bytes(self._server.pid),
                    waiting=round(metrics.total("vllm:num_requests_waiting")),
                    running=round(metrics.total("vllm:num_requests_running")),
                )
            )
            await asyncio.sleep(SCRAPE_SECONDS)


def write_keys(folder: Path) -> tuple[Path, dict[str, str]]:
    """A file of keys of equal weight, and their secrets."""
    keys = {name: secrets.token_urlsafe(32) for name in (GOOD, OBEYING, FLOOD)}
    path = folder / "keys.toml"
    path.touch(mode=0o600)
    path.write_text("".join(f'[{name}]\nsecret = "{keys[name]}"\n' for name in keys))
    return path, keys


def requests_of(log: str) -> dict[str, dict[str, Any]]:
    """What a server's log tells of each request, by its id.

    Raises `ValueError` where some lines were lost.
    """
    found = {}
    for line in log.splitlines():
        entry = json.loads(line)
        if entry["event"] == "request":
            found[entry["id"]] = entry
        elif entry["event"] == "lines_lost":
            raise ValueError(f"the server's log is not whole: {entry['message']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the overload lasts")
    parser.add_argument("--before", type=float, default=20.0, help="seconds of what comes first")
    parser.add_argument("--times", type=float, default=4.0, help="what the machine can answer")
    parser.add_argument("--cache-tokens", type=int, help="a smaller cache is full sooner")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most-wait", type=float, default=2.0, help="as in --slo server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    flags = ["--most-wait-seconds", str(arguments.most_wait)]
    if arguments.cache_tokens is not None:
        flags += ["--cache-tokens", str(arguments.cache_tokens)]
    with tempfile.TemporaryDirectory() as store:
        keys_file, keys = write_keys(Path(store))
        server = farthing_server(
            catalog.resolve(arguments.model),
            arguments.threads,
            *("--keys-file", str(keys_file), *flags),
            slots=arguments.slots,
            store=Path(store),
        )
        try:
            overload = Overload(server, keys, arguments.slots, arguments.seed)
            report = asyncio.run(overload.run(arguments.times, arguments.before, arguments.seconds))
            report.exit_code = server.end(seconds=60)
            report.finish(
                {name: crowd.outcomes for name, crowd in overload.crowds.items()},
                requests_of(server.log()),
                arguments.most_wait,
            )
        finally:
            server.stop()
    show(report)
    if arguments.json is not None:
        facts = {"machine": machine(), **asdict(report), "complaints": report.complaints()}
        facts["load_average"] = os.getloadavg()[0]
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if report.complaints():
        sys.exit(1)


if __name__ == "__main__":
    main()
