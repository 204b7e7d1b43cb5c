"""The NEON tiers under an emulator: the bits of the AVX2 tier, which the other tests hold against
numpy, for every kernel; and exact integer sums against numpy itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attention_oracle
import matrix_kernels
import stored_rows
from attention_oracle import CACHE_TYPES, CODED, PagedCache, head_size, normal
from emulated_kernels import NEON_TIERS, EmulatedKernels, available_tiers, require_server
from farthing import _native
from matrix_kernels import (
    FORMATS,
    GROUP,
    MODES,
    QUANTISED,
    TIERS,
    TILE,
    Packed,
    Prepared,
    guarded,
    linear,
    mode_of,
    product,
    source_rows,
    whole_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

REFERENCE = "avx2"
pytestmark = pytest.mark.skipif(
    REFERENCE not in TIERS, reason="these tests compare with the AVX2 tier, which cannot run here"
)
tiers = pytest.mark.parametrize("tier", NEON_TIERS)
every_format = pytest.mark.parametrize("format_name", FORMATS)
cache_types = pytest.mark.parametrize("cache_type", CACHE_TYPES)

SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-39, 1.2e-38, 65504, 65520, 3.4e38, -3.4e38,
     6e-8, 5.96e-8, 2.98e-8, 1.5, 2.5, -0.5, 88.1, -87.4, -200, 1.00390625, 1.01171875],
    np.float32,
)  # fmt: skip


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedKernels]:
    require_server()
    kernels = EmulatedKernels()
    yield kernels
    kernels.close()


class Compare:
    """Runs the same work on a NEON tier and on the reference."""

    def __init__(self, kernels: EmulatedKernels) -> None:
        self.kernels = kernels

    def __call__(self, tier: str, work: Callable[[str], Any]) -> tuple[Any, Any]:
        """What `work` returns, given the reference's name and then the tier's."""
        expected = work(REFERENCE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matrix_kernels, "kernels", self.kernels)
            patch.setattr(attention_oracle, "kernels", self.kernels)
            return expected, work(tier)

    def calls(self, tier: str, name: str, *arguments: Any) -> None:
        """The last argument, an array that the kernel fills, must come out alike."""
        *given_, out = arguments
        expected, emulated = out.copy(), out.copy()
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in given_]
        getattr(_native.kernels, name)(REFERENCE, *given_, expected)
        getattr(self.kernels, name)(tier, *copies, emulated)
        assert_same(emulated, expected)


@pytest.fixture(scope="module")
def compare(emulated: EmulatedKernels) -> Compare:
    return Compare(emulated)


def assert_same(out: np.ndarray, expected: np.ndarray) -> None:
    """The same bits; a NaN is any NaN, since its sign is the processor's own affair."""
    assert out.shape == expected.shape
    if out.dtype.kind == "f":
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(out), nan)
        out, expected = out[~nan], expected[~nan]
    assert out.tobytes() == expected.tobytes()


def floats(count: int, seed: int, special: bool = True) -> np.ndarray:
    """Numbers of every magnitude, and some that are none."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(0, 1, count) * 10.0 ** rng.integers(-6, 3, count)).astype(np.float32)
    if special:
        places = rng.permutation(count)[: count // 4]
        x[places] = rng.choice(SPECIAL, len(places))
    return x


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ("cortex-a57", ["scalar"]),
        ("cortex-a76", ["scalar", "neon-dotprod"]),
        ("max", ["scalar", "neon-dotprod", "neon-i8mm"]),
    ],
)
def test_the_processors_features_decide_which_tiers_run(processor, expected):
    require_server()
    assert available_tiers(processor) == expected


def test_a_kernel_that_writes_past_its_array_ends_the_emulation():
    require_server()
    broken = EmulatedKernels()
    row, short = np.ones(64, np.float32), np.ones(60, np.float32)
    with pytest.raises(AssertionError, match="died"):
        broken.add("neon-i8mm", row, row, short)


@tiers
@every_format
@pytest.mark.parametrize("shape", [(1, 32), (17, 96), (48, 576)])
def test_packed_bytes_and_decoded_rows_are_the_references(compare, tier, format_name, shape):
    outputs, inputs = shape[0], whole_inputs(format_name, shape[1])
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(1))

    def work(name: str) -> tuple[np.ndarray, np.ndarray]:
        packed = Packed.of(name, format_name, source, inputs)
        return packed.data, packed.unpack()

    expected, out = compare(tier, work)
    assert_same(out[0], expected[0])
    assert_same(out[1], expected[1])


@tiers
def test_every_half_is_decoded_alike(compare, tier):
    halves = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(64, -1)
    expected, out = compare(tier, lambda name: Packed.of(name, "F16", halves, 1024).unpack())
    assert_same(out, expected)


@tiers
@pytest.mark.parametrize(
    ("mode", "scale"), [*((mode, 0.0) for mode in MODES), ("INT8", 0.01), ("INT8", 3.0)]
)
@pytest.mark.parametrize("special", [False, True])
def test_prepared_rows_are_the_references(compare, tier, mode, scale, special):
    x = floats(9 * 480, 2, special).reshape(9, 480)
    expected, out = compare(
        tier, lambda name: Prepared.of(name, mode, x, [32, 96], fixed_scale=scale)
    )
    if mode != "BF16":
        assert_same(out.values, expected.values)
    else:
        nan = (expected.values & 0x7FFF) > 0x7F80
        assert np.array_equal((out.values & 0x7FFF) > 0x7F80, nan)
        assert np.array_equal(out.values[~nan], expected.values[~nan])
    if mode == "INT8":
        assert_same(out.scale, expected.scale)
        assert_same(out.scaled_sum, expected.scaled_sum)
        assert_same(out.negative_sum, expected.negative_sum)
        assert_same(out.negative_half_sum, expected.negative_half_sum)


@tiers
@every_format
@settings(max_examples=12)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 384),
    seed=st.integers(0, 99),
)
def test_products_are_the_references(compare, tier, format_name, rows, outputs, inputs, seed):
    inputs = whole_inputs(format_name, inputs)
    source = source_rows(format_name, outputs, inputs, np.random.default_rng(seed))
    x = floats(rows * inputs, seed, special=False).reshape(rows, inputs)
    expected, out = compare(
        tier, lambda name: product(Packed.of(name, format_name, source, inputs), x)
    )
    assert_same(out, expected)


@tiers
@every_format
@pytest.mark.parametrize(
    ("row_bounds", "tile_bounds"),
    [([0, 1, 2, 5, 12, 23], [0, 1, 3, 7]), ([0, 7, 23], [0, 2, 4, 6, 7])],
)
def test_the_bits_do_not_depend_on_how_rows_and_tiles_are_cut(
    compare, tier, format_name, row_bounds, tile_bounds
):
    inputs = whole_inputs(format_name, 96)
    source = source_rows(format_name, 7 * TILE - 3, inputs, np.random.default_rng(3))
    x = floats(23 * inputs, 4, special=False).reshape(23, inputs)

    def work(name: str) -> tuple[np.ndarray, np.ndarray]:
        packed = Packed.of(name, format_name, source, inputs)
        prepared = Prepared.of(name, mode_of(format_name), x)
        return linear(packed, prepared), linear(packed, prepared, row_bounds, tile_bounds)

    _, (whole, cut) = compare(tier, work)
    assert_same(cut, whole)


@tiers
@pytest.mark.parametrize("format_name", QUANTISED)
@pytest.mark.parametrize("codes", ["random", "smallest", "largest"])
def test_sums_within_a_group_are_exact_integers(compare, tier, format_name, codes):
    """With scales of one, every product is an integer below 2^24: no bit may be lost."""
    rng = np.random.default_rng(5)
    rows, outputs, inputs = 9, 53, whole_inputs(format_name, 96)
    source = source_rows(format_name, outputs, inputs, rng)
    source = stored_rows.with_unit_scales(format_name, source, inputs)
    if codes != "random":
        source = stored_rows.with_codes(format_name, source, inputs, codes == "smallest")
    x = rng.integers(-127, 128, (rows, inputs)).astype(np.float32)
    x[:, ::GROUP] = 127  # so that the scale of every group is one
    x[0], x[1] = 127, -127
    _, out = compare(tier, lambda name: product(Packed.of(name, format_name, source, inputs), x))
    exact = x.astype(np.int64) @ stored_rows.multiplied(format_name, source, inputs).T
    assert np.array_equal(out, exact)


@tiers
@pytest.mark.parametrize("count", [1, 15, 16, 17, 64, 576, 1000])
@pytest.mark.parametrize("special", [False, True])
def test_operations_on_rows_are_the_references(compare, tier, count, special):
    a, b = floats(count, 6, special), floats(count, 7, special)
    out = np.full(count, 7, np.float32)
    compare.calls(tier, "rmsnorm", a, b, 1e-5, out)
    compare.calls(tier, "scale", a, -0.37, out)
    for name in ("add", "swiglu", "geglu"):
        compare.calls(tier, name, a, b, out)


@tiers
@pytest.mark.parametrize("position", [0, 1, 511, 131_071])
@pytest.mark.parametrize("count", [4, 16, 24, 32, 64])
def test_rotations_are_the_references(compare, tier, position, count):
    frequencies = 10_000.0 ** (-np.arange(count) / count)

    def work(kernels: Any, name: str) -> tuple[np.ndarray, ...]:
        cosine, sine = np.empty((2, count), np.float32)
        x = normal(8, 2 * count)
        kernels.angles(name, position, frequencies, cosine, sine)
        kernels.rope(name, x, cosine, sine)
        return cosine, sine, x

    expected = work(_native.kernels, REFERENCE)
    for out, wanted in zip(work(compare.kernels, tier), expected, strict=True):
        assert_same(out, wanted)


@tiers
@cache_types
@pytest.mark.parametrize("head_dim", [8, 24, 64, 256])
def test_cached_keys_and_values_are_the_references(compare, tier, cache_type, head_dim):
    head_dim = head_size(cache_type, head_dim)
    special = cache_type not in CODED  # whose scale no infinity survives
    tokens = floats(4 * head_dim, 9, special).reshape(2, 2, head_dim)
    expected, out = compare(
        tier, lambda name: PagedCache.of(name, cache_type, *tokens, spare_blocks=0).pool
    )
    if cache_type == "fp32":
        out, expected = out.view(np.float32), expected.view(np.float32)
    assert_same(out, expected)


@tiers
@cache_types
@settings(max_examples=15)
@given(
    head_dim=st.sampled_from([8, 24, 64, 80, 128]),
    group=st.integers(1, 9),
    queries=st.integers(1, 20),
    first_position=st.integers(0, 400),
    window=st.one_of(st.just(0), st.integers(1, 500)),
    seed=st.integers(0, 1000),
)
def test_attention_is_the_references(
    compare, tier, cache_type, head_dim, group, queries, first_position, window, seed
):
    head_dim = head_size(cache_type, head_dim)
    keys, values = normal(seed, 2, first_position + queries, head_dim)
    query = normal(seed + 1, queries, group, head_dim)

    def work(name: str) -> np.ndarray:
        # Filled by the reference, so that only attention itself is emulated.
        return PagedCache(name, cache_type, head_dim, cache.pool, cache.table).attend(
            query, first_position, window=window
        )

    cache = PagedCache.of(REFERENCE, cache_type, keys, values, seed=seed)
    expected, out = compare(tier, work)
    assert_same(out, expected)


@tiers
@pytest.mark.parametrize("count", [1, 16, 63, 64, 65, 1000])
@pytest.mark.parametrize("special", [False, True])
def test_sampling_arithmetic_is_the_references(compare, tier, count, special):
    x = floats(count, 10, special)
    kernels = compare.kernels
    assert kernels.argmax(tier, x) == _native.kernels.argmax(REFERENCE, x)
    shift = float(np.nanmax(x, initial=-np.inf))
    total = _native.kernels.sum_exp(REFERENCE, x, shift)
    assert kernels.sum_exp(tier, x, shift) == total or np.isnan(total)


@tiers
@pytest.mark.parametrize("least", [-np.inf, 0.0, 4.0])
def test_noise_is_the_references(compare, tier, least):
    for first in range(0, 64 * 200, 64):
        with guarded(64, np.float32) as noise:
            noise[:] = 0
            compare.calls(tier, "gumbel", 2**63 + 11, 2**31 + 5, 9, first, least, noise)


@tiers
@pytest.mark.parametrize("ahead", [0, 2048])
def test_a_read_adds_up_what_the_reference_adds(emulated, tier, ahead):
    data = np.random.default_rng(12).integers(0, 256, 5 * 512, np.uint8)
    expected = _native.kernels.read_all(REFERENCE, data, ahead)
    assert emulated.read_all(tier, data, ahead) == expected


@tiers
@pytest.mark.parametrize("mode", MODES.values())
def test_multiply_accumulates_are_counted_by_round(emulated, tier, mode):
    one = emulated.multiply(tier, mode, 1)
    assert one > 0
    assert emulated.multiply(tier, mode, 7) == 7 * one
