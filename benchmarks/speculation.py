"""Speculation against plain decoding on the default model, in turn in one run.

Both engines are loaded at once; every workload is made by one, then the other, in alternating
order, and a workload's figure is the median of the rounds' ratios, with the least and the greatest.
Texts are compared bit for bit on the way. The cost of speculation that guesses nothing is the ratio
where every request forbids guesses, so that the controller is asked at each step.

    python benchmarks/speculation.py --rounds 5 --json speculation.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import SamplingParams
from farthing.engine.engine import Engine
from farthing.lab.facts import facts
from farthing.lab.speculation_prompts import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Workload:
    """Prompts that run at once, and how their texts are sampled."""

    name: str
    prompts: Sequence[Any]
    sampling: SamplingParams
    group: str


def chats(prompts: Sequence[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": each}] for each in prompts]


def workloads(vocabulary: int, tokens: int) -> list[Workload]:
    greedy = SamplingParams(max_tokens=tokens, ignore_eos=True)
    sampled = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.7, seed=11)
    wild = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.5, seed=12)
    random = np.random.default_rng(4)
    noise = [random.integers(100, vocabulary, 96).tolist() for _ in range(32)]
    found = []
    for name, prompts in WORKLOADS.items():
        for number, chat in enumerate(chats(prompts), 1):
            found.append(Workload(f"{name} {number}", [chat], greedy, name))
        found.append(Workload(f"{name} at 0.7", chats(prompts)[:1], sampled, f"{name} sampled"))
    found.append(Workload("random tokens, temperature 1.5", noise[:1], wild, "adversarial"))
    mixed = chats([prompt for prompts in WORKLOADS.values() for prompt in prompts])
    for count in (8, 32):
        half = SamplingParams(max_tokens=tokens // 2, ignore_eos=True, temperature=0.7, seed=5)
        found.append(Workload(f"{count} at once", (mixed * 4)[:count], half, "batch"))
        short = SamplingParams(max_tokens=tokens // 2, ignore_eos=True, temperature=1.5, seed=6)
        found.append(Workload(f"{count} of random tokens", noise[:count], short, "adversarial"))
    off = SamplingParams(max_tokens=tokens, ignore_eos=True, max_draft_tokens=0)
    found.append(Workload("no guess allowed", chats(WORKLOADS["story"])[:1], off, "off"))
    return found


def made(engine: Engine, workload: Workload) -> tuple[float, list[tuple[int, ...]]]:
    """Tokens a second from the first token on, and the tokens themselves."""
    streams = [engine.submit(each, workload.sampling)[0] for each in workload.prompts]
    done = [stream.result() for stream in streams]
    written = sum(each.usage.completion_tokens - 1 for each in done)
    seconds = sum(each.timing.decode_seconds for each in done) / len(done)
    return written / seconds, [each.token_ids for each in done]


def measured(plain: Engine, guessing: Engine, workload: Workload, rounds: int) -> dict[str, Any]:
    """A workload's ratios, round by round."""
    made(plain, workload)
    _, warm = made(guessing, workload)
    ratios, speeds = [], []
    drafts = guessing.stats().counters.drafts
    steps = guessing.steps
    for number in range(rounds):
        found = {}
        order = [("plain", plain), ("guessing", guessing)]
        for name, engine in order if number % 2 else order[::-1]:
            found[name] = made(engine, workload)
        if found["plain"][1] != found["guessing"][1] or warm != found["plain"][1]:
            raise SystemExit(f"{workload.name}: guessing changed a text")
        speeds.append(found["plain"][0])
        ratios.append(found["guessing"][0] / found["plain"][0])
    after = guessing.stats().counters.drafts
    tested = after.tested[0] - drafts.tested[0]
    proposed = after.proposed - drafts.proposed
    return {
        "name": workload.name,
        "group": workload.group,
        "ratio": median(ratios),
        "ratios": ratios,
        "plain_tokens_per_second": median(speeds),
        "proposed": proposed,
        "right": (after.accepted - drafts.accepted) / proposed if proposed else None,
        "first_right": (after.right[0] - drafts.right[0]) / tested if tested else None,
        "share_of_steps": (after.steps - drafts.steps) / (guessing.steps - steps),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--speculate", default="auto", help="against off")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = perf_counter()
    loading = {"threads": arguments.threads, "cache_tokens": 32_768, "slots": 32}
    results = []
    with (
        Engine.load(arguments.model, speculate="off", **loading) as plain,
        Engine.load(arguments.model, speculate=arguments.speculate, **loading) as guessing,
    ):
        vocabulary = plain.tokenizer.vocabulary_size
        for workload in workloads(vocabulary, arguments.tokens):
            result = measured(plain, guessing, workload, arguments.rounds)
            results.append(result)
            right = "-" if result["right"] is None else f"{result['right']:.0%}"
            print(
                f"{result['name']:32} {result['ratio']:.3f}x ({min(result['ratios']):.3f} to "
                f"{max(result['ratios']):.3f}), plain {result['plain_tokens_per_second']:6.1f} "
                f"tokens/s, {right} of guesses right, in {result['share_of_steps']:.0%} of steps",
                flush=True,
            )
        groups = {
            group: geometric_mean(each["ratio"] for each in results if each["group"] == group)
            for group in dict.fromkeys(each["group"] for each in results)
        }
        four = geometric_mean(groups[name] for name in ("code", "extraction", "story", "chat"))
        report = plain.report
    for group, ratio in groups.items():
        print(f"{group:32} {ratio:.3f}x, geometric mean")
    print(f"code, extraction, story and chat {four:.3f}x, geometric mean, greedy")
    print(f"in {perf_counter() - started:.0f} s")
    if arguments.json is not None and report is not None:
        told = {
            **facts(report.model, report.path, report.threads, report.isa),
            "speculate": arguments.speculate,
            "rounds": arguments.rounds,
            "tokens": arguments.tokens,
            "workloads": results,
            "groups": groups,
            "greedy": four,
        }
        arguments.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
