"""NF4 against bitsandbytes on the CPU, and its levels against the normal distribution."""

from __future__ import annotations

from statistics import NormalDist

import bitsandbytes.functional
import numpy as np
import pytest
import torch

from farthing.core import StoredTensor
from farthing.quant.formats import decode, encode, packable
from farthing.quant.nf4 import DYNAMIC_MAP, NF4_LEVELS
from quant.rows import DOUBLE, decoded, encoded, random_weights


def bitsandbytes_nf4(
    weights: np.ndarray, block: int
) -> tuple[np.ndarray, bitsandbytes.functional.QuantState]:
    """Codes in the weights' order, and the state that holds a float32 absmax for each block."""
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.from_numpy(weights), blocksize=block, quant_type="nf4", compress_statistics=False
    )
    both = packed.numpy().reshape(-1)
    # The first of two is in the upper half there.
    return np.stack([both >> 4, both & 15], axis=1).reshape(weights.shape), state


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("scale", [1e-4, 0.02, 1.0, 30.0])
def test_absmax_is_bitsandbytes_rounded_to_float16_and_the_codes_are_its_own(
    block: int, scale: float
) -> None:
    weights = random_weights(1, 256, 1024, scale)
    codes, state = bitsandbytes_nf4(weights, block)
    rows = encoded(weights, f"NF4_B{block}")
    absmax = state.absmax.numpy().reshape(256, -1)
    np.testing.assert_array_equal(rows.scales, absmax.astype(np.float16).astype(np.float32))
    assert (rows.codes == codes).mean() >= 0.9999


@pytest.mark.parametrize("block", [64, 128])
def test_decoding_is_bitsandbytes_given_the_same_absmax(block: int) -> None:
    # Of bfloat16, as weights are published: float16 holds such an absmax exactly.
    weights = torch.from_numpy(random_weights(2, 64, 512)).bfloat16().float().numpy()
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.from_numpy(weights), blocksize=block, quant_type="nf4", compress_statistics=False
    )
    back = bitsandbytes.functional.dequantize_4bit(packed, state).numpy()
    np.testing.assert_array_equal(decoded(weights, f"NF4_B{block}"), back)


def test_a_short_last_block_has_an_absmax_of_its_own() -> None:
    weights = random_weights(3, 1, 576)
    weights[0, 512:] *= 100
    rows = encoded(weights, "NF4_B128")
    codes, state = bitsandbytes_nf4(weights, 128)
    assert rows.scales.shape == (1, 5)
    np.testing.assert_array_equal(rows.codes, codes)
    np.testing.assert_array_equal(
        rows.scales[0], state.absmax.numpy().astype(np.float16).astype(np.float32)
    )


def test_each_code_is_that_of_the_nearest_level() -> None:
    weights = np.linspace(-1, 1, 4001, dtype=np.float32)[None]
    distance = np.abs(weights[0, :, None].astype(np.float64) - NF4_LEVELS)
    found = np.abs(decoded(weights, "NF4_B64")[0] - weights[0])
    # A block's own absmax stretches the levels: those of the first and the last reach to 1.
    rows = encoded(weights, "NF4_B64")
    nearest = distance[:64].argmin(axis=1)
    np.testing.assert_array_equal(rows.codes[0, :64], nearest)
    assert found.max() < 0.16


def double_quantised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bitsandbytes' absmax (n, blocks of 64), and the weights: one mean for all, 256 to a scale."""
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.from_numpy(weights), blocksize=64, quant_type="nf4", compress_statistics=True
    )
    absmax = bitsandbytes.functional.dequantize_blockwise(state.absmax, state.state2)
    back = bitsandbytes.functional.dequantize_4bit(packed, state).numpy()
    return (absmax + state.offset).numpy().reshape(len(weights), -1), back


def test_the_map_of_double_quantisation_is_bitsandbytes() -> None:
    wanted = bitsandbytes.functional.create_dynamic_map().numpy()
    np.testing.assert_allclose(DYNAMIC_MAP, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0.02, 1.0, 30.0])
def test_double_quantised_absmax_are_bitsandbytes_to_one_step_of_its_map(scale: float) -> None:
    # A row of 256 blocks has one scale there too, and one row is the tensor of one mean.
    weights = random_weights(4, 1, 64 * 256, scale)
    absmax, back = double_quantised(weights)
    exact = encoded(weights, "NF4_B64").scales
    rows = encoded(weights, DOUBLE)
    np.testing.assert_array_equal(rows.codes, encoded(weights, "NF4_B64").codes)
    same = np.isclose(rows.scales, absmax, rtol=2e-3, atol=0)
    assert same.mean() > 0.95
    # Their scale and mean have float32. Where ours fall on the other side of a bound, both are off
    # by half a step.
    np.testing.assert_allclose(rows.scales, absmax, atol=0.02 * np.ptp(exact))
    errors = [np.linalg.norm(found - weights) for found in (decoded(weights, DOUBLE), back)]
    assert errors[0] < errors[1] * 1.002


def test_double_quantisation_is_bitsandbytes_where_float16_holds_scale_and_mean() -> None:
    generator = np.random.default_rng(5)
    # The mean of absmax is 1/2, the largest distance from it 1/4, and every one is a level.
    levels = DYNAMIC_MAP[[1, 40, 90, 128, 160, 215, 250]]
    distances = np.concatenate([[1.0, -1.0], generator.choice(levels, 254)])
    distances[2:] *= np.sign(generator.standard_normal(254))
    distances[3::2] = -distances[2::2]
    absmax = (0.5 + 0.25 * distances).astype(np.float32)
    weights = generator.uniform(-1, 1, (256, 64)) * absmax[:, None]
    weights[:, 17] = absmax
    weights = weights.astype(np.float32).reshape(1, -1)
    found, _ = double_quantised(weights)
    wanted = found.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(encoded(weights, DOUBLE).scales, wanted, rtol=2.0**-10)


def test_double_quantised_rows_are_packed_as_nf4_that_decodes_to_the_same() -> None:
    weights = random_weights(6, 9, 200)
    tensor = StoredTensor("weights", DOUBLE, weights.shape, encode(weights, DOUBLE))
    plain = StoredTensor("weights", "NF4_B64", weights.shape, packable(tensor))
    np.testing.assert_array_equal(decode(plain), decode(tensor))
    assert packable(plain) is plain.data


def test_blocks_far_smaller_than_the_rest_of_their_row_keep_the_sign_of_their_weights() -> None:
    weights = random_weights(7, 1, 640)
    weights[0, :64] *= 1e-4
    found = decoded(weights, DOUBLE)
    assert (found * weights >= 0).all()


def test_the_levels_are_quantiles_of_the_normal_distribution() -> None:
    """As QLoRA defines them: eight above zero and seven below, of evenly spaced probabilities."""
    quantile = NormalDist().inv_cdf
    offset = 0.9677083  # the mean of 1 - 1/32 and 1 - 1/30
    above = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    wanted = np.sort([*above, 0.0, *below]) / max(above)
    np.testing.assert_allclose(NF4_LEVELS, wanted, atol=2e-7)
