"""What every backend does to whole blocks of cache: copies them, shows them, says what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tiny
from farthing import _native
from farthing.backends.native import NativeBackend
from farthing.backends.null import NullBackend
from farthing.backends.torch import TorchBackend
from farthing.core import ActivationMode, KVDtype
from native_steps import logits_of, model_at, native, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from farthing.backends import Backend

TOKENS = tiny.token_ids(70)


def hashing(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    return np.random.default_rng(prefix.tolist()).normal(size=tiny.VOCABULARY).astype(np.float32)


BACKENDS: dict[str, Callable[[], Backend]] = {
    "native": lambda: native(model_at(tiny.shared("llama3")), threads=1),
    "native int8": lambda: native(
        model_at(tiny.shared("gemma3")), threads=1, kv_dtype=KVDtype.INT8
    ),
    "torch": lambda: TorchBackend(model_at(tiny.shared("llama3")), total_blocks=32),
    "torch fp16": lambda: TorchBackend(
        model_at(tiny.shared("gemma3")), KVDtype.FP16, total_blocks=32
    ),
    "torch recomputing": lambda: TorchBackend(
        model_at(tiny.shared("llama3")), recompute=True, total_blocks=32
    ),
    "null": lambda: NullBackend(hashing, tiny.VOCABULARY, max_step_rows=512),
}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Callable[[], Backend]:
    return BACKENDS[request.param]


def test_copied_blocks_serve_as_those_they_are_copies_of(make: Callable[[], Backend]) -> None:
    backend = make()
    logits_of(backend, TOKENS[:40], blocks=[3, 5])
    wanted = backend.run(step([(TOKENS[40:], 40, [3, 5, 6])]), want_logits=True).logits
    # One after another: block 7 gets what 5 had before 5 is written over.
    copies = np.array([[3, 9], [5, 7], [3, 5]], np.int32)
    plan = replace(step([(TOKENS[40:], 40, [9, 7, 8])]), copies=copies)
    found = backend.run(plan, want_logits=True).logits
    assert np.array_equal(found, wanted)
    assert np.array_equal(backend.cache_bytes()[3], backend.cache_bytes()[5])


def test_a_copy_may_be_written_to_while_the_original_is_read(make: Callable[[], Backend]) -> None:
    backend, alone = make(), make()
    logits_of(backend, TOKENS[:40], blocks=[3, 5])
    logits_of(alone, TOKENS[:40], blocks=[3, 5])
    other = TOKENS[50:60]
    copies = np.array([[5, 7]], np.int32)
    both = replace(step([(TOKENS[40:45], 40, [3, 5]), (other, 36, [3, 7])]), copies=copies)
    found = backend.run(both, want_logits=True).logits
    wanted = [
        alone.run(step([(TOKENS[40:45], 40, [3, 5])]), want_logits=True).logits,
        alone.run(step([(other, 36, [3, 5])]), want_logits=True).logits,
    ]
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("copy", [(0, -1), (-1, 0), (0, 1 << 20), (1 << 20, 0)])
def test_a_copy_of_what_is_no_block_raises(make: Callable[[], Backend], copy: Any) -> None:
    backend = make()
    plan = replace(step([(TOKENS[:3], 0, [0])]), copies=np.array([copy], np.int32))
    with pytest.raises(ValueError, match="the copies name others"):
        backend.run(plan)


def test_the_bytes_of_blocks_can_be_moved_to_another_backend(make: Callable[[], Backend]) -> None:
    backend, other = make(), make()
    logits_of(backend, TOKENS[:64], blocks=[3, 5])
    assert backend.cache_bytes().shape[0] == backend.total_blocks
    assert backend.cache_bytes().dtype == np.uint8
    other.cache_bytes()[[8, 2]] = backend.cache_bytes()[[3, 5]]
    wanted = backend.run(step([(TOKENS[64:], 64, [3, 5, 6])]), want_logits=True).logits
    found = other.run(step([(TOKENS[64:], 64, [8, 2, 0])]), want_logits=True).logits
    assert np.array_equal(found, wanted)
    assert dict(other.identity) == dict(backend.identity)


# --- what the bits depend on


def differing(one: Backend, other: Backend) -> set[str]:
    first, second = one.identity, other.identity
    assert first.keys() == second.keys()
    assert all(type(value) is str for value in (*first.values(), *second.values()))
    return {name for name in first if first[name] != second[name]}


def quantised(quant: str = "Q4_1", **settings: Any) -> Backend:
    return native(model_at(tiny.shared("llama3", "gguf", quant)), threads=1, **settings)


def test_threads_context_and_the_size_of_a_step_change_no_bit() -> None:
    path = tiny.shared("llama3", "gguf", "Q4_1")
    other = native(model_at(path), threads=2, context_length=320, step_rows=3, step_tokens=40)
    assert differing(quantised(), other) == set()


def test_each_setting_of_the_native_backend_shows_by_its_name() -> None:
    base = quantised()
    assert differing(base, quantised(kv_dtype=KVDtype.FP16)) == {"kv_dtype"}
    assert differing(base, quantised(kv_dtype=KVDtype.FP32)) == {"kv_dtype", "block"}
    wide = quantised(activations=ActivationMode.FP32)
    assert differing(base, wide) == {"activations", "formats", "model"}
    assert base.identity["formats"] == "Q4_1 as Q4_1"
    assert wide.identity["formats"] == "Q4_1 as F32"
    assert differing(base, quantised("Q4_0")) == {"formats", "model"}
    assert base.identity["kernels"] == _native.kernel_version


def test_each_tier_has_its_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARTHING_ISA", "scalar")
    scalar = quantised()
    for tier in _native.available_tiers():
        monkeypatch.setenv("FARTHING_ISA", tier)
        assert differing(scalar, quantised()) == ({"isa"} if tier != "scalar" else set())


def test_another_kernel_version_is_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    base = quantised()
    assert base.identity["kernels"]
    monkeypatch.setattr(NativeBackend, "kernel_version", "another")
    assert differing(base, quantised()) == {"kernels"}


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_one_other_weight_is_another_model(kind: str) -> None:
    def made(change: float) -> Backend:
        model = model_at(tiny.shared("llama3"))
        name = "layers.1.down.weight"
        tensor = model.tensors[name]
        numbers = tensor.data.view(np.float32).copy()
        numbers[1234] += change
        changed = replace(tensor, data=numbers.view(np.uint8))
        model = replace(model, tensors={**model.tensors, name: changed})
        return native(model, threads=1) if kind == "native" else TorchBackend(model)

    assert differing(made(0.0), made(0.0)) == set()
    assert differing(made(0.0), made(1e-3)) == {"model"}


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_the_same_weights_computed_otherwise_are_another_model(kind: str) -> None:
    def made(epsilon: float) -> Backend:
        model = model_at(tiny.shared("llama3"))
        ops = [
            replace(op, attributes={**op.attributes, "epsilon": epsilon})
            if op.kind == "rmsnorm"
            else op
            for op in model.program.ops
        ]
        model = replace(model, program=replace(model.program, ops=tuple(ops)))
        return native(model, threads=1) if kind == "native" else TorchBackend(model)

    assert differing(made(1e-5), made(1e-5)) == set()
    assert differing(made(1e-5), made(1e-6)) == {"model"}


def test_the_oracle_tells_its_caches_apart() -> None:
    model = model_at(tiny.shared("llama3"))
    assert differing(TorchBackend(model), TorchBackend(model, KVDtype.FP16)) == {"kv_dtype"}
    assert differing(TorchBackend(model), TorchBackend(model, recompute=True)) == {"block"}


def test_the_weights_can_be_seen_and_not_changed() -> None:
    backend = native(model_at(tiny.shared("llama3")), threads=1)
    weights = backend._program.weight_bytes()
    assert weights.shape == (backend.plan.weight_bytes,)
    assert not weights.flags.writeable
