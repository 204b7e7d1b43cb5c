"""The optional rule keeps the distribution of texts: by enumeration, and by counting draws."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.driving import Guesser
from engine.scripted import engine
from engine.test_draft_model import drafting, nearly
from engine.test_speculate import facts
from farthing.backends.null import NullBackend
from farthing.core import Constraint, SamplingParams
from farthing.engine import leviathan
from farthing.engine.leviathan import decide
from farthing.engine.rows import Adjustments, FixedRows
from farthing.engine.sampler import probabilities, sample
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from farthing.engine.sequence import Sequence

    Chances = NDArray[np.float64]

SIZE, GUESSES = 3, 2


def chances(prefix: tuple[int, ...], salt: int) -> Chances:
    """A distribution over the toy vocabulary that depends on every token before."""
    random = np.random.default_rng([salt, *(1 + token for token in prefix)])
    return random.dirichlet(np.ones(SIZE))


def outcome(target: Chances, draft: Chances, guess: int) -> tuple[float, Chances]:
    """With which probability a guess is taken, and what is drawn where it is not."""
    taken = min(1.0, target[guess] / draft[guess])
    rest = np.maximum(target - draft, 0)
    return taken, rest / rest.sum() if rest.sum() else rest


def careless(target: Chances, draft: Chances, guess: int) -> tuple[float, Chances]:
    """A wrong rule: where a guess is not taken, it draws from the target as if there were none."""
    return min(1.0, target[guess] / draft[guess]), target


def joint(rule: Callable[..., tuple[float, Chances]]) -> dict[tuple[int, ...], float]:
    """The distribution of the next three tokens where two are guessed, by enumeration.

    What comes behind the tokens that a pass gives is drawn from the target.
    """
    found = dict.fromkeys(product(range(SIZE), repeat=GUESSES + 1), 0.0)

    def go_on(text: tuple[int, ...], chance: float) -> None:
        if len(text) == GUESSES + 1:
            found[text] += chance
            return
        for token, one in enumerate(chances(text, 0)):
            go_on((*text, token), chance * one)

    for guesses in product(range(SIZE), repeat=GUESSES):
        chance = float(np.prod([chances(guesses[:k], 1)[guesses[k]] for k in range(GUESSES)]))
        for place in range(GUESSES):
            text = guesses[:place]
            taken, rest = rule(chances(text, 0), chances(text, 1), guesses[place])
            for token, one in enumerate(rest):
                go_on((*text, token), chance * (1 - taken) * one)
            chance *= taken
        go_on(guesses, chance)
    return found


def plain() -> dict[tuple[int, ...], float]:
    return {
        text: float(np.prod([chances(text[:k], 0)[text[k]] for k in range(GUESSES + 1)]))
        for text in product(range(SIZE), repeat=GUESSES + 1)
    }


def test_the_joint_distribution_is_the_targets_and_a_wrong_rules_is_not() -> None:
    assert joint(outcome) == pytest.approx(plain(), abs=1e-12)
    assert joint(careless) != pytest.approx(plain(), abs=1e-3)


TARGET = np.array([0.5, 0.2, 0.0, 0.3])
DRAFT = np.array([0.1, 0.6, 0.2, 0.1])


def draws(
    rule: Callable[..., int], count: int, draft: Chances, seed: int = 5
) -> tuple[NDArray[Any], float]:
    """How often each token comes out, and the share of guesses that are taken."""
    random = np.random.default_rng(seed)
    guesses = random.choice(4, count, p=draft)
    tokens = np.array([rule(TARGET, draft, int(g), 7, 0, at) for at, g in enumerate(guesses)])
    return np.bincount(tokens, minlength=4), float((tokens == guesses).mean())


def chi_square(counts: NDArray[Any]) -> float:
    expected = TARGET * counts.sum()
    assert counts[expected == 0].sum() == 0
    likely = expected > 0
    return float(((counts - expected)[likely] ** 2 / expected[likely]).sum())


ONE_HOT = np.array([0.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("draft", [DRAFT, ONE_HOT])
def test_draws_are_the_targets_and_guesses_are_taken_as_often_as_can_be(draft: Chances) -> None:
    counts, taken = draws(decide, 8_000, draft)
    assert chi_square(counts) < 18.4  # two degrees of freedom, p = 1e-4
    variation = np.abs(TARGET - draft).sum() / 2
    assert taken == pytest.approx(1 - variation, abs=0.02)


def test_the_distance_from_the_target_shrinks_with_the_number_of_draws() -> None:
    distances = []
    for count in (20, 400, 8_000):
        counts, _ = draws(decide, count, DRAFT, seed=1)
        distances.append(np.abs(counts / count - TARGET).sum() / 2)
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.015


def test_a_wrong_rule_is_noticed_by_the_same_tests() -> None:
    def greedy_acceptance(
        target: Chances, draft: Chances, guess: int, seed: int, choice: int, position: int
    ) -> int:
        """Takes whatever the target could say."""
        if target[guess] > 0:
            return guess
        return decide(target, draft, guess, seed, choice, position)

    counts, _ = draws(greedy_acceptance, 20_000, DRAFT)
    assert chi_square(counts) > 1_000
    assert np.abs(counts / counts.sum() - TARGET).sum() / 2 > 0.1


def test_draws_with_shared_noise_agree_within_their_bound() -> None:
    """The exact rule's acceptance, beside the other's, which is 1 - TV."""
    sampling = SamplingParams(temperature=1.0, seed=3)
    count = 4_000
    rows = FixedRows([(sampling, 3, 0)] * count).at(range(count), [None] * count)
    tokens = []
    for each in (TARGET, DRAFT):
        with np.errstate(divide="ignore"):
            logits = np.tile(np.log(each), (count, 1)).astype(np.float32)
        tokens.append(sample(logits, rows).tokens)
    agreed = float((tokens[0] == tokens[1]).mean())
    variation = np.abs(TARGET - DRAFT).sum() / 2
    assert (1 - variation) / (1 + variation) - 0.02 <= agreed <= 1 - variation + 0.02


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.0},
        {"repetition_penalty": 1.8, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"logit_bias": {3: 2.0, 5: -100.0}, "top_p": 0.9},
    ],
)
def test_probabilities_are_those_that_sampling_follows(
    filters: dict[str, Any], masked: bool
) -> None:
    sampling = SamplingParams(**{"temperature": 0.8, "seed": 1, **filters})
    logits = np.random.default_rng(2).normal(0, 1.5, 12).astype(np.float32)
    count = 6_000
    changes = Adjustments(sampling, (1, 3), frozenset())
    for token in (3, 7, 3):
        changes.add_output(token)
    mask = np.array([0b1010_1111_1011], np.uint32) if masked else None
    rows = FixedRows([(sampling, 1, 0)] * count).at(
        range(count), [changes.view()] * count, [mask] * count
    )
    found = np.bincount(sample(np.tile(logits, (count, 1)), rows).tokens, minlength=12) / count
    expected = probabilities(logits, rows, 0)
    assert expected.sum() == pytest.approx(1)
    assert np.abs(found - expected).max() < 0.025
    assert not found[expected == 0].any()


# --- in the engine


class Sure(Guesser):
    def guess(self, sequence: Sequence, most: int) -> list[int]:
        return [97] * most


def biased(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    """Four likely tokens, by the last one."""
    return biased_after(int(prefix[-1]))


@cache
def biased_after(token: int) -> NDArray[np.float32]:
    logits = np.full(259, -30.0, np.float32)
    logits[97:101] = np.random.default_rng(token).normal(0, 1, 4)
    return logits


def counts_of(speculation: Speculation | None, **sampling: Any) -> NDArray[Any]:
    """How often each likely token followed each.

    Few texts at a time, and long ones: nothing is guessed while a prompt is read, or where a step
    has no room.
    """
    found = np.zeros((4, 4))
    with engine(biased, speculation=speculation) as one:
        for first in range(0, 32, 8):
            streams = [
                one.submit(
                    "x>", SamplingParams(max_tokens=60, temperature=1.0, seed=seed, **sampling)
                )[0]
                for seed in range(first, first + 8)
            ]
            for stream in streams:
                tokens = np.array(stream.result().token_ids) - 97
                np.add.at(found, (tokens[:-1], tokens[1:]), 1)
        counts = one.stats().counters.drafts
    assert speculation is None or counts.drafts > 300
    return found


@cache
def counts_without_guesses() -> NDArray[Any]:
    return counts_of(None)


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Chi-square of two samples, each row of the counts by itself: 12 degrees of freedom, so below
    40 but once in 10,000 times.
    """
    total = 0.0
    for ours, theirs in zip(one, other, strict=True):
        both = ours + theirs
        likely = both > 0
        expected = both[likely] * (ours.sum() / both.sum())
        rest = both[likely] - expected
        total += float(((ours[likely] - expected) ** 2 * (1 / expected + 1 / rest)).sum())
    return total


CONDITIONS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "with penalties": {"repetition_penalty": 1.6, "presence_penalty": 0.4},
    "in a form": {"constraint": Constraint("regex", "([abc][acd][abd]){20}")},
    "filtered": {"top_k": 3, "logit_bias": {98: 1.0}},
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_texts_are_distributed_as_without_guesses(condition: str) -> None:
    sampling = CONDITIONS[condition]
    plain_counts = counts_of(None, **sampling) if sampling else counts_without_guesses()
    for speculation in (
        Speculation(Sure(), 3, rule="leviathan", always=True),
        drafting_by_rule(),
    ):
        assert distance(plain_counts, counts_of(speculation, **sampling)) < 40


def test_the_token_behind_guesses_that_were_all_taken_is_distributed_as_ever() -> None:
    """One guess a step, always the target's own: every other token is no guess."""
    plain_counts = counts_without_guesses()
    speculation = drafting_by_rule(biased, longest=1)
    assert distance(plain_counts, counts_of(speculation)) < 40
    assert speculation.usual.rate(0) > 0.95  # all were taken


def test_texts_by_a_wrong_rule_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def credulous(
        target: Chances, draft: Chances, guess: int, seed: int, choice: int, position: int
    ) -> int:
        return guess if target[guess] > 0 else decide(target, draft, guess, seed, choice, position)

    plain_counts = counts_without_guesses()
    monkeypatch.setattr(leviathan, "decide", credulous)
    for speculation in (
        Speculation(Sure(), 3, rule="leviathan", always=True),
        drafting_by_rule(),
    ):
        assert distance(plain_counts, counts_of(speculation)) > 200


def test_by_the_rule_log_probabilities_are_those_of_the_tokens_that_were_taken() -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=3, logprobs=2)
    with engine(biased, speculation=drafting_by_rule()) as one:
        made = one.generate("x>", sampling)
        assert one.stats().counters.drafts.accepted > 3
        prompt = one.tokenizer.encode("x>")
    with engine(biased) as plain_engine:
        scores = plain_engine.score([*prompt, *made.token_ids])[len(prompt) :]
    assert made.logprobs is not None
    assert [each.token_id for each in made.logprobs] == list(made.token_ids)
    for told, score in zip(made.logprobs, scores, strict=True):
        assert score is not None
        assert told.logprob == pytest.approx(score.logprob, abs=1e-5)


def test_by_the_rule_a_text_keeps_its_form_its_stop_strings_and_its_length() -> None:
    form = Constraint("regex", "(ab|ba|c[0-9]{2}){6,9}")
    for seed in range(8):
        with engine(speculation=drafting(NullBackend(nearly, 259), rule="leviathan")) as one:
            made = one.generate(
                "x>", SamplingParams(max_tokens=60, temperature=1.3, seed=seed, constraint=form)
            )
            assert re.fullmatch(form.source, made.text)
            stopped = one.generate(
                "y>", SamplingParams(max_tokens=30, temperature=1.0, seed=seed, stop=("b", "cd"))
            )
            assert "b" not in stopped.text
            assert len(stopped.token_ids) <= 30
            assert one.idle


def drafting_by_rule(script: Any = None, longest: int = 3) -> Speculation:
    from farthing.engine.draft_model import ModelDrafter

    def other(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        return biased(prefix + 1)

    drafter = ModelDrafter(NullBackend(script or other, 259), keeps_chances=True)
    return Speculation(drafter, longest, costly=drafter, rule="leviathan", always=True)


def test_greedy_texts_are_the_same_by_either_rule() -> None:
    sampling = SamplingParams(max_tokens=30, repetition_penalty=1.2, logprobs=2)
    with engine() as plain_engine:
        expected = plain_engine.generate(["a>", "b>"], sampling)
    speculation = drafting(NullBackend(nearly, 259), rule="leviathan")
    with engine(speculation=speculation) as one:
        found = one.generate(["a>", "b>"], sampling)
    assert [facts(made) for made in found] == [facts(made) for made in expected]


def test_the_noise_of_the_rule_is_not_the_samplers() -> None:
    assert len({0, leviathan._ACCEPTANCE, leviathan._RESIDUAL}) == 3
