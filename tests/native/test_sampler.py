"""The native sampler against the definition: the same tokens in every tier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farthing import _native
from farthing.core import SamplingParams
from farthing.engine.rows import Adjustments, FixedRows
from farthing.engine.sampler import sample
from sampling_rows import native_sample, sampling_rows

kernels = _native.kernels
TIERS = _native.available_tiers()

tiers = pytest.mark.parametrize("tier", TIERS)
INF = np.inf


def assert_same(logits: np.ndarray, rows) -> None:
    """Every tier chooses what the definition does; log-probabilities differ by rounding alone."""
    wanted = sample(logits, rows)
    first = None
    for tier in TIERS:
        got = native_sample(kernels, tier, logits, rows)
        assert got.tokens.tolist() == wanted.tokens.tolist()
        assert got.top_ids.tolist() == wanted.top_ids.tolist()
        for ours, theirs in (
            (got.logprob, wanted.logprob),
            (got.top_logprobs, wanted.top_logprobs),
        ):
            assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
            assert np.array_equal(np.isnan(ours), np.isnan(theirs))
            finite = np.isfinite(ours)
            # One rounding to float32, and float64's own near a sum of 1, whose logarithm is tiny.
            error = np.abs(ours[finite].astype(np.float64) - theirs[finite])
            assert np.all(error <= np.spacing(np.abs(theirs[finite])) + 1e-14)
        first = first or got
        assert first.logprob.tobytes() == got.logprob.tobytes()
        assert first.top_logprobs.tobytes() == got.top_logprobs.tobytes()


@st.composite
def rows_of_logits(draw):
    """1 to 4 rows: smooth, full of ties, with NaN, -inf and infinite logits, of every length."""
    count = draw(st.integers(1, 4))
    vocabulary = draw(st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 1023, 1500, 4099])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.01, 1.0, 5.0, 30.0, 1e4]))
    logits = rng.normal(size=(count, vocabulary)) * spread
    step = draw(st.sampled_from([0.0, 0.5, 3.0]))
    if step:
        logits = np.round(logits / step) * step
    for special in draw(st.sets(st.sampled_from([np.nan, -INF, 3e38, -3e38, 0.0]))):
        share = draw(st.sampled_from([0.01, 0.3, 0.9]))
        logits[rng.random(logits.shape) < share] = special
    if draw(st.integers(0, 9)) == 0:
        logits[rng.random(logits.shape) < 0.05] = INF
    return logits.astype(np.float32)


def each(strategy, count):
    return st.lists(strategy, min_size=count, max_size=count)


@st.composite
def requests(draw, logits):
    """Rows with any parameters that SamplingParams admits, and masks of every density."""
    count, vocabulary = logits.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = st.sampled_from([None, 0.0, 0.01, 0.5, 0.99, 1.0])
    allowed = [
        None if share is None else rng.random(vocabulary) < share
        for share in draw(each(density, count))
    ]
    return sampling_rows(
        count,
        allowed=allowed,
        temperature=draw(
            each(st.sampled_from([0.0, 1e-44, 1e-3, 0.3, 0.7, 1.0, 1.5, 100.0]), count)
        ),
        top_k=draw(
            each(
                st.one_of(
                    st.sampled_from([0, 1, 2, 40, vocabulary, 2**31 - 1]),
                    st.integers(1, vocabulary),
                ),
                count,
            )
        ),
        top_p=draw(
            each(
                st.one_of(
                    st.sampled_from([1.0, 1e-9, 0.5, 0.9, 0.95, float(np.float32(1 - 2**-24))]),
                    st.floats(2**-10, 1.0, width=32),
                ),
                count,
            )
        ),
        min_p=draw(
            each(
                st.one_of(st.sampled_from([0.0, 1e-45, 0.05, 1.0]), st.floats(0, 1, width=32)),
                count,
            )
        ),
        repetition_penalty=draw(each(st.sampled_from([1.0, 0.5, 1.1, 100.0]), count)),
        presence_penalty=draw(each(st.sampled_from([0.0, -2.0, 0.3]), count)),
        frequency_penalty=draw(each(st.sampled_from([0.0, -0.7, 2.0]), count)),
        seed=draw(each(st.integers(0, 2**64 - 1), count)),
        choice=draw(each(st.integers(0, 2**32 - 1), count)),
        position=draw(each(st.integers(0, 2**32 - 1), count)),
        logprobs=draw(each(st.sampled_from([-1, 0, 1, 5, 20]), count)),
        adjusted=draw(
            each(
                st.lists(
                    st.tuples(
                        st.integers(0, vocabulary - 1),
                        st.sampled_from([0.0, -100.0, 2.5, -INF, INF, 0.1]),
                        st.integers(0, 1),
                        st.integers(0, 5),
                    ),
                    max_size=8,
                    unique_by=lambda entry: entry[0],
                ),
                count,
            )
        ),
    )


@settings(max_examples=300)
@given(st.data())
def test_every_tier_chooses_what_the_definition_does(data):
    logits = data.draw(rows_of_logits())
    assert_same(logits, data.draw(requests(logits)))


@pytest.mark.parametrize("spread", [0.5, 2.0, 4.0])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.0, "logprobs": 20},
        {"top_k": 40},
        {"top_k": 3000},
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8, "logprobs": 5},
    ],
    ids=str,
)
def test_a_vocabulary_of_262144_is_sampled_as_the_definition_says(spread, fields):
    logits = np.random.default_rng(0).normal(size=(2, 262_144)) * spread
    assert_same(logits.astype(np.float32), sampling_rows(2, seed=[3, 2**63], **fields))


def test_bias_and_penalties_are_the_definitions():
    # Two tokens, the second adjusted and often close: the greedy choice tells which is larger.
    rng = np.random.default_rng(5)
    count = 2_000
    adjusted = [
        [(1, bias, seen, times)]
        for bias, seen, times in zip(
            rng.choice([0.0, 0.5, -0.5], count).tolist(),
            rng.integers(0, 2, count).tolist(),
            rng.integers(0, 3, count).tolist(),
            strict=True,
        )
    ]
    rows = sampling_rows(
        count,
        adjusted,
        temperature=0.0,
        repetition_penalty=rng.choice([0.7, 1.0, 1.4], count),
        presence_penalty=rng.choice([-0.4, 0.0, 0.4], count),
        frequency_penalty=rng.choice([-0.3, 0.0, 0.3], count),
    )
    assert_same(rng.normal(size=(count, 2)).astype(np.float32), rows)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 64, 95, 4099, 49_152])
def test_a_masked_token_is_never_chosen_and_log_probabilities_do_not_know_of_masks(
    temperature, vocabulary
):
    rng = np.random.default_rng(vocabulary)
    draws = 40
    logits = np.tile((rng.normal(size=vocabulary) * 4).astype(np.float32), (draws, 1))
    allowed = [rng.random(vocabulary) < share for share in (0.0, 0.002, 0.3, 1.0)] * (draws // 4)
    allowed[1][vocabulary - 1] = True
    fields = {"temperature": temperature, "seed": np.arange(draws), "logprobs": 3}
    free = sampling_rows(draws, **fields)
    for tier in TIERS:
        masked = native_sample(
            kernels, tier, logits, sampling_rows(draws, allowed=allowed, **fields)
        )
        for mask, token in zip(allowed, masked.tokens, strict=True):
            assert mask[token] if mask.any() else token == -1
        without = native_sample(kernels, tier, logits, free)
        assert masked.top_logprobs.tobytes() == without.top_logprobs.tobytes()
        chosen = masked.tokens >= 0
        listed = masked.top_ids == masked.tokens[:, None]
        rows, places = np.nonzero(listed & chosen[:, None])
        assert np.array_equal(masked.logprob[rows], masked.top_logprobs[rows, places])
        assert np.isneginf(masked.logprob[~chosen]).all()


def test_a_bias_cannot_lift_a_mask_and_a_mask_that_allows_all_changes_nothing():
    logits = np.random.default_rng(8).normal(size=(60, 70)).astype(np.float32)
    fields = {"temperature": [0.0, 1.0] * 30, "seed": np.arange(60), "top_k": 30}
    odd = np.arange(70) % 2 == 1
    lifted = [[(token, 50.0, 1, 2) for token in range(0, 70, 2)]] * 60
    for tier in TIERS:
        rows = sampling_rows(60, lifted, allowed=[odd] * 60, repetition_penalty=1.3, **fields)
        assert odd[native_sample(kernels, tier, logits, rows).tokens].all()
        everything = sampling_rows(60, allowed=[np.ones(70, bool), None] * 30, **fields)
        same = native_sample(kernels, tier, logits, everything)
        assert np.array_equal(
            same.tokens, native_sample(kernels, tier, logits, sampling_rows(60, **fields)).tokens
        )


def test_bits_past_the_vocabulary_allow_nothing():
    rows = sampling_rows(20, allowed=[np.zeros(35, bool)] * 20, seed=np.arange(20))
    rows.masks[:, 1] |= np.uint32(0xFFFFFFF8)
    for tier in TIERS:
        tokens = native_sample(kernels, tier, np.zeros((20, 35), np.float32), rows).tokens
        assert set(tokens.tolist()) == {-1}


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("step", [0.02, 0.031, 0.1])
def test_the_last_tokens_of_a_nucleus_are_drawn_too(top_p, step):
    # So many draws that each token that is left comes up.
    logits = np.tile(np.arange(60) * np.float32(step), (300, 1))
    assert_same(logits, sampling_rows(300, seed=np.arange(300), top_p=top_p))


def test_many_draws_are_as_frequent_as_their_probability_says():
    # So many draws that a bias of 1 % in any token would show; the tiers' first ones are the same.
    probabilities = np.array([0.31, 0.005, 0.2, 0.15, 0.12, 0.1, 0.06, 0.04, 0.01, 0.005])
    draws, first = 200_000, 10_000
    seeds = np.arange(draws) + 10**6
    logits = np.tile(np.log(probabilities).astype(np.float32), (draws, 1))
    tokens = native_sample(kernels, TIERS[-1], logits, sampling_rows(draws, seed=seeds)).tokens
    expected = probabilities * draws
    counts = np.bincount(tokens, minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9, 1 in 1,000
    rows = sampling_rows(first, seed=seeds[:first])
    for tier in TIERS[:-1]:
        same = native_sample(kernels, tier, logits[:first], rows).tokens
        assert np.array_equal(same, tokens[:first])


@tiers
def test_draws_from_a_wide_flat_distribution_are_uniform_over_its_ids(tier):
    draws, vocabulary = 2_000, 16_384
    rows = sampling_rows(draws, seed=np.arange(draws))
    logits = np.broadcast_to(np.zeros(vocabulary, np.float32), (draws, vocabulary))
    tokens = native_sample(kernels, tier, np.ascontiguousarray(logits), rows).tokens
    for parts in (4, 10):  # residues, which a fault in the counter's words would show in; deciles
        for place in (tokens % parts, tokens * parts // vocabulary):
            counts = np.bincount(place, minlength=parts)
            assert ((counts - draws / parts) ** 2).sum() / (draws / parts) < 30
    assert len(np.unique(tokens)) > 0.91 * draws


@tiers
def test_a_rows_result_does_not_depend_on_the_rows_sampled_before_it(tier):
    # They share a scratch, which each row leaves full of its own numbers.
    rng = np.random.default_rng(3)
    logits = (rng.normal(size=(6, 5000)) * 3).astype(np.float32)
    fields = {
        "temperature": [1.0, 0.0, 0.5, 1.0, 1.0, 2.0],
        "top_k": [0, 0, 30, 0, 4000, 0],
        "top_p": [0.9, 1.0, 1.0, 1.0, 0.99, 0.999],
        "seed": np.arange(6),
        "logprobs": 4,
    }
    together = native_sample(kernels, tier, logits, sampling_rows(6, **fields))
    for row in range(6):
        alone = {n: v if np.isscalar(v) else v[row : row + 1] for n, v in fields.items()}
        result = native_sample(kernels, tier, logits[row : row + 1], sampling_rows(1, **alone))
        for name in ("tokens", "logprob", "top_ids", "top_logprobs"):
            assert np.array_equal(getattr(result, name)[0], getattr(together, name)[row])


@tiers
def test_sampling_leaves_the_logits_as_they_were(tier):
    logits = np.random.default_rng(4).normal(size=(2, 300)).astype(np.float32)
    before = logits.copy()
    adjusted = [[(5, 100.0, 1, 3)], [(0, -100.0, 0, 0)]]
    native_sample(kernels, tier, logits, sampling_rows(2, top_k=7, adjusted=adjusted))
    assert np.array_equal(logits, before)


class TestMalformedRows:
    def refused(self, match, logits=None, width=2, **fields):
        logits = np.zeros((1, 8), np.float32) if logits is None else logits
        count = len(logits)
        rows = sampling_rows(count, **fields)
        outputs = (
            np.zeros(count, np.int32),
            np.zeros(count, np.float32),
            np.zeros((count, width), np.int32),
            np.zeros((count, width), np.float32),
        )
        with pytest.raises(ValueError, match=match):
            kernels.sample(TIERS[0], logits, rows, *outputs)

    @pytest.mark.parametrize("token", [-1, 8, 2**31 - 1])
    def test_an_adjusted_id_outside_the_vocabulary(self, token):
        self.refused("outside the vocabulary", adjusted=[[(token, 1.0, 0, 0)]])

    @pytest.mark.parametrize("starts", [[0, 2], [1, 1], [0, 0], [0, -1]])
    def test_spans_that_do_not_divide_the_adjusted_ids(self, starts):
        rows = sampling_rows(1, adjusted=[[(1, 1.0, 0, 0)]])
        rows.adjusted_starts[:] = starts
        with pytest.raises(ValueError, match="adjusted_starts"):
            native_sample(kernels, TIERS[0], np.zeros((1, 8), np.float32), rows)

    def test_spans_that_fall(self):
        rows = sampling_rows(2, adjusted=[[(1, 1.0, 0, 0)], []])
        rows.adjusted_starts[:] = [0, 2, 1]
        with pytest.raises(ValueError, match="must not fall"):
            native_sample(kernels, TIERS[0], np.zeros((2, 8), np.float32), rows)

    @pytest.mark.parametrize("index", [-2, 1, 2**31 - 1])
    def test_a_mask_that_is_not_there(self, index):
        rows = sampling_rows(1, allowed=[np.ones(8, bool)])
        rows.mask_rows[:] = index
        with pytest.raises(ValueError, match="none of the masks"):
            native_sample(kernels, TIERS[0], np.zeros((1, 8), np.float32), rows)

    def test_masks_of_another_vocabulary(self):
        rows = sampling_rows(1, allowed=[np.ones(8, bool)])
        with pytest.raises(ValueError, match="one bit for each token"):
            native_sample(kernels, TIERS[0], np.zeros((1, 40), np.float32), rows)

    @pytest.mark.parametrize("absent", ["mask_rows", "masks"])
    def test_masks_without_their_rows(self, absent):
        rows = replace(sampling_rows(1, allowed=[np.ones(8, bool)]), **{absent: None})
        with pytest.raises(ValueError, match="come together"):
            native_sample(kernels, TIERS[0], np.zeros((1, 8), np.float32), rows)

    def test_too_few_mask_rows(self):
        rows = sampling_rows(2, allowed=[np.ones(8, bool), None])
        rows = replace(rows, mask_rows=rows.mask_rows[:1])
        with pytest.raises(ValueError, match="one entry a wanted row"):
            native_sample(kernels, TIERS[0], np.zeros((2, 8), np.float32), rows)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", -0.1),
            ("temperature", np.nan),
            ("temperature", INF),
            ("top_k", -1),
            ("top_p", 0.0),
            ("top_p", np.nan),
            ("min_p", -0.1),
            ("min_p", 1.1),
            ("min_p", np.nan),
        ],
    )
    def test_a_parameter_out_of_range(self, field, value):
        self.refused(field, **{field: value})

    @pytest.mark.parametrize(("logprobs", "width"), [(3, 2), (21, 30)])
    def test_more_log_probabilities_than_there_is_room_for(self, logprobs, width):
        self.refused("log-probabilities", width=width, logprobs=logprobs)


@given(rows_of_logits(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_given_token_is_scored_as_the_definition_says_whatever_the_filters(logits, data) -> None:
    count, vocabulary = logits.shape
    rows = sampling_rows(
        count,
        target=data.draw(st.lists(st.integers(-1, vocabulary - 1), min_size=count, max_size=count)),
        temperature=data.draw(st.sampled_from([0.0, 1.0])),
        top_k=data.draw(st.sampled_from([0, 1])),
        logprobs=data.draw(st.sampled_from([0, 3])),
    )
    assert_same(logits, rows)
    result = native_sample(kernels, TIERS[0], logits, rows)
    given_tokens = (rows.target >= 0) & (result.tokens >= 0)
    assert np.array_equal(result.tokens[given_tokens], rows.target[given_tokens])


def test_a_given_token_outside_the_vocabulary_is_refused() -> None:
    for target in (-2, 9):
        with pytest.raises(ValueError, match="a target is outside the vocabulary"):
            native_sample(
                kernels, TIERS[0], np.zeros((1, 9), np.float32), sampling_rows(1, target=target)
            )


@given(
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    bias=st.floats(-1e30, 1e30),
)
@example(
    temperature=0.5,
    top_k=0,
    top_p=1e-300,
    min_p=1e-300,
    repetition_penalty=1e-300,
    presence_penalty=1e-300,
    frequency_penalty=1e-300,
    bias=1e-300,
)
@settings(max_examples=60, deadline=None)
def test_what_a_request_may_ask_for_is_sampled_however_small_or_large(
    bias: float, **asked: float
) -> None:
    sampling = SamplingParams(logit_bias={3: bias}, **asked)
    adjustments = Adjustments(sampling, [1, 2], ())
    adjustments.add_output(4)
    rows = FixedRows([(sampling, 7, 0)]).at([3], [adjustments.view()])
    logits = np.linspace(-8, 8, 40, dtype=np.float32)[None]
    with np.errstate(all="ignore"):
        assert_same(logits, rows)
