"""The default model gives the same bits however its requests are served together.

64 requests with the lengths of mission.md's skewed load, whose prompts begin alike for a block and
a half. What each gives alone, with nothing shared, is what it must give in every other way: tokens,
and the bits of the logits that they were chosen from. The lengths are a sixth of the load's, and
every second request is sampled; FARTHING_LONG_TESTS=1 takes the whole lengths, and each request
both ways.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from engine.driving import Driver, request
from farthing.engine.simulate import skewed_lengths
from farthing.files.checkpoint import open_checkpoint
from farthing.text.load import load_tokenizer
from native_steps import model_at, native

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.backends import Backend
    from farthing.core import Request

LONG = os.environ.get("FARTHING_LONG_TESTS") == "1"
COMMON = (
    "You are a careful assistant. Answer in plain words, say what you do not know, and keep to the "
    "facts that a reader can check. Do not repeat the question, and do not apologise. "
)
TOPICS = ("rivers", "the moon", "bread", "bridges", "bees", "glass", "tides", "maps")
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}

Answers = dict[tuple[str, int], tuple[list[int], list[str]]]
"""By request and choice: tokens, and digests of the logits that each was chosen from."""


@pytest.fixture(scope="module")
def backend(smollm2_path: Path) -> Backend:
    """All 64 prompts fit one step."""
    return native(
        model_at(smollm2_path),
        context_length=512,
        cache_tokens=64 * 320,
        step_rows=64,
        step_tokens=64 * 80,
        threads=2,
    )


@pytest.fixture(scope="module")
def requests(smollm2_path: Path) -> list[Request]:
    tokenizer = load_tokenizer(open_checkpoint(smollm2_path))
    made = []
    for number, length in enumerate(skewed_lengths()):
        text = f"{COMMON}Question {number % 24}: what should one know about {TOPICS[number % 8]}?"
        prompt, more = tokenizer.encode(text), length if LONG else -(-length // 6)
        if LONG or number % 2 == 0:
            made.append(request(f"greedy {number}", prompt, more))
        if LONG or number % 2 == 1:
            made.append(request(f"sampled {number}", prompt, more, seed=number, **SAMPLED))
    return made


def served(
    driver: Driver,
    requests: list[Request],
    step_tokens: int | None = None,
    preempt_every: int | None = None,
) -> Answers:
    sequences = driver.finish(requests, step_tokens, preempt_every)
    names = [(each.request.id, each.request.choice) for each in sequences]
    assert all(len(each.output) == each.request.sampling.max_tokens for each in sequences)
    return {
        name: (sequence.output, driver.logits.pop(name))
        for name, sequence in zip(names, sequences, strict=True)
    }


@pytest.fixture(scope="module")
def alone(backend: Backend, requests: list[Request]) -> Answers:
    """One after another; nothing is shared."""
    driver = Driver(backend, sharing=False, slots=1)
    answers = served(driver, requests)
    assert driver.widest == 1
    assert driver.scheduler.counters.reused_tokens == 0
    return answers


@pytest.mark.parametrize("slots", [8, 64])
def test_a_batch_changes_no_bit(
    backend: Backend, requests: list[Request], alone: Answers, slots: int
) -> None:
    driver = Driver(backend, sharing=False, slots=slots)
    assert served(driver, requests) == alone
    assert driver.widest == slots


@pytest.mark.parametrize("slots", [8, 64])
def test_what_comes_from_the_cache_changes_no_bit(
    backend: Backend, requests: list[Request], alone: Answers, slots: int
) -> None:
    driver = Driver(backend, slots=slots)
    assert served(driver, requests) == alone
    # All but the first find the common block.
    assert [each.reused >= 32 for each in driver.submitted] == [False] + [True] * (len(alone) - 1)
    assert served(driver, requests) == alone
    # Now the next block is full, and some of these differ inside it.
    again = [each.reused for each in driver.submitted[len(alone) :]]
    assert min(again) > 32
    assert any(count % 32 for count in again)


@pytest.mark.parametrize(
    ("slots", "every", "sharing"), [(8, 3, True), (8, 3, False), (64, 2, True)]
)
def test_preemption_every_few_steps_changes_no_bit(
    backend: Backend,
    requests: list[Request],
    alone: Answers,
    slots: int,
    every: int,
    sharing: bool,
) -> None:
    driver = Driver(backend, slots=slots, sharing=sharing)
    assert served(driver, requests, preempt_every=every) == alone
    # None when nothing runs any more.
    assert driver.scheduler.counters.preemptions >= driver.steps // every - 1 > 8
    if not sharing:
        assert driver.scheduler.counters.recomputed_tokens > 0


@pytest.mark.parametrize("sharing", [True, False])
def test_a_cache_too_small_for_the_load_changes_no_bit(
    backend: Backend, requests: list[Request], sharing: bool
) -> None:
    # Each grows to four blocks; eleven are enough for two and a half.
    longer = [
        replace(each, sampling=replace(each.sampling, max_tokens=70)) for each in requests[:4]
    ]
    roomy, small = Driver(backend, sharing=False, slots=1), Driver(backend, 11, sharing=sharing)
    assert served(small, longer) == served(roomy, longer)
    assert small.scheduler.counters.preemptions > 0
    assert roomy.scheduler.counters.preemptions == 0


@pytest.mark.parametrize(("slots", "chunk"), [(1, 1), (8, 9)])
def test_small_chunks_change_no_bit(
    backend: Backend, requests: list[Request], alone: Answers, slots: int, chunk: int
) -> None:
    driver = Driver(backend, slots=slots, sharing=slots > 1)
    some = requests if LONG or slots > 1 else requests[:8]
    found = served(driver, some, step_tokens=chunk)
    assert found == {name: alone[name] for name in found}


def test_choices_that_share_a_prompt_change_no_bit(backend: Backend) -> None:
    settings = {"temperature": 0.9, "seed": 11}
    prompt = [10 + (7 * number) % 400 for number in range(75)]
    choices = [request("choices", prompt, 25, choice=at, **settings) for at in range(4)]
    apart: Answers = {}
    for each in choices:
        apart |= served(Driver(backend, sharing=False, slots=1), [each])
    assert len({tuple(tokens) for tokens, _ in apart.values()}) == 4
    for preempt_every in (None, 4):
        for sharing in (True, False):
            driver = Driver(backend, sharing=sharing)
            assert served(driver, choices, preempt_every=preempt_every) == apart
            assert driver.scheduler.counters.reused_tokens == 3 * 74
