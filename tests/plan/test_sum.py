"""The sum's parts are all of the plan, each once; and the plan is what is allocated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tiny
from farthing.backends.native import NativeBackend
from farthing.core import DoesNotFitError, KVDtype, UnsupportedModelError
from farthing.files.formats import stored_bytes
from farthing.plan.memory import bytes_per_token, plan_memory, require_room
from farthing.plan.sum import plan_sum
from native_steps import model_at


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("kv_dtype", list(KVDtype))
@pytest.mark.parametrize("threads", [1, 2])
def test_the_parts_are_all_of_the_plan_and_nothing_twice(
    family: str, kv_dtype: KVDtype, threads: int
) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q4_0"))
    plan = plan_memory(model, sequences=7, kv_dtype=kv_dtype, threads=threads)
    memory = plan_sum(plan, model.program, file_bytes=10, reserve=64, prefix_store=1 << 40)
    assert memory.group("weights") == plan.weight_bytes
    assert memory.group("cache") == plan.cache_bytes
    assert memory.group("working") == plan.arena.total_bytes
    assert memory.group("process") == plan.process_bytes
    assert memory.total == plan.needed_bytes + 64
    assert all(part.bytes >= 0 for part in memory.parts)
    assert all(part.detail for part in memory.parts)


def test_what_a_file_stands_behind_is_told_and_not_counted() -> None:
    model = model_at(tiny.shared("llama"))
    plan = plan_memory(model, threads=1)
    plain, more = (
        plan_sum(plan, model.program, file_bytes=file, prefix_store=store)
        for file, store in ((0, 0), (1 << 30, 1 << 20))
    )
    assert more.total == plain.total
    told = {part.name: (part.kind, part.bytes) for part in more.parts[len(plain.parts) :]}
    assert told == {
        "the model's file": ("page cache", 1 << 30),
        "prefix store": ("disk", min(1 << 20, plan.cache_bytes)),
    }


def test_each_figure_says_how_it_is_known() -> None:
    model = model_at(tiny.shared("llama"))
    memory = plan_sum(plan_memory(model, threads=1), model.program, reserve=1)
    bases = {part.group: part.basis for part in memory.parts}
    assert bases == {
        "weights": "derived",
        "cache": "derived",
        "working": "derived",
        "process": "measured",
        "reserve": "assumed",
    }


def test_a_model_with_windows_keeps_what_the_allocator_keeps(gemma3_path: Path) -> None:
    """Formulas that take hidden size / heads for a head, or all layers alike, are far off here."""
    model = model_at(gemma3_path)
    config = model.config
    plan = plan_memory(model, context_length=4096, sequences=3, kv_dtype=KVDtype.FP16)
    layers = [part for part in plan_sum(plan, model.program).parts if part.group == "cache"]
    assert [part.bytes for part in layers] == [
        count * 2 * config.kv_heads * config.head_dim * 2 * 3 * 4096 for count in (15, 3)
    ]
    assert "latest 512" in layers[0].detail
    assert "latest" not in layers[1].detail
    naive = 2 * config.layers * config.heads * (config.hidden_size // config.heads) * 2
    assert naive / bytes_per_token(model.program, KVDtype.FP16) == 2.5


def test_weights_are_near_what_the_file_stores(smollm2_path: Path, gemma3_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        model = model_at(path)
        stored = sum(
            stored_bytes(model.formats[name], weight.shape)
            for name, weight in model.program.weights.items()
        )
        assert stored <= plan_memory(model).weight_bytes < 1.02 * stored


def _mapped_bytes() -> int:
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("kv_dtype", list(KVDtype))
def test_the_native_backend_takes_every_familys_plan_to_the_byte(
    family: str, kv_dtype: KVDtype
) -> None:
    model = model_at(tiny.shared(family, "gguf", "Q4_0"))
    plan = plan_memory(model, sequences=300, kv_dtype=kv_dtype, threads=1)
    before = _mapped_bytes()
    backend = NativeBackend(model, plan)
    grown = _mapped_bytes() - before
    try:
        assert backend.cache_bytes().nbytes == plan.cache_bytes
        assert backend._program.weight_bytes().nbytes == plan.weight_bytes
        assert plan.total_bytes <= grown < plan.total_bytes + (8 << 20)
    finally:
        backend.close()


def test_a_plan_that_says_no_is_refused_with_its_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_at(tiny.shared("llama"))
    plan = plan_memory(model, threads=1, sequences=100)
    memory = plan_sum(plan, model.program)
    room = memory.total - 1
    monkeypatch.setattr("farthing.plan.memory.available_memory", lambda: room)
    with pytest.raises(DoesNotFitError) as refused:
        NativeBackend(model, plan)
    said = str(refused.value)
    for size in (memory.total, *memory.groups().values()):
        assert f"{size / 2**20:,.0f}" in said
    require_room(plan, memory.total)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "deepseek_v3", "kv_lora_rank": 512},
        {"model_type": "mamba2"},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"attn_logit_softcapping": 50.0, "model_type": "llama"},
        {"num_local_experts": 8},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_an_unknown_kind_of_attention_is_refused_not_guessed(
    changes: dict[str, object], tmp_path: Path
) -> None:
    folder = tiny.shared("llama", "safetensors")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedModelError):
        model_at(tmp_path)
