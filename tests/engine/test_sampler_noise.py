"""The noise: its generator, what it depends on, and that its maxima have the right frequencies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.engine.sampler import gumbel_noise, philox, sample
from sampling_rows import sampling_rows

WORD = st.integers(0, 2**32 - 1)


def assert_as_often(counts: np.ndarray, expected: np.ndarray, fitted: int = 1) -> None:
    """Pearson's chi-square test at a level of 1 in 1,000 (its quantile by Wilson and Hilferty)."""
    freedom = counts.size - fitted
    scale = 2 / (9 * freedom)
    limit = freedom * (1 - scale + 3.09 * np.sqrt(scale)) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < limit


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_words_that_its_authors_published(counter, key, answer):
    counters = np.array(counter, np.uint64)[:, None]
    assert tuple(philox(counters, key)[:, 0].tolist()) == answer


def test_philox_of_many_counters_is_philox_of_each():
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 50), np.uint64)
    many = philox(counters, (1, 2))
    for i in range(50):
        assert np.array_equal(many[:, [i]], philox(counters[:, [i]], (1, 2)))


@given(seed=st.integers(0, 2**64 - 1), choice=WORD, position=WORD, first=st.integers(0, 300_000))
def test_noise_is_philox_of_seed_choice_position_and_token_alone(seed, choice, position, first):
    ids = np.arange(first, first + 9)
    noise = gumbel_noise(seed, choice, position, ids)
    for token, value in zip(ids.tolist(), noise, strict=True):
        counter = np.array([token // 4, position, choice, 0], np.uint64)[:, None]
        word = int(philox(counter, (seed % 2**32, seed // 2**32))[token % 4, 0])
        assert value == np.float32(-np.log(-np.log((2 * word + 1) / 2**33)))
    shuffled = ids[::-2]
    assert np.array_equal(gumbel_noise(seed, choice, position, shuffled), noise[::-2])


def test_noise_changes_with_each_of_its_arguments():
    ids = np.arange(64)
    plain = gumbel_noise(1, 2, 3, ids)
    for other in (
        gumbel_noise(2, 2, 3, ids),
        gumbel_noise(1 + 2**32, 2, 3, ids),
        gumbel_noise(1, 3, 3, ids),
        gumbel_noise(1, 2, 4, ids),
        gumbel_noise(1, 2, 3, ids + 64),
    ):
        assert not np.any(plain == other)
    assert np.array_equal(plain, gumbel_noise(1, 2, 3, ids))


def test_noise_is_gumbel_distributed_far_into_its_right_tail():
    noise = np.concatenate(
        [gumbel_noise(seed, 0, 0, np.arange(1 << 20)) for seed in range(4)]
    ).astype(np.float64)
    # Kolmogorov's test at a level of 1 in 1,000.
    rising = np.exp(-np.exp(-np.sort(noise)))
    assert np.abs(rising - (np.arange(len(noise)) + 0.5) / len(noise)).max() < 1.95 / 2**11
    # The tail: above ln(4 Mi / 64) 64 of them are expected, which leaves the largest few.
    for expected in (64, 1000, 20000):
        exceeding = int((noise > -np.log(-np.log1p(-expected / len(noise)))).sum())
        assert abs(exceeding - expected) < 4 * np.sqrt(expected)


def test_the_extreme_words_give_finite_noise(monkeypatch):
    # u = 2^-33 and u = 1 - 2^-33.
    for word, exact in ((0, -np.log(33 * np.log(2))), (2**32 - 1, 33 * np.log(2))):
        monkeypatch.setattr(
            "farthing.engine.sampler.philox",
            lambda counters, _, word=word: np.full(counters.shape, word, np.uint64),
        )
        assert gumbel_noise(0, 0, 0, np.zeros(1, np.int64))[0] == pytest.approx(exact, rel=1e-7)


PROBABILITIES = np.array([0.31, 0.005, 0.2, 0.15, 0.12, 0.1, 0.06, 0.04, 0.01, 0.005])
LOGITS = np.log(PROBABILITIES).astype(np.float32)
DRAWS = 10_000


def draws(count: int, **fields) -> np.ndarray:
    return sample(np.broadcast_to(LOGITS, (count, 10)), sampling_rows(count, **fields)).tokens


def counts_of(tokens: np.ndarray) -> np.ndarray:
    return np.bincount(tokens, minlength=10)


@pytest.fixture(scope="module", params=["seed", "choice", "position"])
def plain_draws(request):
    """Draws at temperature 1 that differ in one field of their key."""
    return draws(DRAWS, **{request.param: np.arange(DRAWS)})


def test_draws_come_up_as_often_as_their_probability(plain_draws):
    assert_as_often(counts_of(plain_draws), PROBABILITIES * DRAWS)


def test_successive_draws_are_independent(plain_draws):
    pairs = np.zeros((10, 10))
    np.add.at(pairs, (plain_draws[:-1], plain_draws[1:]), 1)
    common = [0, 2, 3, 4, 5, 6]
    pairs = pairs[np.ix_(common, common)]
    expected = np.outer(pairs.sum(axis=1), pairs.sum(axis=0)) / pairs.sum()
    assert_as_often(pairs, expected, fitted=2 * len(common) - 1)


def test_frequencies_approach_the_distribution_as_the_root_of_the_number_of_draws(plain_draws):
    for count in (100, 1_000, 10_000):
        distance = np.abs(counts_of(plain_draws[:count]) / count - PROBABILITIES).sum() / 2
        # The mean of the distance, each count being close to normal.
        expected = np.sqrt(PROBABILITIES * (1 - PROBABILITIES) / count * 2 / np.pi).sum() / 2
        assert expected / 3 < distance < 2 * expected


def test_draws_at_a_temperature_follow_the_tempered_distribution():
    tempered = PROBABILITIES ** (1 / 0.7)
    tempered /= tempered.sum()
    counts = counts_of(draws(DRAWS, seed=np.arange(DRAWS), temperature=0.7))
    assert_as_often(counts, tempered * DRAWS)


def test_filtered_draws_follow_the_renormalised_distribution():
    left = [0, 2, 3, 4]
    counts = counts_of(draws(DRAWS, seed=np.arange(DRAWS), top_k=5, top_p=0.8))
    assert counts.sum() == counts[left].sum()
    assert_as_often(counts[left], PROBABILITIES[left] / PROBABILITIES[left].sum() * DRAWS)


@given(order=st.permutations(range(8)))
def test_a_rows_token_does_not_depend_on_its_neighbours_or_its_place(order):
    logits = np.random.default_rng(1).normal(size=(8, 100)).astype(np.float32)
    fields = {
        "seed": np.arange(8) * 77,
        "choice": np.arange(8) % 3,
        "position": np.arange(8) * 5,
        "temperature": np.linspace(0, 2, 8),
        "top_k": [0, 5, 0, 50, 0, 0, 7, 0],
        "top_p": [1, 1, 0.5, 0.9, 1, 1, 0.8, 1],
    }
    plain = sample(logits, sampling_rows(8, **fields)).tokens
    turned = {name: np.array(values)[list(order)] for name, values in fields.items()}
    assert np.array_equal(
        sample(logits[list(order)], sampling_rows(8, **turned)).tokens, plain[list(order)]
    )
