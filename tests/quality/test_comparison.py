"""Two candidates compared in pairs, and only where they were measured alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from farthing.core import RequestError
from farthing.quality.battery import Answers
from farthing.quality.comparison import compare_measurements
from farthing.quality.measure import measure
from farthing.quality.significance import sign_flip_test
from farthing.quality.subject import Settings

if TYPE_CHECKING:
    from typing import Any

    from farthing.quality.measure import Measurement


def measured(quant: str, **options: Any) -> Measurement:
    options = {"tokens": 700, "window": 64, "battery": [], "threads": 2, **options}
    return measure(tiny.shared("llama", "gguf", quant), tiny.shared("llama"), **options)


@pytest.fixture(scope="module")
def coarse() -> Measurement:
    return measured("Q4_0")


@pytest.fixture(scope="module")
def fine() -> Measurement:
    return measured("Q8_0")


def test_a_difference_outside_its_interval_is_one(coarse: Measurement, fine: Measurement) -> None:
    found = compare_measurements(coarse, fine)
    assert found.kl_differs
    assert found.kl.high < 0
    assert found.kl.value == pytest.approx(fine.kl.mean.value - coarse.kl.mean.value)
    differences = fine.scores.kl.mean(axis=1) - coarse.scores.kl.mean(axis=1)
    assert found.kl_p_value == sign_flip_test(differences)
    assert found.kl_p_value < 0.001
    expected = fine.candidate.perplexity.value / coarse.candidate.perplexity.value
    assert found.perplexity_ratio.value == pytest.approx(expected)


def test_a_model_does_not_differ_from_itself(fine: Measurement) -> None:
    found = compare_measurements(fine, fine)
    assert not found.kl_differs
    assert not found.perplexity_differs
    assert found.kl_p_value == found.perplexity_p_value == 1.0


def test_noise_is_no_difference(fine: Measurement) -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, fine.scores.kl.shape)
    noisy = replace(fine, scores=replace(fine.scores, kl=fine.scores.kl + noise - noise.mean()))
    assert not compare_measurements(fine, noisy).kl_differs


def test_flips_of_the_battery_are_between_the_two(fine: Measurement) -> None:
    def answering(*right: bool) -> Measurement:
        answers = Answers(("",) * len(right), right)
        return replace(fine, candidate=replace(fine.candidate, answers=answers))

    found = compare_measurements(answering(True, True, False), answering(True, False, True))
    assert found.flips is not None
    assert (found.flips.lost, found.flips.gained) == (1, 1)
    assert compare_measurements(fine, answering(True)).flips is None
    assert compare_measurements(answering(True), answering(True, False)).flips is None


def test_measurements_that_speak_of_different_things_are_refused(fine: Measurement) -> None:
    with pytest.raises(RequestError, match="not the same text or windows"):
        compare_measurements(fine, measured("Q8_0", tokens=300))
    own = tiny.shared("llama", "gguf", "Q8_0")
    with pytest.raises(RequestError, match="not the same reference"):
        compare_measurements(fine, measure(own, own, tokens=700, window=64, battery=[]))
    with pytest.raises(RequestError, match="way to compute the reference"):
        compare_measurements(fine, measured("Q8_0", reference_settings=Settings()))
