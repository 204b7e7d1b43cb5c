"""What methods, level placement and block sizes are worth on weights that were never rounded.

On the float model that comes with farthing, as served, against its own full precision: differences
are paired by window, and outside of their intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.calibrate import calibration_with
from farthing.forge.methods import NEEDS_TEXT, parse_methods
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.quality.comparison import compare_measurements
from farthing.quality.measure import Measurement, measure
from farthing.quality.texts import calibration_text

if TYPE_CHECKING:
    from farthing.quality.comparison import Comparison

Measured = Callable[..., Measurement]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A scheme and methods -> what the result costs, each measured once."""
    folder = tmp_path_factory.mktemp("float")
    found: dict[tuple[str, ...], Measurement] = {}

    def measured(scheme: str, *methods: str) -> Measurement:
        key = (scheme, *methods)
        if key not in found:
            chosen = parse_methods(methods)
            out = folder / "-".join(key)
            with open_checkpoint(resolve("float")) as source:
                text = calibration_with(calibration_text(), source)
                calibration = text if NEEDS_TEXT & {*chosen} else None
                quantize(source, out, Wish(scheme, methods=chosen, calibration=calibration))
                found[key] = measure(out, source, battery=[])
        return found[key]

    return measured


def assert_better(better: Measurement, worse: Measurement) -> Comparison:
    """At least as few bits, and less divergence than the interval and chance explain."""
    assert better.candidate.bits_per_weight <= worse.candidate.bits_per_weight
    compared = compare_measurements(worse, better)
    assert compared.kl.high < 0, compared
    assert compared.kl_p_value < 0.01
    return compared


def test_the_reference_was_never_rounded(measured: Measured) -> None:
    plain = measured("INT4_G128")
    assert plain.reference.bits_per_weight == 16
    assert plain.warnings == ()


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_at_the_same_bits_a_method_beats_plain_rounding(method: str, measured: Measured) -> None:
    plain, better = measured("INT4_G128"), measured("INT4_G128", method)
    assert better.candidate.bits_per_weight == plain.candidate.bits_per_weight
    assert_better(better, plain)
    # Apart even where the two intervals are not of one pair.
    assert better.kl.mean.high < plain.kl.mean.low


def test_smoothing_halves_nearly_what_one_fixed_scale_an_input_costs(measured: Measured) -> None:
    plain = measured("INT8_ROW", "static-inputs")
    smooth = measured("INT8_ROW", "smoothquant", "static-inputs")
    assert_better(smooth, plain)
    assert plain.kl.mean.value > 1.7 * smooth.kl.mean.value


@pytest.mark.parametrize("block", [64, 128])
def test_levels_of_the_normal_distribution_beat_even_ones_in_the_same_blocks(
    block: int, measured: Measured
) -> None:
    even, normal = measured(f"INT4_G{block}"), measured(f"NF4_B{block}")
    assert_better(normal, even)
    assert normal.kl.mean.value < 0.8 * even.kl.mean.value


def test_smaller_blocks_cost_less(measured: Measured) -> None:
    for smaller, larger in ((32, 64), (64, 128)):
        compared = compare_measurements(measured(f"INT4_G{larger}"), measured(f"INT4_G{smaller}"))
        assert compared.kl.high < 0


def test_placing_levels_is_worth_as_much_as_blocks_of_half_the_size(measured: Measured) -> None:
    assert_better(measured("NF4_B128"), measured("INT4_G64"))
