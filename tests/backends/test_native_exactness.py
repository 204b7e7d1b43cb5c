"""The exactness contract as bits: a token's logits are a function of its prefix alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiny
from farthing import _native
from farthing.backends.native import NativeBackend
from farthing.core import KVDtype
from farthing.models.load import Model
from native_steps import logits_of, model_at, native, step

LENGTH = 1100  # five chunks of attention
IDS = tiny.token_ids(LENGTH)


def long_model(family: str, quant: str = "Q4_1") -> Model:
    """A tiny model that takes more positions than the others' tests need."""
    model = model_at(tiny.shared(family, "gguf", quant))
    return dataclasses.replace(model, config=dataclasses.replace(model.config, context_length=2048))


def long_native(model: Model, **settings: Any) -> NativeBackend:
    return native(model, context_length=1216, **settings)


@pytest.fixture(params=_native.available_tiers())
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FARTHING_ISA", request.param)
    return request.param


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("kv_dtype", list(KVDtype))
@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_logits_are_the_same_bits_for_any_chunks_threads_and_blocks(
    family: str, kv_dtype: KVDtype, tier: str
) -> None:
    model = long_model(family)
    whole = logits_of(long_native(model, kv_dtype=kv_dtype), IDS, chunks=[512])
    scattered = np.random.default_rng(1).permutation(38)[:35].tolist()
    for threads, chunks, blocks in (
        (1, [512], None),
        (2, [1, 2, 3, 5, 31, 67], scattered),
        (3, [129, 8], scattered[::-1]),
    ):
        backend = long_native(model, kv_dtype=kv_dtype, threads=threads)
        backend.cache_bytes()[:] = 0xFF  # what unused slots hold must not matter: all NaN
        assert same(whole, logits_of(backend, IDS, chunks, blocks)), (threads, chunks)


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32"])
def test_a_token_is_the_same_bits_in_a_batch_of_any_size(quant: str, tier: str) -> None:
    """Register tiles differ by the number of rows; what a row gets must not."""
    model = long_model("llama3", quant)
    prompts = [tiny.token_ids(1 + 7 * i % 40, seed=i) for i in range(64)]
    blocks = [[2 * i, 2 * i + 1] for i in range(64)]
    backend = native(model, sequences=64, context_length=64)
    for prompt, table in zip(prompts, blocks, strict=True):
        backend.run(step([(prompt, 0, table)]))
    spans = [([9 + i], len(prompts[i]), blocks[i]) for i in range(64)]
    alone = np.concatenate([logits_in(backend, [span]) for span in spans])
    for size in (2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 27, 32, 64):
        first = 64 - size
        assert same(logits_in(backend, spans[first:]), alone[first:]), size


def logits_in(
    backend: NativeBackend, spans: list[tuple[list[int], int, list[int]]]
) -> NDArray[np.float32]:
    """Logits of all tokens of one step."""
    logits = backend.run(step(spans), want_logits=True).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_neighbours_in_a_step_change_no_bit(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q8_0"))
    prompts = [tiny.token_ids(length, seed=length) for length in (1, 40, 33, 7, 100, 64, 2, 90)]
    alone = [logits_of(native(model), prompt) for prompt in prompts]
    backend = native(model, sequences=8)
    blocks = [list(range(32 * i, 32 * i + 4)) for i in range(8)]
    order = [3, 7, 0, 5, 1, 6, 2, 4]
    together = logits_in(backend, [(prompts[i], 0, blocks[i]) for i in order])
    parts = np.split(together, np.cumsum([len(prompts[i]) for i in order])[:-1])
    for i, part in zip(order, parts, strict=True):
        assert same(part, alone[i]), i
    # And one more token of each, in a step of eight.
    more = logits_in(backend, [([9], len(prompts[i]), blocks[i]) for i in order])
    for row, i in enumerate(order):
        assert same(more[row], logits_of(native(model), [*prompts[i], 9])[-1]), i


def test_merging_chunks_in_reverse_changes_bits() -> None:
    """The comparison above can fail: a broken order is seen, split over chunks or not."""
    model = long_model("llama3")
    right = logits_of(long_native(model), IDS, chunks=[100])
    for threads, chunks in ((1, [100]), (2, [1])):
        backend = long_native(model, threads=threads)
        backend.set_fault("reverse_merge", True)
        wrong = logits_of(backend, IDS, chunks)
        assert same(wrong[:256], right[:256])
        assert not same(wrong[512:], right[512:]), threads


def test_one_flipped_bit_of_the_cache_changes_later_logits() -> None:
    model = model_at(tiny.shared("llama3", "gguf", "Q4_1"))
    backend = native(model)
    right = logits_of(backend, IDS[:64])
    backend.cache_bytes()[0, 100] ^= 0x40
    again = logits_in(backend, [(IDS[40:64], 40, [0, 1])])
    assert not same(again, right[40:64])
