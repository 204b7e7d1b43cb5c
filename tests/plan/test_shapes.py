"""The sum of textbooks, to the token: the figures that a plan must come out at."""

from __future__ import annotations

import pytest

from farthing.core import KVDtype, RequestError
from farthing.plan.precision import precision
from farthing.plan.shapes import DEFAULT_RESERVE, EXAMPLES, Formula, Shape, formula

GIB = 1 << 30
SEVEN, THIRTEEN, SEVENTY = EXAMPLES


def solved(shape: Shape, weights: str, gib: int) -> Formula:
    return formula(shape, precision(weights), KVDtype.FP16, gib * GIB, DEFAULT_RESERVE)


def test_thirteen_billion_in_int4_leave_337_tokens_of_8_gib() -> None:
    found = solved(THIRTEEN, "int4", 8)
    assert found.weight_bytes == 13_000_000_000 * 4.125 / 8
    assert round(found.weight_bytes / GIB, 1) == 6.2
    assert (found.tokens, found.missing_bytes) == (337, 0)
    assert found.allocated_tokens == 320


@pytest.mark.parametrize(("shape", "tokens"), [(SEVEN, 65_378), (THIRTEEN, 3_136)], ids=str)
def test_int8_in_16_gib(shape: Shape, tokens: int) -> None:
    assert solved(shape, "int8", 16).tokens == tokens


def test_seven_billion_in_int8_miss_8_gib_by_19_7_mib() -> None:
    found = solved(SEVEN, "int8", 8)
    assert found.tokens == 0
    assert round(found.missing_bytes / (1 << 20), 1) == 19.7


def test_seventy_billion_fit_into_none_of_these() -> None:
    for gib in (8, 16, 24):
        for weights in ("fp16", "int8", "int4"):
            assert solved(SEVENTY, weights, gib).missing_bytes > 0
    assert round(solved(SEVENTY, "int4", 24).missing_bytes / GIB, 1) == 11.1


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "each"),
    [
        (24, 2, 64, 12_288),
        (24, 14, 64, 86_016),
        (32, 8, 128, 131_072),
        (40, 40, 128, 819_200),
    ],
)
def test_bytes_a_token(layers: int, kv_heads: int, head_dim: int, each: int) -> None:
    shape = Shape("x", 1, layers, kv_heads, head_dim)
    assert shape.bytes_per_token(KVDtype.FP16) == each
    assert shape.bytes_per_token(KVDtype.BF16) == each
    assert shape.bytes_per_token(KVDtype.FP32) == 2 * each
    # A scale of 4 bytes for each key and each value.
    assert shape.bytes_per_token(KVDtype.INT8) == each // 2 + layers * kv_heads * 8
    assert shape.block_bytes(KVDtype.FP16) == 32 * each


def test_half_a_billion_parameters_at_4_2_and_1_bytes() -> None:
    shape = Shape("0.5B", 494_000_000, 24, 2, 64)
    sizes = [shape.weight_bytes(precision(p).bits or 0) / 1e9 for p in ("fp32", "fp16", "int8")]
    assert [f"{each:.2f}" for each in sizes] == ["1.98", "0.99", "0.49"]


def test_one_long_text_takes_more_than_the_weights_of_its_model() -> None:
    weights = SEVEN.weight_bytes(16)
    assert round(weights / GIB, 1) == 13.0
    assert 128_000 * SEVEN.bytes_per_token(KVDtype.FP16) > weights


def test_only_the_sum_of_resident_tokens_counts() -> None:
    each = Shape("x", 1, 24, 2, 64).bytes_per_token(KVDtype.FP16)
    for users, context in ((32, 2048), (64, 1024), (128, 512)):
        assert users * context * each == 768 << 20


def test_295_tokens_take_less_by_the_formula_than_in_whole_blocks() -> None:
    shape = Shape("x", 1, 24, 2, 64)
    assert 295 * shape.bytes_per_token(KVDtype.FP16) == 3_624_960
    assert -(-295 // 32) * shape.block_bytes(KVDtype.FP16) == 3_932_160


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((0, 1, 1, 1), "--params"),
        ((10**20, 1, 1, 1), "--params"),
        ((1, 0, 1, 1), "--layers"),
        ((1, 1, 1 << 30, 1), "--kv-heads"),
        ((1, 1, 1, 0), "--head-dim"),
        ((1, 1, 4, 1, 6), "--heads 6 cannot share --kv-heads 4 evenly"),
    ],
)
def test_sizes_that_no_model_has_are_refused(sizes: tuple[int, ...], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        Shape("x", *sizes)


def test_keys_and_values_alone_need_far_fewer_parameters_than_a_usual_model_has() -> None:
    for shape in EXAMPLES:
        assert shape.least_parameters < shape.parameters / 10
    assert EXAMPLES[1].least_parameters == 40 * (40 * 128 * 128) * 2
