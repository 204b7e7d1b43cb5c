"""Speculation against plain decoding on the default model, in turn in one run.

Both engines are loaded at once. What guesses gain on one text is measured in rounds: every text is
made by one engine, then by the other, in alternating order, and its figure is the median of the
rounds' ratios, with the least and the greatest.

That nothing is lost needs finer figures: for many texts at once, for random tokens, and where no
guess is allowed, which is what the controller costs. There, slices of a few tokens are paired, each
made by both engines one right after the other, in alternating order, further and further into the
texts, for `--seconds` each. The figure is the median of the pairs' ratios with the interval that
holds 95 of 100 medians of as many pairs drawn anew from them (bootstrap).

Texts are compared bit for bit on the way.

    python benchmarks/speculation.py --json speculation.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from functools import partial
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
    from collections.abc import Callable, Sequence

SLICE = 32
"""Tokens of each text that one engine makes before the other does; of 32 texts half as many."""

LEAST_PAIRS = 5


@dataclass(frozen=True)
class Workload:
    """Prompts that run at once, and how their texts are sampled."""

    name: str
    prompts: Sequence[Any]
    sampling: SamplingParams
    group: str


def chats(prompts: Sequence[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": each}] for each in prompts]


def workloads(tokens: int) -> list[Workload]:
    greedy = SamplingParams(max_tokens=tokens, ignore_eos=True)
    sampled = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.7, seed=11)
    found = []
    for name, prompts in WORKLOADS.items():
        for number, chat in enumerate(chats(prompts), 1):
            found.append(Workload(f"{name} {number}", [chat], greedy, name))
        found.append(Workload(f"{name} at 0.7", chats(prompts)[:1], sampled, f"{name} sampled"))
    return found


def paired_workloads(vocabulary: int, tokens: int) -> list[Workload]:
    """Those of which it is measured that guesses lose nothing.

    `tokens` of each text are made, half as many where there are several at once.
    """
    random = np.random.default_rng(4)
    noise = [random.integers(100, vocabulary, 96).tolist() for _ in range(32)]
    mixed = chats([prompt for prompts in WORKLOADS.values() for prompt in prompts])
    usual = SamplingParams(ignore_eos=True, temperature=0.7, seed=5)
    wild = SamplingParams(ignore_eos=True, temperature=1.5, seed=6)
    kinds = [(f"{count} at once", (mixed * 4)[:count], usual, "batch") for count in (8, 32)]
    kinds += [
        (f"{count} of random tokens, temperature 1.5", noise[:count], wild, "adversarial")
        for count in (1, 8, 32)
    ]
    found = [
        Workload(name, prompts, replace(sampling, max_tokens=tokens // min(len(prompts), 2)), group)
        for name, prompts, sampling, group in kinds
    ]
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
    for number in range(rounds):
        found = {}
        order = [("plain", plain), ("guessing", guessing)]
        for name, engine in order if number % 2 else order[::-1]:
            found[name] = made(engine, workload)
        if found["plain"][1] != found["guessing"][1] or warm != found["plain"][1]:
            raise SystemExit(f"{workload.name}: guessing changed a text")
        speeds.append(found["plain"][0])
        ratios.append(found["guessing"][0] / found["plain"][0])
    return {
        "ratio": median(ratios),
        "interval": [min(ratios), max(ratios)],
        "ratios": ratios,
        "plain_tokens_per_second": median(speeds),
    }


def slices(plain: Engine, workload: Workload) -> list[Workload]:
    """The workload's texts in parts: each goes on from where the last one ends."""
    _, texts = made(plain, workload)
    begun = [plain.encode(prompt) for prompt in workload.prompts]
    size = SLICE if len(begun) < 32 else SLICE // 2
    parts = []
    for first in range(0, len(texts[0]) - size + 1, size):
        prompts = [[*prompt, *text[:first]] for prompt, text in zip(begun, texts, strict=True)]
        sampling = replace(workload.sampling, max_tokens=size)
        parts.append(replace(workload, prompts=prompts, sampling=sampling))
    return parts


def paired(plain: Engine, guessing: Engine, workload: Workload, seconds: float) -> dict[str, Any]:
    """A workload's ratios, slice by slice, for so many seconds; five slices at least."""
    parts = slices(plain, workload)
    for part in parts:  # what both have read of the texts is theirs from here on
        made(plain, part)
        made(guessing, part)
    ratios: list[float] = []
    speeds = []
    until = perf_counter() + seconds
    while perf_counter() < until or len(ratios) < LEAST_PAIRS:
        # Every slice in either order before the next round.
        part = parts[len(ratios) % len(parts)]
        order = [("plain", plain), ("guessing", guessing)]
        turned = (len(ratios) + len(ratios) // len(parts)) % 2
        found = {name: made(engine, part) for name, engine in order[:: -1 if turned else 1]}
        if found["plain"][1] != found["guessing"][1]:
            raise SystemExit(f"{workload.name}: guessing changed a text")
        speeds.append(found["plain"][0])
        ratios.append(found["guessing"][0] / found["plain"][0])
    return {
        "ratio": median(ratios),
        "interval": interval(ratios),
        "ratios": ratios,
        "plain_tokens_per_second": median(speeds),
    }


def interval(ratios: Sequence[float]) -> list[float]:
    """Of the median: the 95 % between of medians of as many drawn from them with repetition."""
    drawn = np.random.default_rng(0).choice(np.array(ratios), (4000, len(ratios)))
    least, most = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return [float(least), float(most)]


def watched(
    guessing: Engine, workload: Workload, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What `measure` found, and how guesses fared meanwhile."""
    drafts = guessing.stats().counters.drafts
    steps = guessing.steps
    found = measure()
    after = guessing.stats().counters.drafts
    tested = after.tested[0] - drafts.tested[0]
    proposed = after.proposed - drafts.proposed
    return {
        "name": workload.name,
        "group": workload.group,
        **found,
        "proposed": proposed,
        "right": (after.accepted - drafts.accepted) / proposed if proposed else None,
        "first_right": (after.right[0] - drafts.right[0]) / tested if tested else None,
        "share_of_steps": (after.steps - drafts.steps) / (guessing.steps - steps),
    }


def told(result: dict[str, Any]) -> str:
    """One line."""
    right = "-" if result["right"] is None else f"{result['right']:.0%}"
    least, most = result["interval"]
    return (
        f"{result['name']:40} {result['ratio']:.3f}x ({least:.3f} to {most:.3f}, "
        f"{len(result['ratios'])} pairs), plain {result['plain_tokens_per_second']:6.1f} tokens/s, "
        f"{right} of guesses right, in {result['share_of_steps']:.0%} of steps"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--speculate", default="auto", help="against off")
    parser.add_argument("--rounds", type=int, default=3, help="of texts that are made alone")
    parser.add_argument("--tokens", type=int, default=160, help="of each text")
    parser.add_argument("--seconds", type=float, default=22.0, help="for slices of each kind")
    parser.add_argument("--only", metavar="GROUP", action="append", help="measure these groups")
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
        measures: list[tuple[Workload, Callable[[], dict[str, Any]]]] = [
            (each, partial(measured, plain, guessing, each, arguments.rounds))
            for each in workloads(arguments.tokens)
        ]
        measures += [
            (each, partial(paired, plain, guessing, each, arguments.seconds))
            for each in paired_workloads(vocabulary, arguments.tokens)
        ]
        for workload, measure in measures:
            if arguments.only and workload.group not in arguments.only:
                continue
            result = watched(guessing, workload, measure)
            results.append(result)
            print(told(result), flush=True)
        groups = {
            group: geometric_mean(each["ratio"] for each in results if each["group"] == group)
            for group in dict.fromkeys(each["group"] for each in results)
        }
        alone = [groups[name] for name in WORKLOADS if name in groups]
        report = plain.report
    for group, ratio in groups.items():
        print(f"{group:32} {ratio:.3f}x, geometric mean")
    if len(alone) == len(WORKLOADS):
        print(f"{', '.join(WORKLOADS)}: {geometric_mean(alone):.3f}x, geometric mean, greedy")
    print(f"in {perf_counter() - started:.0f} s")
    if arguments.json is not None and report is not None:
        content = {
            **facts(report.model, report.path, report.threads, report.isa),
            "speculate": arguments.speculate,
            "rounds": arguments.rounds,
            "tokens": arguments.tokens,
            "seconds": arguments.seconds,
            "workloads": results,
            "groups": groups,
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
