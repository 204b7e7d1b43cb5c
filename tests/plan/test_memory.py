"""The memory plan: nothing overlaps, everything is counted, and the allocator obeys it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

import tiny
from farthing.backends.native import NativeBackend
from farthing.core import ActivationMode, DoesNotFitError, KVDtype, RequestError
from farthing.plan.memory import (
    MemoryPlan,
    bytes_per_token,
    kv_dtypes,
    plan_memory,
    require_room,
)
from native_steps import model_at


def lifetimes(plan: MemoryPlan) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for index, stage in enumerate(plan.stages):
        spans[stage.output] = (index, index)
        for name in stage.reads:
            spans[name] = (spans[name][0], index)
    for name in (plan.stages[-1].output, *plan.taps):
        spans[name] = (spans[name][0], len(plan.stages))
    return spans


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("activations", [None, ActivationMode.BF16])
def test_values_alive_together_share_no_byte(
    family: str, activations: ActivationMode | None
) -> None:
    plan = plan_memory(model_at(tiny.shared(family, "gguf", "Q4_0")), activations=activations)
    spans = lifetimes(plan)
    places = plan.arena.values
    for a, b in combinations(places, 2):
        first, second = sorted((a, b), key=lambda name: spans[name][0])
        # A value may take over the memory of one that ends in the stage that makes it; which
        # stages may do so is tested by the numbers of every family.
        if spans[first][1] <= spans[second][0]:
            continue
        start, end = places[a].offset, places[a].offset + places[a].bytes
        assert end <= places[b].offset or places[b].offset + places[b].bytes <= start, (a, b)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_values_kept_to_the_end_share_no_byte_with_any_other(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q4_0"))
    every = [stage.output for stage in plan_memory(model).stages]
    for taps in (every[1:4], every):
        plan = plan_memory(model, taps=taps)
        spans = lifetimes(plan)
        places = plan.arena.values
        for name in taps:
            assert places[name].mode is None
            start, end = places[name].offset, places[name].offset + places[name].bytes
            assert end - start >= 4 * places[name].width * plan.step_rows
            for other, place in places.items():
                if other != name and spans[other][1] > spans[name][0]:
                    assert end <= place.offset or place.offset + place.bytes <= start, other
        assert plan.arena.total_bytes >= sum(places[name].bytes for name in taps)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_stage_never_writes_over_what_its_product_reads(family: str) -> None:
    plan = plan_memory(model_at(tiny.shared(family, "gguf", "Q4_0")))
    places = plan.arena.values
    checked = 0
    for stage in plan.stages:
        source = getattr(stage, "source", None)
        if source is None:
            continue
        read, written = places[source.value], places[stage.output]
        assert (
            read.offset + read.bytes <= written.offset
            or written.offset + written.bytes <= read.offset
        )
        checked += 1
    assert checked > 0


def test_weights_follow_one_another_without_overlap() -> None:
    plan = plan_memory(model_at(tiny.shared("llama3", "gguf", "Q4_1")))
    end = 0
    for place in sorted(plan.weights.values(), key=lambda place: place.offset):
        assert place.offset >= end
        assert place.offset % 64 == 0
        end = place.offset + place.bytes
    assert end <= plan.weight_bytes < end + 64


def _mapped_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmSize:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("kv_dtype", [KVDtype.FP16, KVDtype.INT8, KVDtype.INT4_KEYS])
@pytest.mark.parametrize("taps", [(), ("embedding", "layers.1.activated")])
def test_the_allocator_takes_what_the_plan_says(kv_dtype: KVDtype, taps: tuple[str, ...]) -> None:
    model = model_at(tiny.shared("llama3", "gguf", "Q4_1"))
    # Large enough that the interpreter's own growth does not matter.
    plan = plan_memory(
        model, sequences=3000, kv_dtype=kv_dtype, threads=1, step_tokens=512, taps=taps
    )
    assert plan.total_bytes > 400 << 20
    before = _mapped_bytes()
    backend = NativeBackend(model, plan)
    grown = _mapped_bytes() - before
    assert plan.total_bytes <= grown < plan.total_bytes + (16 << 20)
    assert backend.cache_bytes().shape == (plan.total_blocks, plan.block_bytes)
    backend.close()
    assert _mapped_bytes() - before < 16 << 20


def test_the_default_models_cache_is_the_formulas(smollm2_path: Path) -> None:
    model = model_at(smollm2_path)
    plan = plan_memory(model, context_length=2048, sequences=32, kv_dtype=KVDtype.FP16)
    assert bytes_per_token(model.program, KVDtype.FP16) == 23_040
    assert plan.block_bytes == 32 * 23_040
    assert plan.cache_bytes == 32 * 2048 * 23_040
    assert plan.weight_bytes < 1.02 * 98_362_432


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"context_length": 1025}, "1024"),
        ({"context_length": 0}, "context"),
        ({"threads": 0}, "threads"),
        ({"sequences": 0}, "sequences"),
        ({"cache_tokens": 0}, "cache_tokens"),
        ({"slots": 0}, "slots"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        plan_memory(model_at(tiny.shared("llama")), **settings)


@pytest.mark.parametrize(
    ("settings", "cache_tokens", "slots"),
    [
        ({}, 1024, 32),
        ({"sequences": 3}, 3072, 32),
        ({"sequences": 40, "context_length": 33}, 40 * 64, 40),
        ({"cache_tokens": 1}, 32, 32),
        ({"cache_tokens": 65, "sequences": 4}, 96, 32),
        ({"cache_tokens": 50_000, "slots": 2}, 50_016, 2),
        ({"slots": 600}, 1024, 600),
    ],
    ids=str,
)
def test_the_cache_is_whole_blocks_and_every_slot_has_a_row_and_a_token(
    settings: dict[str, int], cache_tokens: int, slots: int
) -> None:
    plan = plan_memory(model_at(tiny.shared("llama")), **settings)
    assert (plan.cache_tokens, plan.slots) == (cache_tokens, slots)
    assert plan.cache_bytes == cache_tokens // 32 * plan.block_bytes
    assert plan.step_rows == slots
    assert plan.step_tokens == max(512, slots)


def advice(plan: MemoryPlan, room: int) -> str:
    with pytest.raises(DoesNotFitError) as caught:
        require_room(plan, room)
    return str(caught.value).rpartition("available: ")[2]


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_a_plan_that_does_not_fit_is_told_the_largest_cache_that_does(left: float) -> None:
    model = model_at(tiny.shared("llama"))
    plan = plan_memory(model, threads=1, cache_tokens=100_000)
    room = plan.process_bytes + plan.total_bytes - plan.cache_bytes + int(left * plan.cache_bytes)
    found = re.search(r"a cache of (\d+) tokens fits \(--cache-tokens (\d+)\)", advice(plan, room))
    assert found is not None
    assert found[1] == found[2]
    tokens = int(found[1])
    require_room(plan_memory(model, threads=1, cache_tokens=tokens), room)
    with pytest.raises(DoesNotFitError):
        require_room(plan_memory(model, threads=1, cache_tokens=tokens + 1), room)


def test_a_plan_for_one_whole_context_is_told_a_shorter_one() -> None:
    model = model_at(tiny.shared("llama"))
    plan = plan_memory(model, threads=1)
    room = plan.process_bytes + plan.total_bytes - plan.cache_bytes // 2
    found = re.search(r"--context (\d+), or --cache-tokens \1 where", advice(plan, room))
    assert found is not None
    require_room(plan_memory(model, threads=1, context_length=int(found[1])), room)


def test_int8_is_offered_only_to_a_cache_that_is_not_int8() -> None:
    for kv_dtype in KVDtype:
        plan = plan_memory(model_at(tiny.shared("llama")), threads=1, kv_dtype=kv_dtype)
        said = advice(plan, plan.process_bytes + plan.total_bytes - 1)
        assert ("--kv-dtype int8" in said) == (kv_dtype not in (KVDtype.INT8, KVDtype.INT4_KEYS))


def test_where_no_cache_fits_fewer_slots_are_advised_only_if_they_could_help() -> None:
    model = model_at(tiny.shared("llama"))
    plan = plan_memory(model, threads=1, slots=4000)
    least = plan_memory(model, threads=1, slots=1, cache_tokens=32)
    room = least.needed_bytes + (plan.needed_bytes - least.needed_bytes) // 2 - plan.cache_bytes
    assert advice(plan, room).startswith("no cache fits: use fewer slots (--slots), or a smaller")
    require_room(least, room)
    hopeless = least.process_bytes + plan.weight_bytes
    for slots in (4000, 1):
        plan = plan_memory(model, threads=1, slots=slots)
        assert advice(plan, hopeless) == (
            "no cache fits: use a smaller or more strongly quantised model"
        )


def test_a_cache_that_cannot_hold_the_models_heads_is_refused_with_those_that_can() -> None:
    model = model_at(tiny.shared("llama"))
    heads = replace(model.program.cache[0], head_dim=80)
    odd = replace(model, program=replace(model.program, cache=(heads,)))
    with pytest.raises(RequestError, match="heads of 80 .* use --kv-dtype fp32, fp16, bf16, int8$"):
        plan_memory(odd, kv_dtype=KVDtype.INT4_KEYS)
    assert kv_dtypes(model.program) == tuple(KVDtype)
