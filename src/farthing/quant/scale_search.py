"""The search for the scale of a few weights, many times at once.

A block's scale that loses least is not its largest magnitude over the largest code: a slightly
different one rounds more weights well. So scales near that one are tried; each time the codes are
rounded, the scale (and minimum) that fits these codes best follows by least squares, and the best
of all is kept. Errors are weighted. This is the method of ggml's reference quantisers
(ggml-quants.c: make_qx_quants, make_q3_quants, make_qkx3_quants, make_qp_quants), with their
candidates.

Arrays are (length, count): one weight of each sub-block after the other, so that a numpy operation
runs over many sub-blocks and a sum over one is a sum of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"
Sums: TypeAlias = "NDArray[np.float64]"

_ONE = np.float32(1)
_TINIEST = np.float32(1e-30)

_DESCENTS = 5
"""Times that a descent looks at every code of a sub-block again."""


def symmetric_scales(weights: Floats, importance: Floats, highest: int) -> Floats:
    """(length, count), for codes of -highest to highest - 1 -> (count,) scales.

    Minimises the sum of importance * (weight - scale * code)^2 over 19 candidates. The weight
    farthest from zero gets the code -highest, or one close by: a scale has that weight's sign,
    reversed.
    """
    farthest = _farthest(weights)
    scaled = importance * weights
    codes, squares = np.empty_like(weights), np.empty_like(weights)
    best = np.zeros(weights.shape[1])
    scales = np.zeros(weights.shape[1])
    for step in (0, *range(-9, 0), *range(1, 10)):
        _rounded(weights, inverse_or_zero(farthest, -np.float32(highest + 0.1 * step)), codes)
        _limited(codes, -highest, highest - 1)
        products = _sum_of_products(scaled, codes)
        energy = _sum_of_products(importance, np.multiply(codes, codes, out=squares))
        candidates = _quotient(products, energy)
        better = products * candidates > best
        best[better] = (products * candidates)[better]
        scales[better] = candidates[better]
    return scales.astype(np.float32)


def descended_scales(weights: Floats, importance: Floats, highest: int) -> Floats:
    """As `symmetric_scales`, from one candidate, whose codes are then changed one by one.

    A code is changed to what rounds its weight best under the scale that fits all others, where
    the error falls by it.
    """
    codes = np.empty_like(weights)
    _rounded(weights, inverse_or_zero(_farthest(weights), -np.float32(highest)), codes)
    _limited(codes, -highest, highest - 1)
    return _descended(weights, importance, codes, -highest, highest - 1)


def affine_scales(
    weights: Floats,
    importance: Floats,
    highest: int,
    offsets: Sequence[float],
    *,
    absolute: bool = False,
) -> tuple[Floats, Floats]:
    """(length, count), for codes of 0 to `highest` -> (count,) scales and (count,) minima.

    A minimum is what is subtracted, zero or more: weight = scale * code - minimum. Minimises the
    sum of importance * error^2, or of importance * |error| if `absolute`, over the candidates
    range / (highest + offset), offset by offset. The range is that from the best minimum so far to
    the largest weight.
    """
    low, high = np.minimum(weights.min(axis=0), 0), weights.max(axis=0)
    span = high - low
    codes, weighted = np.empty_like(weights), np.empty_like(weights)
    total = importance.sum(axis=0, dtype=np.float64)
    total_x = _sum_of_products(importance, weights)

    def error_of(scale: Sums, least: Sums) -> Sums:
        np.multiply(codes, scale.astype(np.float32), out=weighted)
        np.add(weighted, least.astype(np.float32), out=weighted)
        np.subtract(weighted, weights, out=weighted)
        magnitude = np.abs if absolute else np.square
        return _sum_of_products(importance, magnitude(weighted, out=weighted))

    scales, minima = span.astype(np.float64) / highest, low.astype(np.float64)
    _rounded(
        np.subtract(weights, low, out=codes), inverse_or_zero(span, np.float32(highest)), codes
    )
    best = error_of(scales, minima)
    for offset in offsets:
        per_step = inverse_or_zero(high - low, np.float32(highest + offset))
        _rounded(np.subtract(weights, low, out=codes), per_step, codes)
        _limited(codes, 0, highest)
        np.multiply(importance, codes, out=weighted)
        sum_l = weighted.sum(axis=0).astype(np.float64)
        sum_ll = _sum_of_products(weighted, codes)
        sum_lx = _sum_of_products(weighted, weights)
        determinant = total * sum_ll - sum_l * sum_l
        scale = _quotient(total * sum_lx - total_x * sum_l, determinant)
        least = _quotient(sum_ll * total_x - sum_l * sum_lx, determinant)
        # Minima are stored without a sign: what lies above zero alone is fitted through zero.
        above_zero = least > 0
        scale[above_zero] = _quotient(sum_lx, sum_ll)[above_zero]
        least[above_zero] = 0
        error = error_of(scale, least)
        better = (determinant > 0) & (error < best)
        for kept, found in ((best, error), (scales, scale), (minima, least)):
            kept[better] = found[better]
        low[better] = minima[better]
    scales[span < _TINIEST] = 0
    return scales.astype(np.float32), (-minima).astype(np.float32)


def positive_scale(
    values: Floats, importance: Floats, highest: int
) -> tuple[Floats, NDArray[np.uint8]]:
    """(length, count) values of zero or more -> (count,) scales and their codes of 0 to `highest`.

    Minimises the sum of importance * (value - scale * code)^2 over nine candidates, and from the
    best of them by descent.
    """
    per_step = inverse_or_zero(values.max(axis=0))
    codes = np.empty_like(values)
    best = np.full(values.shape[1], np.inf)
    chosen = per_step * highest
    for step in (0, *range(-4, 0), *range(1, 5)):
        inverse = per_step * np.float32(highest + 0.1 * step)
        _rounded(values, inverse, codes)
        np.minimum(codes, highest, out=codes)
        error = _sum_of_products(importance, np.square(values - codes * inverse_or_zero(inverse)))
        better = error < best
        best[better] = error[better]
        chosen[better] = inverse[better]
    _rounded(values, chosen, codes)
    np.minimum(codes, highest, out=codes)
    scales = _descended(values, importance, codes, 0, highest)
    return scales, codes.astype(np.uint8)


def inverse_or_zero(values: Floats, numerator: np.float32 = _ONE) -> Floats:
    """`numerator` / value, and 0 for values so small that float16 scales lose them anyway."""
    wide = np.abs(values) >= _TINIEST
    return np.divide(numerator, values, out=np.zeros_like(values), where=wide)


def _descended(
    weights: Floats, importance: Floats, codes: Floats, lowest: int, highest: int
) -> Floats:
    """The scales that fit `codes` best, after improving these in place."""
    products = _sum_of_products(importance * weights, codes)
    energy = _sum_of_products(importance * codes, codes)
    for _ in range(_DESCENTS):
        changed = False
        for weight, weigh, code in zip(weights, importance, codes, strict=True):
            pull = weigh * weight
            others = products - pull * code
            others_energy = energy - weigh * code * code
            wanted = np.rint(weight * _quotient(others_energy, others))
            _limited(wanted, lowest, highest)
            new_products = others + pull * wanted
            new_energy = others_energy + weigh * wanted * wanted
            better = (
                (others > 0)
                & (new_energy > 0)
                & (wanted != code)
                & (new_products * new_products * energy > products * products * new_energy)
            )
            if better.any():
                changed = True
                code[better] = wanted[better]
                products[better] = new_products[better]
                energy[better] = new_energy[better]
        if not changed:
            break
    return _quotient(products, energy).astype(np.float32)


def _farthest(weights: Floats) -> Floats:
    """(length, count) -> (count,): the weight of the largest magnitude, the first of several."""
    positions = np.abs(weights).argmax(axis=0)[None]
    farthest: Floats = np.take_along_axis(weights, positions, axis=0)[0]
    return farthest


def _rounded(weights: Floats, inverse: Floats, out: Floats) -> None:
    """Halves go to even."""
    np.rint(np.multiply(weights, inverse, out=out), out=out)


def _limited(codes: NDArray[np.floating], lowest: int, highest: int) -> None:
    np.maximum(codes, lowest, out=codes)
    np.minimum(codes, highest, out=codes)


def _sum_of_products(first: Floats, second: Floats) -> Sums:
    sums: Floats = np.einsum("lc,lc->c", first, second)
    return sums.astype(np.float64)


def _quotient(numerator: Sums, denominator: Sums) -> Sums:
    """Zero where there is nothing to divide by."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
