"""What measures the machine's limits does all the work that it is timed for."""

from __future__ import annotations

import numpy as np
import pytest

from farthing import _native
from farthing.backends.ceilings import Ceilings
from farthing.core import ActivationMode, FarthingError
from matrix_kernels import TIERS

kernels = _native.kernels
PAGE = 4096


@pytest.mark.parametrize("ahead", [0, 64, 2048])
@pytest.mark.parametrize("tier", TIERS)
def test_every_byte_is_read(tier: str, ahead: int) -> None:
    words = np.random.default_rng(1).integers(-(2**31), 2**31, 9 * kernels.read_turn // 4)
    data = words.astype(np.int32)
    expected = np.array(data.sum(dtype=np.int64), np.int64).astype(np.int32)
    assert kernels.read_all(tier, data.view(np.uint8), ahead) == expected
    for changed in (0, 15, 16, len(data) // 2, len(data) - 1):
        other = data.copy()
        other[changed] ^= 1
        assert kernels.read_all(tier, other.view(np.uint8), ahead) != expected


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("tier", TIERS)
def test_multiply_accumulates_are_counted_by_round_and_by_mode(tier: str, mode: int) -> None:
    one = kernels.multiply(tier, mode, 1)
    assert one > 0
    assert kernels.multiply(tier, mode, 7) == 7 * one
    assert kernels.multiply(tier, mode, 0) == 0
    # A load of weights holds 1 fp32, 2 bf16 or 4 int8 inputs of each output; int8 takes two a step.
    assert one == kernels.multiply(tier, 0, 1) * (1, 2, 8)[mode]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tier", TIERS)
def test_every_ceiling_is_positive_on_every_tier(tier: str, threads: int) -> None:
    ceilings = _native.Ceilings(tier, threads, 3 * threads * PAGE + 5)
    assert ceilings.tier == tier
    assert ceilings.bytes == 3 * threads * PAGE
    for huge_pages in (False, True):
        assert ceilings.read(huge_pages, 0) > 0
        assert ceilings.read(huge_pages, 2048) > 0
    assert all(ceilings.multiply(mode, 1e-4) > 0 for mode in range(3))


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="a page for each thread"):
        _native.Ceilings("scalar", 2, PAGE)
    with pytest.raises(ValueError, match="a page for each thread"):
        _native.Ceilings("scalar", 0, PAGE)
    with pytest.raises(ValueError, match="sse9"):
        _native.Ceilings("sse9", 1, PAGE)
    ceilings = _native.Ceilings("scalar", 1, PAGE)
    with pytest.raises(ValueError, match="behind a load"):
        ceilings.read(False, -64)
    for mode in (-1, 3):
        with pytest.raises(ValueError, match="no such mode"):
            ceilings.multiply(mode, 1e-4)
    with pytest.raises(ValueError, match="whole turns"):
        kernels.read_all("scalar", np.zeros(kernels.read_turn - 1, np.uint8), 0)


def test_the_ceilings_are_those_of_the_tier_that_the_backend_would_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARTHING_ISA", TIERS[0])
    ceilings = Ceilings(threads=2, buffer_bytes=1 << 20)
    assert ceilings.tier == TIERS[0]
    assert ceilings.buffer_bytes == 1 << 20
    reads = ceilings.read()
    assert list(reads) == ["plain", "prefetched", "huge_pages", "huge_pages_prefetched"]
    assert min(reads.values()) > 0
    products = ceilings.multiply()
    assert set(products) == set(ActivationMode)
    assert min(products.values()) > 0
    ceilings.close()
    monkeypatch.setenv("FARTHING_ISA", "sse9")
    with pytest.raises(FarthingError, match="sse9"):
        Ceilings(threads=2, buffer_bytes=1 << 20)
