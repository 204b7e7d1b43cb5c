"""What guessing tokens ahead gains on texts: each written with guesses and without, in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, CheckFailedError, ContextLengthError
from farthing.engine.prompts import encode
from farthing.lab.speculation_prompts import own_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from farthing.core import SamplingParams
    from farthing.engine.engine import Engine

TOKENS = 96
"""Of each text."""


@dataclass(frozen=True)
class Prompted:
    """A prompt in token ids, how it is continued, and what kind of text that gives."""

    text: str
    prompt: list[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class GuessedText:
    """A text that was written in every round with guesses and without.

    `plain` and `guessing` are tokens a second from the first one on, medians over the rounds;
    `gain` is the median of the second over the first within a round, `gain_range` the least and the
    most. Of `drafted` tokens that were guessed in all rounds, `accepted` were right.
    """

    text: str
    plain: float
    guessing: float
    gain: float
    gain_range: tuple[float, float]
    drafted: int
    accepted: int


def prompts_within(engine: Engine, context: int) -> list[Prompted]:
    """The laboratory's texts, of those that a context can hold. `engine` encodes them.

    Raises `ContextLengthError` where it holds none.
    """
    found = []
    for task in own_tasks(engine.chat_template, TOKENS):
        try:
            ids = encode(task.prompt, engine.tokenizer, engine.chat_template, context)
        except ContextLengthError:
            continue
        if len(ids) + TOKENS <= context:
            found.append(Prompted(task.group, ids, task.sampling))
    if not found:
        raise ContextLengthError(
            f"the model's context of {context:,} tokens holds no text that guesses are measured "
            "on: leave --speculate out"
        )
    return found


def room_for(prompts: Sequence[Prompted]) -> tuple[int, int]:
    """Context and cache, in tokens, of an engine that writes one text at a time. It has blocks to
    spare for guesses, which take none that a text may need soon.
    """
    context = TOKENS + max(len(each.prompt) for each in prompts)
    return context, 2 * (context + BLOCK_TOKENS)


def bench_guesses(
    engine: Engine, prompts: Sequence[Prompted], repeats: int, progress: Callable[[str], None]
) -> list[GuessedText]:
    """Continues every prompt with guesses, as `engine` makes them, and without, in each round.

    Raises `CheckFailedError` where a text differs.
    """
    speeds: dict[str, list[tuple[float, float]]] = {each.text: [] for each in prompts}
    guessed = dict.fromkeys(speeds, (0, 0))
    # In the first round, which does not count, the engine learns what steps and guesses cost.
    for number in range(repeats + 1):
        progress(f"guesses, round {number} of {repeats}")
        for each in prompts:
            made = {}
            for guesses in (False, True) if number % 2 else (True, False):
                most = None if guesses else 0
                sampling = replace(each.sampling, max_draft_tokens=most)
                made[guesses] = engine.generate(each.prompt, sampling)
            plain, guessing = made[False], made[True]
            if plain.token_ids != guessing.token_ids:
                raise CheckFailedError(
                    f"the text for {each.text} differs with guesses: this is a fault of farthing, "
                    "please report it with the model and the command"
                )
            if number:
                speeds[each.text].append(
                    (
                        (TOKENS - 1) / plain.timing.decode_seconds,
                        (TOKENS - 1) / guessing.timing.decode_seconds,
                    )
                )
                drafted, accepted = guessed[each.text]
                guessed[each.text] = (
                    drafted + guessing.usage.drafted_tokens,
                    accepted + guessing.usage.accepted_tokens,
                )
    return [_summed(text, found, *guessed[text]) for text, found in speeds.items()]


def _summed(
    text: str, speeds: Sequence[tuple[float, float]], drafted: int, accepted: int
) -> GuessedText:
    gains = [guessing / plain for plain, guessing in speeds]
    plain, guessing = (median(each) for each in zip(*speeds, strict=True))
    return GuessedText(
        text, plain, guessing, median(gains), (min(gains), max(gains)), drafted, accepted
    )
