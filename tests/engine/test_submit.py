from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import engine
from engine.threads import in_threads
from farthing.core import RequestError, SamplingParams
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.engine.completion import Completion


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_choices_are_what_separate_requests_of_that_seed_and_choice_are(temperature: float) -> None:
    sampling = SamplingParams(max_tokens=25, temperature=temperature, seed=9, logprobs=1)
    one = engine(total_blocks=8)
    answers = [stream.result() for stream in one.submit("x" * 40, sampling, n=4)]
    for choice, answer in enumerate(answers):
        # The choices before it are closed, so that it runs alone.
        *others, alone = engine(policy=Policy(sharing=False)).submit(
            "x" * 40, sampling, n=choice + 1
        )
        for other in others:
            other.close()
        expected = alone.result()
        assert (answer.token_ids, answer.logprobs) == (expected.token_ids, expected.logprobs)
    assert len({answer.token_ids for answer in answers}) == (4 if temperature else 1)


def test_choices_without_a_seed_share_the_one_that_is_drawn() -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0)
    one = engine()
    answers = [stream.result() for stream in one.submit("go", sampling, n=3)]
    assert len({answer.seed for answer in answers}) == 1
    assert len({answer.token_ids for answer in answers}) == 3
    again = one.submit(
        "go", SamplingParams(max_tokens=20, temperature=1.0, seed=answers[0].seed), n=3
    )
    assert [stream.result().token_ids for stream in again] == [each.token_ids for each in answers]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n must be a whole number from 1 to 128"),
        ({"n": 10**9}, "n must be a whole number from 1 to 128"),
        ({"n": True}, "n must be"),
        ({"key": 7}, "key must be a string"),
        ({"priority": 0.5}, "priority must be a whole number"),
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"timeout": "soon"}, "timeout must be"),
    ],
    ids=repr,
)
def test_a_bad_setting_of_a_request_is_one_clear_error(wrong: dict[str, Any], message: str) -> None:
    one = engine()
    with pytest.raises(RequestError, match=message):
        one.submit("hello", **wrong)
    assert one.idle


def test_what_could_never_be_served_is_refused_at_once_and_check_says_so_too() -> None:
    one = engine(total_blocks=2)
    for ask in (one.check, one.stream, one.submit, one.generate):
        with pytest.raises(RequestError, match="places in the cache"):
            ask("x" * 40, SamplingParams(max_tokens=60))
    one.check("x" * 40, SamplingParams(max_tokens=20))
    assert one.steps == 0


def test_what_one_engine_has_in_its_cache_another_restores(tmp_path: Path) -> None:
    few, prompt = SamplingParams(max_tokens=3), "x" * 70
    with engine() as one:
        expected = one.generate(prompt, few)
        assert one.save_cache(tmp_path / "cache", 1 << 20).blocks == 2
    with engine() as other:
        assert other.restore_cache(tmp_path / "cache").blocks == 2
        completion = other.generate(prompt, few)
    assert completion.usage.cached_tokens == 64
    assert completion.token_ids == expected.token_ids
    with pytest.raises(RequestError, match="the engine is closed"):
        other.save_cache(tmp_path / "again", 1 << 20)


def test_the_cache_is_saved_between_two_steps_of_texts_that_go_on(tmp_path: Path) -> None:
    sampling = SamplingParams(max_tokens=200, temperature=1.0, seed=1)
    expected = engine().generate("abc", sampling).token_ids
    one = engine()
    stream = one.stream("abc", sampling)
    saved = [one.save_cache(tmp_path / "cache", 1 << 20).blocks for _ in range(5)]
    assert stream.result().token_ids == expected
    assert saved == sorted(saved)


def test_without_sharing_there_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="load with sharing"):
        engine(policy=Policy(sharing=False)).save_cache(tmp_path / "cache", 1 << 20)


def test_the_real_model_says_the_same_by_every_way(smollm2_path: Path) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    prompts = ["The capital of France is", "Water boils at", "A list of colours: red,"]
    with Engine.load(smollm2_path, context_length=256, sequences=2) as one:
        alone = [one.generate(prompt, sampling) for prompt in prompts]
        together = one.generate(prompts, sampling)
        texts = [""] * len(prompts)
        for index, delta in one.stream(prompts, sampling):
            texts[index] += delta.text
        choices = [stream.result() for stream in one.submit(prompts[0], sampling, n=3)]

        async def awaited() -> list[Completion]:
            return [await one.stream(prompt, sampling) for prompt in prompts]

        from_asyncio = asyncio.run(awaited())
        found: dict[str, tuple[int, ...]] = {}
        in_threads(
            *(
                lambda prompt=prompt: found.update(
                    {prompt: one.generate(prompt, sampling).token_ids}
                )
                for prompt in prompts
            )
        )
        assert one.idle
    ids = [completion.token_ids for completion in alone]
    assert [completion.token_ids for completion in together] == ids
    assert [completion.token_ids for completion in from_asyncio] == ids
    assert [found[prompt] for prompt in prompts] == ids
    assert texts == [completion.text for completion in alone]
    assert choices[0].token_ids == ids[0]
    assert len({choice.token_ids for choice in choices}) == 3
