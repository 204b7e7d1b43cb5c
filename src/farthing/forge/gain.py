"""What a draft is worth beside its teacher: how often its guesses are right, what time they save.

Texts are compared bit for bit on the way: speculation may change none.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.backends.native import NativeBackend
from farthing.core import BLOCK_TOKENS, CheckFailedError, SamplingParams
from farthing.engine.draft_model import ModelDrafter
from farthing.engine.engine import Engine
from farthing.engine.limits import Policy
from farthing.engine.speculate import Speculation
from farthing.plan.memory import DRAFT_ROWS, plan_memory, require_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from farthing.models.load import Model
    from farthing.text.tokenizer import Tokenizer

PLACES = 5
"""Guesses in a row whose acceptance is measured."""

LEAST_SHARE = 0.05
"""Of tokens that come from guesses: with fewer, a draft counts as left alone."""

_TEMPERATURE = 0.8
_TOKENS = 128
_ROUNDS = 3


@dataclass(frozen=True)
class Gain:
    """What was measured with one text at a time.

    `greedy` and `sampled` are the shares of guesses that were right at each place of a draft, given
    those before it were, greedily and at temperature 0.8; shorter where a place was never tested.
    `speed_up` is the median over rounds of tokens a second with guesses where they pay over those
    without, `low` and `high` the least and the greatest. `guessed_share` of the tokens were
    guessed. `used` says whether that is more than now and then: else the draft does not pay here.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    speed_up: float
    low: float
    high: float
    guessed_share: float
    used: bool
    threads: int
    tokens: int


def measure_gain(
    teacher: Model,
    draft: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[int, ...]],
    threads: int,
    told: Callable[[float], None],
    *,
    tokens: int = _TOKENS,
    rounds: int = _ROUNDS,
) -> Gain:
    """Continues each prompt with and without guesses, in turn, `rounds` times.

    `told` is given the share that is done. Raises `CheckFailedError` where a text differs, and
    `DoesNotFitError` where there is no room for both models twice.
    """
    longest = max(map(len, prompts)) + tokens
    context = min(longest, teacher.config.context_length, draft.config.context_length)
    make = _Maker(teacher, draft, tokenizer, context, threads)
    tokens = min(tokens, context - max(map(len, prompts)))
    greedy = SamplingParams(max_tokens=tokens, ignore_eos=True)
    sampled = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=_TEMPERATURE, seed=7)
    by_place = []
    for number, sampling in enumerate((greedy, sampled)):
        with make.engine(always=True) as engine:
            for prompt in prompts:
                engine.generate(prompt, sampling)
            counts = engine.stats().counters.drafts
        shares = zip(counts.right[:PLACES], counts.tested[:PLACES], strict=True)
        by_place.append(tuple(right / tested for right, tested in shares if tested))
        told((number + 1) / (2 + rounds))
    ratios: list[float] = []
    with make.engine(guesses=False) as plain, make.engine() as auto:
        # The costs of a step and of a guess are learnt on the way, as in a server that has run.
        for engine in (plain, auto):
            engine.generate(prompts[0], greedy)
        made = 0
        for number in range(rounds):
            seconds = [0.0, 0.0]
            for prompt in prompts:
                for sampling in (greedy, sampled):
                    engines = [plain, auto] if number % 2 == 0 else [auto, plain]
                    texts = []
                    for engine in engines:
                        started = perf_counter()
                        texts.append(engine.generate(prompt, sampling).token_ids)
                        seconds[engine is auto] += perf_counter() - started
                    if texts[0] != texts[1]:
                        raise CheckFailedError(
                            "a text with guesses differs from the one without: this is a fault of "
                            "farthing, please report it with the teacher and the command"
                        )
                    made += len(texts[0])
            ratios.append(seconds[0] / seconds[1])
            told((3 + number) / (2 + rounds))
        accepted = auto.stats().counters.drafts.accepted
    guessed = accepted / (made + tokens)
    return Gain(
        by_place[0],
        by_place[1],
        median(ratios),
        min(ratios),
        max(ratios),
        guessed,
        guessed >= LEAST_SHARE,
        threads,
        made,
    )


class _Maker:
    """Makes engines for one text at a time over the teacher, with or without the draft."""

    def __init__(
        self, teacher: Model, draft: Model, tokenizer: Tokenizer, context: int, threads: int
    ) -> None:
        self._teacher, self._draft, self._tokenizer = teacher, draft, tokenizer
        self._plan = plan_memory(
            teacher,
            context_length=context,
            # Guesses take no block that a text may need soon: there must be some to spare.
            cache_tokens=2 * context + 2 * BLOCK_TOKENS,
            slots=1,
            threads=threads,
            draft_rows=DRAFT_ROWS,
            draft=draft,
        )

    def engine(self, *, guesses: bool = True, always: bool = False) -> Engine:
        """One that makes no guesses, those that pay, or all that it can."""
        require_room(self._plan)
        speculation = None
        if guesses and self._plan.draft is not None:
            drafter = ModelDrafter(NativeBackend(self._draft, self._plan.draft))
            longest = PLACES if always else 8
            speculation = Speculation(drafter, longest, costly=drafter, always=always)
        return Engine(
            NativeBackend(self._teacher, self._plan),
            self._tokenizer,
            policy=Policy(latency_target=None, slots=1),
            speculation=speculation,
        )
