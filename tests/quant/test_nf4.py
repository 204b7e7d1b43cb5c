"""NF4 against bitsandbytes on the CPU, and its levels against the normal distribution."""

from __future__ import annotations

from statistics import NormalDist

import bitsandbytes.functional
import numpy as np
import pytest
import torch

from farthing.quant.nf4 import NF4_LEVELS
from quant.rows import decoded, encoded, random_weights


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


def test_the_levels_are_quantiles_of_the_normal_distribution() -> None:
    """As QLoRA defines them: eight above zero and seven below, of evenly spaced probabilities."""
    quantile = NormalDist().inv_cdf
    offset = 0.9677083  # the mean of 1 - 1/32 and 1 - 1/30
    above = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    wanted = np.sort([*above, 0.0, *below]) / max(above)
    np.testing.assert_allclose(NF4_LEVELS, wanted, atol=2e-7)
