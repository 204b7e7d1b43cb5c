"""Fusing: every operation runs exactly once, in an order that defines values before use."""

from __future__ import annotations

from collections import Counter

import pytest

import tiny
from farthing.models.program import Builder, Program
from farthing.plan.stages import (
    AttendStage,
    EmbedStage,
    GateStage,
    HeadsStage,
    LinearStage,
    RowStage,
    fuse,
)
from native_steps import model_at


def program_of(family: str) -> Program:
    return model_at(tiny.shared(family)).program


def kinds(program: Program) -> list[str]:
    return [
        stage.kind if isinstance(stage, RowStage) else type(stage).__name__
        for stage in fuse(program)
    ]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_operation_lands_in_a_stage_after_what_it_reads(family: str) -> None:
    program = program_of(family)
    defined: set[str] = set()
    seen: Counter[str] = Counter()
    for stage in fuse(program):
        assert defined.issuperset(stage.reads)
        for op in stage.ops:
            seen[op.output] += 1
        defined.add(stage.output)
    assert set(seen) == {op.output for op in program.ops}
    # Only a norm that several products read through is computed more than once.
    repeated = {name for name, count in seen.items() if count > 1}
    assert all(op.kind == "rmsnorm" for op in program.ops if op.output in repeated)


@pytest.mark.parametrize("family", ["llama", "llama3", "llama_bias", "mistral", "qwen2", "qwen3"])
def test_a_layer_of_a_plain_model_is_five_stages(family: str) -> None:
    program = program_of(family)
    layer = ["HeadsStage", "AttendStage", "LinearStage", "GateStage", "LinearStage"]
    assert kinds(program) == [
        "EmbedStage",
        *layer * len(program.cache),
        "rows",
        "LinearStage",
    ]


def test_a_layer_with_norms_after_its_products_adds_two_stages() -> None:
    program = program_of("gemma3")
    layer = [
        *("HeadsStage", "AttendStage", "LinearStage", "norm_add"),
        *("GateStage", "LinearStage", "norm_add"),
    ]
    assert kinds(program) == ["EmbedStage", *layer * len(program.cache), "rows", "LinearStage"]


def test_values_used_twice_are_not_fused_away() -> None:
    """A gate read by two operations, a rope read twice, a scale of an embedding read elsewhere."""
    b = Builder()
    x = b.op("embed", "x", (), (b.weight("table", 32, 64),))
    scaled = b.op("scale", "scaled", (x,), factor=2.0)
    both = b.op("add", "both", (x, scaled))
    gate = b.op("linear", "gate", (both,), (b.weight("gate", 64, 64),))
    up = b.op("linear", "up", (both,), (b.weight("up", 64, 64),))
    gated = b.op("swiglu", "gated", (gate, up))
    twice = b.op("add", "twice", (gated, gate))
    rotated = b.op("rope", "rotated", (twice,), head_dim=32, frequencies=(1.0, 0.5))
    attributes = {"layer": 0, "heads": 2, "kv_heads": 2, "head_dim": 32, "scale": 1.0, "window": 0}
    mixed = b.op("attend", "mixed", (rotated, rotated, twice), (), **attributes)
    normed = b.op("rmsnorm", "normed", (mixed,), (b.weight("gain", 64),), epsilon=1e-5)
    kept = b.op("add", "kept", (normed, mixed))
    wanted = b.op("rows", "wanted", (kept,))
    program = b.finish(b.op("logits", "logits", (wanted,), ("table",)))
    stages = fuse(program)
    assert [op.output for stage in stages for op in stage.ops] == [op.output for op in program.ops]
    assert [type(stage) for stage in stages] == [
        *(EmbedStage, RowStage, RowStage, LinearStage, LinearStage, RowStage, RowStage),
        *(RowStage, AttendStage, RowStage, RowStage, RowStage, LinearStage),
    ]
    assert not any(isinstance(stage, GateStage | HeadsStage) for stage in stages)
