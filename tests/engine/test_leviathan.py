"""The optional rule keeps the distribution of texts: by enumeration, and by counting draws."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.driving import Guesser
from engine.scripted import engine
from engine.test_draft_model import drafting, nearly
from engine.test_speculate import facts
from farthing.backends.null import NullBackend
from farthing.core import SamplingParams
from farthing.engine import leviathan
from farthing.engine.leviathan import decide
from farthing.engine.rows import FixedRows
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
    counts, taken = draws(decide, 20_000, draft)
    assert chi_square(counts) < 18.4  # two degrees of freedom, p = 1e-4
    variation = np.abs(TARGET - draft).sum() / 2
    assert taken == pytest.approx(1 - variation, abs=0.02)


def test_the_distance_from_the_target_shrinks_with_the_number_of_draws() -> None:
    distances = []
    for count in (20, 640, 20_480):
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


@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 0.0}],
)
def test_probabilities_are_those_that_sampling_follows(filters: dict[str, Any]) -> None:
    sampling = SamplingParams(**{"temperature": 0.8, "seed": 1, **filters})
    logits = np.random.default_rng(2).normal(0, 1.5, 12).astype(np.float32)
    count = 6_000
    rows = FixedRows([(sampling, 1, 0)] * count).at(range(count), [None] * count)
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
    logits = np.full(259, -30.0, np.float32)
    logits[97:101] = np.random.default_rng(int(prefix[-1])).normal(0, 1, 4)
    return logits


def counts_of(speculation: Speculation | None, seeds: int) -> NDArray[Any]:
    """How often each pair of second and third tokens was written."""
    found = np.zeros((4, 4))
    with engine(biased, speculation=speculation) as one:
        streams = [
            one.submit("x>", SamplingParams(max_tokens=4, temperature=1.0, seed=seed))[0]
            for seed in range(seeds)
        ]
        for stream in streams:
            tokens = stream.result().token_ids
            found[tokens[1] - 97, tokens[2] - 97] += 1
    return found


def test_texts_are_distributed_as_without_guesses() -> None:
    plain_counts = counts_of(None, 1_200)
    for speculation in (
        Speculation(Sure(), 3, rule="leviathan", always=True),
        drafting_by_rule(),
    ):
        counts = counts_of(speculation, 1_200)
        likely = plain_counts + counts > 0
        square = ((plain_counts - counts)[likely] ** 2 / (plain_counts + counts)[likely]).sum()
        assert square < 45  # 15 degrees of freedom, p = 1e-4


def drafting_by_rule() -> Speculation:
    from farthing.engine.draft_model import ModelDrafter

    def other(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        return biased(prefix + 1)

    drafter = ModelDrafter(NullBackend(other, 259), keeps_chances=True)
    return Speculation(drafter, 3, costly=drafter, rule="leviathan", always=True)


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
