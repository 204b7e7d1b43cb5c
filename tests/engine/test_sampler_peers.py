"""The filters against transformers' logits processors: the same tokens survive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from farthing.engine.sampler import filtered, sample
from sampling_rows import sampling_rows


@st.composite
def distinct_logits(draw):
    """Up to 200 logits no two of which are equal, so that the peers' ties do not matter."""
    count = draw(st.integers(2, 200))
    spread = draw(st.sampled_from([0.05, 0.5, 3.0, 12.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = (rng.normal(size=count) * spread).astype(np.float32)
    assume(len(np.unique(logits)) == count)
    return logits


def peers_survivors(logits: np.ndarray, *processors) -> set[int]:
    scores = torch.from_numpy(logits)[None].double()
    left = LogitsProcessorList(processors)(torch.zeros((1, 0), dtype=torch.long), scores)
    return set(torch.isfinite(left[0]).nonzero()[:, 0].tolist())


def survivors(logits: np.ndarray, temperature: float, **filters) -> set[int]:
    scaled = (logits - logits.max()) / np.float32(temperature)
    parameters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters}
    return set(filtered(scaled, **parameters).tolist())


temperatures = st.floats(0.125, 5.0, width=32)
top_ks = st.integers(1, 250)
top_ps = st.floats(2**-7, 1 - 2**-7, width=32)
min_ps = st.floats(2**-10, 1.0, width=32)


@given(distinct_logits(), top_ks)
def test_top_k(logits, top_k):
    assert survivors(logits, 1.0, top_k=top_k) == peers_survivors(logits, TopKLogitsWarper(top_k))


@given(distinct_logits(), top_ps)
def test_top_p(logits, top_p):
    assert survivors(logits, 1.0, top_p=top_p) == peers_survivors(logits, TopPLogitsWarper(top_p))


@given(distinct_logits(), min_ps)
def test_min_p(logits, min_p):
    assert survivors(logits, 1.0, min_p=min_p) == peers_survivors(logits, MinPLogitsWarper(min_p))


@given(distinct_logits(), temperatures, top_ks, top_ps, min_ps)
def test_all_of_them_in_their_order(logits, temperature, top_k, top_p, min_p):
    assert survivors(logits, temperature, top_k=top_k, top_p=top_p, min_p=min_p) == peers_survivors(
        logits,
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
        MinPLogitsWarper(min_p),
    )


@given(distinct_logits(), st.floats(0.5, 2.0, width=32), st.data())
def test_repetition_penalty(logits, penalty, data):
    seen = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=20))
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    penalised = processor(torch.tensor([seen]), torch.from_numpy(logits)[None].clone())[0].numpy()
    rows = sampling_rows(
        1,
        temperature=0.0,
        repetition_penalty=penalty,
        adjusted=[[(token, 0.0, 1, 0) for token in sorted(set(seen))]],
    )
    assert sample(logits[None], rows).tokens.tolist() == [int(penalised.argmax())]


@pytest.mark.parametrize("draws", [2_000])
def test_draws_are_as_frequent_as_the_peers_probabilities(draws):
    logits = np.array([1.0, 0.2, -0.5, 2.0, 1.5, -3.0], np.float32)
    processors = LogitsProcessorList(
        [TemperatureLogitsWarper(0.8), TopKLogitsWarper(5), TopPLogitsWarper(0.9)]
    )
    left = processors(torch.zeros((1, 0), dtype=torch.long), torch.from_numpy(logits)[None])
    probabilities = torch.softmax(left, dim=-1)[0].numpy()
    rows = sampling_rows(draws, seed=np.arange(draws), temperature=0.8, top_k=5, top_p=0.9)
    tokens = sample(np.tile(logits, (draws, 1)), rows).tokens
    frequencies = np.bincount(tokens, minlength=6) / draws
    deviation = np.sqrt(probabilities * (1 - probabilities) / draws)
    assert np.all(np.abs(frequencies - probabilities) <= 4 * deviation)
