"""The sampler's definition, on distributions small enough to know the answer."""

from __future__ import annotations

import numpy as np
import pytest

from farthing.core import RequestError
from farthing.engine.sampler import filtered, log_probabilities, sample
from sampling_rows import sampling_rows

NAN, INF = np.nan, np.inf


def log(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


def kept(probabilities: tuple[float, ...], top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    logits = log(*probabilities)
    return filtered(logits - logits.max(), top_k, top_p, min_p).tolist()


def greedy(logits: list[float], **fields) -> int:
    rows = sampling_rows(1, temperature=0.0, **fields)
    return int(sample(np.array([logits], np.float32), rows).tokens[0])


def support(logits: np.ndarray, draws: int = 400, **fields) -> set[int]:
    """Every token that comes up among so many seeds."""
    rows = sampling_rows(draws, seed=np.arange(draws), **fields)
    return set(sample(np.tile(logits, (draws, 1)), rows).tokens.tolist())


PROBABILITIES = (0.1, 0.4, 0.2, 0.3)


class TestFilters:
    @pytest.mark.parametrize(
        ("top_k", "left"),
        [(0, [1, 3, 2, 0]), (1, [1]), (2, [1, 3]), (3, [1, 3, 2]), (4, [1, 3, 2, 0])],
    )
    def test_top_k_keeps_the_k_likeliest_and_0_keeps_all(self, top_k, left):
        assert kept(PROBABILITIES, top_k=top_k) == left

    def test_a_top_k_beyond_the_vocabulary_keeps_all(self):
        assert kept(PROBABILITIES, top_k=1000) == [1, 3, 2, 0]

    def test_top_k_keeps_the_lowest_ids_of_equal_tokens(self):
        assert kept((0.2, 0.2, 0.2, 0.4), top_k=3) == [3, 0, 1]

    @pytest.mark.parametrize(
        ("top_p", "left"),
        [
            (1e-6, [1]),
            (0.39, [1]),
            (0.41, [1, 3]),
            (0.69, [1, 3]),
            (0.71, [1, 3, 2]),
            (0.89, [1, 3, 2]),
            (0.91, [1, 3, 2, 0]),
            (1.0, [1, 3, 2, 0]),
        ],
    )
    def test_top_p_keeps_the_fewest_likeliest_that_reach_it(self, top_p, left):
        assert kept(PROBABILITIES, top_p=top_p) == left

    def test_top_p_stops_at_the_token_that_reaches_it_exactly(self):
        assert kept((0.25, 0.25, 0.25, 0.25), top_p=0.5) == [0, 1]

    def test_top_p_keeps_the_lowest_ids_of_equal_tokens(self):
        assert kept((0.2, 0.4, 0.2, 0.2), top_p=0.7) == [1, 0, 2]

    @pytest.mark.parametrize(
        ("min_p", "left"),
        [
            (0.0, [1, 3, 2, 0]),
            (0.24, [1, 3, 2, 0]),
            (0.26, [1, 3, 2]),
            (0.51, [1, 3]),
            (0.76, [1]),
            (1.0, [1]),
        ],
    )
    def test_min_p_is_relative_to_the_likeliest_token(self, min_p, left):
        assert kept(PROBABILITIES, min_p=min_p) == left

    def test_a_min_p_of_1_keeps_every_token_that_is_as_likely_as_the_likeliest(self):
        assert kept((0.3, 0.3, 0.1, 0.3), min_p=1.0) == [0, 1, 3]

    def test_top_p_is_of_the_probability_that_top_k_leaves(self):
        # 0.4 + 0.3 is 70 % of everything, but all of what top-k leaves; 0.4 is 57 % of that.
        assert kept(PROBABILITIES, top_p=0.55) == [1, 3]
        assert kept(PROBABILITIES, top_k=2, top_p=0.55) == [1]
        assert kept(PROBABILITIES, top_k=2, top_p=0.6) == [1, 3]

    def test_min_p_does_not_change_what_top_p_is_a_share_of(self):
        # Were min-p first, 0.4 would be 57 % of what it leaves, and enough.
        assert kept(PROBABILITIES, top_p=0.55, min_p=0.7) == [1, 3]

    def test_an_impossible_token_passes_no_filter(self):
        assert kept((0.5, 0.0, 0.5, 0.0), top_k=4) == [0, 2]

    def test_temperature_comes_before_top_p(self):
        # Squared, 0.4 and 0.3 hold 83 % of the probability; as they are, 70 %.
        assert support(log(*PROBABILITIES), top_p=0.8) == {1, 3, 2}
        assert support(log(*PROBABILITIES), top_p=0.8, temperature=0.5) == {1, 3}

    def test_penalties_come_before_top_k(self):
        rows = {"top_k": 1, "presence_penalty": 1.0, "adjusted": [[(1, 0.0, 1, 1)]] * 50}
        assert support(log(*PROBABILITIES), draws=50, **rows) == {3}


class TestAdjustments:
    def test_a_bias_is_added(self):
        assert greedy([0, 1, 2, 3], adjusted=[[(1, 2.5, 0, 0)]]) == 1
        assert greedy([0, 1, 2, 3], adjusted=[[(3, -100.0, 0, 0)]]) == 2

    @pytest.mark.parametrize(
        ("logit", "becomes"), [(4.0, 2.0), (-4.0, -8.0), (0.0, 0.0)], ids=["above", "below", "zero"]
    )
    def test_repetition_divides_a_positive_logit_and_multiplies_a_negative_one(
        self, logit, becomes
    ):
        for rival in (becomes - 0.01, becomes + 0.01):
            chosen = greedy([rival, logit], repetition_penalty=2.0, adjusted=[[(1, 0.0, 1, 0)]])
            assert chosen == (1 if rival < becomes else 0)

    def test_repetition_leaves_unseen_tokens_alone(self):
        assert greedy([3, 4], repetition_penalty=2.0, adjusted=[[(1, 0.0, 0, 0)]]) == 1

    def test_presence_is_subtracted_once_and_only_of_tokens_in_the_output(self):
        assert greedy([3, 4], presence_penalty=1.5, adjusted=[[(1, 0.0, 1, 7)]]) == 0
        assert greedy([2, 4], presence_penalty=1.5, adjusted=[[(1, 0.0, 1, 7)]]) == 1
        assert greedy([3, 4], presence_penalty=1.5, adjusted=[[(1, 0.0, 1, 0)]]) == 1

    def test_frequency_is_subtracted_for_each_time(self):
        assert greedy([3, 4], frequency_penalty=0.4, adjusted=[[(1, 0.0, 1, 2)]]) == 1
        assert greedy([3, 4], frequency_penalty=0.4, adjusted=[[(1, 0.0, 1, 3)]]) == 0

    def test_bias_comes_before_the_repetition_penalty(self):
        # (-1 + 4) / 2 = 1.5; the other way round, -1 * 2 + 4 = 2.
        assert greedy([1.7, -1], repetition_penalty=2.0, adjusted=[[(1, 4.0, 1, 0)]]) == 0

    def test_presence_comes_after_the_repetition_penalty(self):
        # 3 / 2 - 2 = -0.5; the other way round, (3 - 2) / 2 = 0.5.
        penalties = {"repetition_penalty": 2.0, "presence_penalty": 2.0}
        assert greedy([0, 3], **penalties, adjusted=[[(1, 0.0, 1, 1)]]) == 0

    def test_each_row_has_its_own(self):
        logits = np.zeros((3, 4), np.float32)
        rows = sampling_rows(
            3, temperature=0.0, adjusted=[[(3, 1.0, 0, 0)], [], [(1, 1.0, 0, 0), (2, 2.0, 0, 0)]]
        )
        assert sample(logits, rows).tokens.tolist() == [3, 0, 2]
        assert not logits.any()

    @pytest.mark.parametrize("token", [-1, 4])
    def test_a_token_outside_the_vocabulary_is_an_error(self, token):
        with pytest.raises(RequestError, match="outside the vocabulary of 4 tokens"):
            greedy([0, 1, 2, 3], adjusted=[[(token, 1.0, 0, 0)]])

    def test_a_token_named_twice_is_an_error(self):
        with pytest.raises(RequestError, match="twice"):
            greedy([0, 1, 2, 3], adjusted=[[(2, 1.0, 0, 0), (2, 1.0, 0, 0)]])


class TestMasks:
    LOGITS = log(*PROBABILITIES)

    def test_a_masked_token_is_never_chosen(self):
        allowed = np.array([True, False, True, False])
        assert support(self.LOGITS, draws=200, allowed=[allowed] * 200) == {0, 2}
        assert greedy(self.LOGITS, allowed=[allowed]) == 2

    def test_the_mask_comes_before_top_k_and_top_p(self):
        allowed = [np.array([True, False, True, True])] * 200
        assert support(self.LOGITS, draws=200, top_k=2, allowed=allowed) == {3, 2}
        # 0.3 of the 0.6 that are left is half of it; of everything it is less.
        assert support(self.LOGITS, draws=200, top_p=0.49, allowed=allowed) == {3}

    def test_no_bias_lifts_a_mask(self):
        allowed = [np.array([True, False, True, True])]
        for bias in (100.0, INF):
            assert greedy(self.LOGITS, adjusted=[[(1, bias, 0, 0)]], allowed=allowed) == 3

    def test_a_mask_that_allows_nothing_chooses_none(self):
        assert greedy(self.LOGITS, allowed=[np.zeros(4, bool)]) == -1

    def test_a_row_without_a_mask_beside_one_with_takes_any_token(self):
        logits = np.tile(self.LOGITS, (3, 1))
        only = np.array([True, False, False, False])
        rows = sampling_rows(3, temperature=0.0, allowed=[None, only, None])
        assert sample(logits, rows).tokens.tolist() == [1, 0, 1]

    def test_log_probabilities_are_as_without_a_mask(self):
        only = np.array([True, False, False, False])
        result = sample(self.LOGITS[None], sampling_rows(1, logprobs=2, allowed=[only]))
        assert result.tokens.tolist() == [0]
        np.testing.assert_allclose(result.logprob, np.log([0.1]), rtol=1e-6)
        assert result.top_ids.tolist() == [[1, 3]]


class TestChoice:
    def test_temperature_0_takes_the_likeliest_whatever_the_filters_and_the_seed(self):
        logits = np.tile(log(*PROBABILITIES), (9, 1))
        rows = sampling_rows(9, temperature=0.0, seed=np.arange(9), top_k=3, top_p=0.99, min_p=0.01)
        assert set(sample(logits, rows).tokens.tolist()) == {1}

    def test_temperature_0_takes_the_lowest_id_of_equal_logits(self):
        assert greedy([1, 2, 2, 2]) == 1

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nan_is_never_chosen(self, temperature):
        rows = sampling_rows(50, temperature=temperature, seed=np.arange(50))
        logits = np.tile(np.array([NAN, 1, NAN, 0], np.float32), (50, 1))
        assert set(sample(logits, rows).tokens.tolist()) <= {1, 3}

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("logits", [[NAN] * 4, [-INF] * 4, [NAN, -INF, NAN, -INF]])
    def test_where_nothing_can_be_chosen_the_token_is_minus_1(self, logits, temperature):
        rows = sampling_rows(1, temperature=temperature, logprobs=2)
        result = sample(np.array([logits], np.float32), rows)
        assert result.tokens.tolist() == [-1]
        assert result.logprob.tolist() == [-INF]
        assert result.top_ids.tolist() == [[-1, -1]]

    def test_banning_every_token_chooses_none(self):
        bans = [[(token, -INF, 0, 0) for token in range(3)]]
        assert greedy([1, 2, 3], adjusted=bans) == -1

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_an_infinite_logit_is_chosen(self, temperature):
        rows = sampling_rows(20, temperature=temperature, seed=np.arange(20))
        logits = np.tile(np.array([1e30, 0, INF, NAN], np.float32), (20, 1))
        assert set(sample(logits, rows).tokens.tolist()) == {2}

    def test_the_smallest_temperature_takes_the_likeliest(self):
        assert support(np.array([1, 2, 3, 2], np.float32), temperature=1e-44) == {2}

    def test_every_token_that_is_left_comes_up(self):
        assert support(log(*PROBABILITIES)) == {0, 1, 2, 3}
        assert support(log(*PROBABILITIES), top_k=3, min_p=0.6) == {1, 3}


class TestLogProbabilities:
    def test_they_are_of_the_unfiltered_distribution(self):
        rows = sampling_rows(1, top_k=1, temperature=3.0, logprobs=3, adjusted=[[(0, 50.0, 0, 0)]])
        result = sample(log(*PROBABILITIES)[None], rows)
        assert result.tokens.tolist() == [0]
        np.testing.assert_allclose(result.logprob, np.log([0.1]), rtol=1e-6)
        assert result.top_ids.tolist() == [[1, 3, 2]]
        np.testing.assert_allclose(result.top_logprobs[0], np.log([0.4, 0.3, 0.2]), rtol=1e-6)

    def test_equal_logits_are_listed_with_the_lowest_id_first(self):
        result = sample(np.array([[0, 1, 0, 1]], np.float32), sampling_rows(1, logprobs=3))
        assert result.top_ids.tolist() == [[1, 3, 0]]

    def test_rows_that_ask_for_fewer_are_padded(self):
        logits = np.tile(log(*PROBABILITIES), (3, 1))
        result = sample(logits, sampling_rows(3, temperature=0.0, logprobs=[2, 0, -1]))
        assert result.top_ids.tolist() == [[1, 3], [-1, -1], [-1, -1]]
        assert result.top_logprobs[1:].tolist() == [[-INF, -INF], [-INF, -INF]]
        np.testing.assert_allclose(result.logprob[:2], np.log([0.4, 0.4]), rtol=1e-6)
        assert np.isnan(result.logprob[2])

    def test_a_vocabulary_smaller_than_the_number_asked_for_is_listed_whole(self):
        result = sample(np.array([[0, -INF, NAN, 1]], np.float32), sampling_rows(1, logprobs=5))
        assert result.top_ids.tolist() == [[3, 0, -1, -1, -1]]

    def test_they_sum_to_one_and_a_nan_weighs_nothing(self):
        logits = np.array([300, 299, NAN, -INF, -400], np.float32)
        logprobs = log_probabilities(logits)
        assert logprobs[2] == logprobs[3] == -INF
        assert np.exp(logprobs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-7)
        assert logprobs[0] == np.float32(-np.log1p(np.exp(-1.0)))
