"""AWQ against torchao's observer, and clipping against every range tried on the tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchao.core.config import AOBaseConfig
from torchao.prototype.awq.core import AWQObserver
from torchao.quantization.transform_module import register_quantize_module_handler

from farthing.core import FarthingError, FileFormatError
from farthing.quant import awq
from farthing.quant.awq import search_awq, search_clip
from farthing.quant.formats import encode
from farthing.quant.gptq import encode_gptq
from farthing.quant.hessian import divided_hessian
from quant.calibrated import error_of, hessian_of, random_inputs, stored
from quant.rows import random_weights

INPUTS = 192
X = random_inputs(1, 700, INPUTS)
HESSIAN = hessian_of(X)
MAGNITUDES = np.abs(X).mean(axis=0)
WEIGHTS = random_weights(2, 40, INPUTS)


def rounded(weights: np.ndarray, name: str) -> np.ndarray:
    return stored(encode(weights, name), name, weights.shape)


class RoundingConfig(AOBaseConfig):
    """Tells torchao to round a module's weights to one of our formats."""

    def __init__(self, name: str) -> None:
        self.name = name


@register_quantize_module_handler(RoundingConfig)
def _round_module(module: torch.nn.Module, config: RoundingConfig) -> torch.nn.Module:
    weights = module.weight.detach().numpy()
    module.weight = torch.nn.Parameter(torch.from_numpy(rounded(weights, config.name)))
    return module


def torchao_scales(weights: np.ndarray, name: str) -> np.ndarray:
    observer = AWQObserver(torch.from_numpy(weights), None, RoundingConfig(name))
    observer(torch.from_numpy(X), None)
    return observer.calculate_qparams().numpy()


def scaled_error(weights: np.ndarray, name: str, scales: np.ndarray) -> float:
    return error_of(rounded(weights * scales, name) / scales, weights, X)


@pytest.mark.parametrize("name", ["INT4_G128", "INT4_G32_ASYM", "INT4_ROW", "NF4_B64", "Q4_0"])
def test_scales_and_loss_are_torchaos(name: str) -> None:
    theirs = torchao_scales(WEIGHTS, name)
    found = search_awq([WEIGHTS], name, HESSIAN, MAGNITUDES)
    error = scaled_error(WEIGHTS, name, theirs)
    assert scaled_error(WEIGHTS, name, found.scales) == pytest.approx(error, rel=0.01)
    assert found.loss == pytest.approx(error, rel=0.01)
    np.testing.assert_allclose(found.scales, theirs, rtol=1e-4)
    assert found.ratio > 0
    assert found.loss < found.plain_loss
    assert found.plain_loss == pytest.approx(error_of(rounded(WEIGHTS, name), WEIGHTS, X), rel=1e-3)


def test_matrices_that_share_an_input_share_the_scales_of_least_common_loss() -> None:
    other = random_weights(3, 24, INPUTS, scale=0.1)
    found = search_awq([WEIGHTS, other], "INT4_G64", HESSIAN, MAGNITUDES)
    theirs = torchao_scales(np.concatenate([WEIGHTS, other]), "INT4_G64")
    np.testing.assert_allclose(found.scales, theirs, rtol=1e-4)
    losses = [scaled_error(weights, "INT4_G64", theirs) for weights in (WEIGHTS, other)]
    assert found.loss == pytest.approx(sum(losses), rel=0.01)


def test_how_many_search_at_once_changes_no_bit() -> None:
    other = random_weights(3, 24, INPUTS, scale=0.1)
    alone, together = (
        search_awq([WEIGHTS, other], "INT4_G64", HESSIAN, MAGNITUDES, workers) for workers in (1, 3)
    )
    np.testing.assert_array_equal(together.scales, alone.scales)
    assert (together.ratio, together.loss) == (alone.ratio, alone.loss)
    assert together.plain_loss == alone.plain_loss


def test_inputs_with_one_magnitude_get_one_scale() -> None:
    found = search_awq([WEIGHTS], "INT4_G64", HESSIAN, np.repeat(MAGNITUDES[::2], 2))
    np.testing.assert_array_equal(found.scales[::2], found.scales[1::2])


def test_inputs_that_were_always_zero_get_a_finite_scale() -> None:
    x = X.copy()
    x[:, 7] = 0
    found = search_awq([WEIGHTS], "INT4_G64", hessian_of(x), np.abs(x).mean(axis=0))
    assert np.isfinite(found.scales).all()
    assert (found.scales > 0).all()
    nothing = search_awq(
        [WEIGHTS], "INT4_G64", np.zeros_like(HESSIAN), np.zeros(INPUTS, np.float32)
    )
    np.testing.assert_array_equal(nothing.scales, 1)


@pytest.mark.parametrize(("name", "group"), [("INT4_G128", 128), ("INT4_G32_ASYM", 32)])
def test_each_group_gets_the_range_of_least_error_over_the_tokens(name: str, group: int) -> None:
    found = search_clip(WEIGHTS[:6], name, HESSIAN)
    for first in range(0, INPUTS, group):
        columns = slice(first, min(first + group, INPUTS))
        for row in range(6):
            part = WEIGHTS[row : row + 1, columns]
            errors = {}
            for cut in range(10):
                limit = np.abs(part).max() * np.float32(1 - cut / 20)
                clipped = np.clip(part, -limit, limit)
                errors[cut] = error_of(rounded(clipped, name), part, X[:, columns])
            limit = np.abs(part).max() * np.float32(1 - min(errors, key=errors.__getitem__) / 20)
            np.testing.assert_allclose(
                found[row, columns], np.clip(part, -limit, limit)[0], rtol=1e-6
            )


@pytest.mark.parametrize("name", ["INT4_G128", "INT4_ROW", "NF4_B64", "Q4_1", "Q5_0", "IQ4_NL"])
def test_clipping_lowers_the_error_of_the_output(name: str) -> None:
    # Single weights far out, in inputs that do not matter.
    weights = random_weights(4, 30, INPUTS)
    weights[:, 5] *= 12
    x = X * np.where(np.arange(INPUTS) == 5, 0.01, 1).astype(np.float32)
    clipped = search_clip(weights, name, hessian_of(x))
    plain = error_of(rounded(weights, name), weights, x)
    assert error_of(rounded(clipped, name), weights, x) < 0.9 * plain


def test_ranges_searched_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search_clip(WEIGHTS, "INT4_G64", HESSIAN)
    monkeypatch.setattr(awq, "_PIECE_WEIGHTS", 7 * INPUTS)
    # A product of other sizes may sum in another order.
    assert (search_clip(WEIGHTS, "INT4_G64", HESSIAN) == whole).mean() > 0.99


@pytest.mark.parametrize("name", ["INT8_TENSOR", "INT4_TENSOR", "F16", "BF16"])
def test_formats_without_a_range_for_a_group_are_not_clipped(name: str) -> None:
    np.testing.assert_array_equal(search_clip(WEIGHTS, name, HESSIAN), WEIGHTS)


def test_k_quants_search_for_their_own_ranges() -> None:
    weights, x = random_weights(5, 8, 256), random_inputs(6, 500, 256)
    np.testing.assert_array_equal(search_clip(weights, "Q4_K", hessian_of(x)), weights)
    found = search_awq([weights], "Q4_K", hessian_of(x), np.abs(x).mean(axis=0))
    assert found.loss < found.plain_loss


def test_gptq_takes_the_scaled_weights_and_the_clipped_ranges() -> None:
    """Together they leave less error than either alone, and than plain rounding."""
    name = "INT4_G128"
    found = search_awq([WEIGHTS], name, HESSIAN, MAGNITUDES)
    scaled = WEIGHTS * found.scales
    hessian = divided_hessian(HESSIAN, found.scales)
    np.testing.assert_allclose(hessian, hessian_of(X / found.scales), rtol=1e-4, atol=1e-6)
    ranged = search_clip(scaled, name, hessian)
    data = encode_gptq(scaled, name, hessian, ranges_of=ranged)
    both = error_of(stored(data, name, WEIGHTS.shape) / found.scales, WEIGHTS, X)
    clipped = error_of(rounded(ranged, name) / found.scales, WEIGHTS, X)
    gptq = error_of(stored(encode_gptq(WEIGHTS, name, HESSIAN), name, WEIGHTS.shape), WEIGHTS, X)
    assert both < min(gptq, clipped)
    assert clipped < found.plain_loss


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(FarthingError, match="no matrix"):
        search_awq([], "INT4_G128", HESSIAN, MAGNITUDES)
    with pytest.raises(FarthingError, match="number of inputs they share"):
        search_awq([WEIGHTS, WEIGHTS[:, :-1]], "INT4_G128", HESSIAN, MAGNITUDES)
    with pytest.raises(FarthingError, match="number of inputs they share"):
        search_awq([WEIGHTS], "INT4_G128", HESSIAN, MAGNITUDES[:-1])
    with pytest.raises(FarthingError, match="need a Hessian of shape"):
        search_awq([WEIGHTS], "INT4_G128", HESSIAN[:-1, :-1], MAGNITUDES)
    with pytest.raises(FarthingError, match="need a Hessian of shape"):
        search_clip(WEIGHTS, "INT4_G128", HESSIAN[:-1, :-1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_magnitudes_that_are_none_are_refused(value: float) -> None:
    magnitudes = MAGNITUDES.copy()
    magnitudes[3] = value
    with pytest.raises(FarthingError, match="finite numbers from 0.*another text"):
        search_awq([WEIGHTS], "INT4_G128", HESSIAN, magnitudes)


def test_weights_and_hessians_that_are_not_finite_are_refused() -> None:
    weights, hessian = WEIGHTS.copy(), HESSIAN.copy()
    weights[1, 1] = hessian[1, 1] = np.nan
    with pytest.raises(FileFormatError, match="infinity or a NaN"):
        search_awq([weights], "INT4_G128", HESSIAN, MAGNITUDES)
    with pytest.raises(FarthingError, match="infinity or a NaN"):
        search_awq([WEIGHTS], "INT4_G128", hessian, MAGNITUDES)
