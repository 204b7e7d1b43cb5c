from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import UnsupportedModelError
from farthing.files.checkpoint import open_checkpoint
from farthing.models.graph import (
    HEAD,
    LinearGroup,
    Origin,
    StreamReader,
    linear_groups,
    residual_stream,
    untied,
)
from farthing.models.load import load_model
from farthing.models.program import Builder, Program, check

if TYPE_CHECKING:
    from collections.abc import Callable


def program_of(family: str) -> Program:
    return load_model(open_checkpoint(tiny.shared(family))).program


def groups_of(program: Program) -> dict[str, LinearGroup]:
    return {group.value: group for group in linear_groups(program)}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_matrix_but_the_embedding_is_in_one_group(family: str) -> None:
    program = program_of(family)
    grouped = [name for group in linear_groups(program) for name in group.weights]
    products = [op.weights[0] for op in program.ops if op.kind in ("linear", "logits")]
    assert sorted(grouped) == sorted(products)
    for group in linear_groups(program):
        assert {program.weights[name].shape[1] for name in group.weights} == {group.width}
        assert (group.origin is None) == bool(group.reason)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_layer_has_four_groups_that_can_all_be_scaled(family: str) -> None:
    groups = groups_of(program_of(family))
    layer = "layers.1."
    found = {
        value.removeprefix(layer): [name.removeprefix(layer) for name in group.weights]
        for value, group in groups.items()
        if value.startswith(layer)
    }
    assert found == {
        "attention_norm": ["query.weight", "key.weight", "value.weight"],
        "attention": ["output.weight"],
        "mlp_norm": ["gate.weight", "up.weight"],
        "activated": ["down.weight"],
    }
    origins = {value: groups[layer + value].origin for value in found}
    assert {value: origin.kind for value, origin in origins.items() if origin} == {
        "attention_norm": "gain",
        "attention": "value",
        "mlp_norm": "gain",
        "activated": "up",
    }


def test_the_origin_of_attention_is_the_value_and_its_bias_shared_by_query_heads() -> None:
    origin = groups_of(program_of("llama_bias"))["layers.0.attention"].origin
    weights = ("layers.0.value.weight", "layers.0.value.bias")
    assert origin == Origin("value", weights, run=16, copies=2)
    origin = groups_of(program_of("mistral"))["layers.0.attention"].origin
    assert origin == Origin("value", ("layers.0.value.weight",), run=32, copies=4)


def test_a_head_of_its_own_can_be_scaled_and_a_tied_one_cannot() -> None:
    own = groups_of(program_of("llama"))["output_norm"]
    assert own.origin == Origin("gain", ("output_norm.weight",), run=64)
    tied = groups_of(program_of("qwen2"))["output_norm"]
    assert tied.origin is None
    assert tied.weights == ("embedding.weight",)
    assert tied.reason == "embedding.weight is used by more than one operation"


@given(run=st.integers(1, 5), runs=st.integers(1, 4), copies=st.integers(1, 4), data=st.data())
def test_spreading_and_gathering_follow_each_number_to_its_origin(
    run: int, runs: int, copies: int, data: st.DataObject
) -> None:
    origin = Origin("value", (), run, copies)
    entries = np.arange(runs * run)
    spread = origin.spread(entries)
    # As attention has it: query head h reads key-value head h // copies.
    for head in range(runs * copies):
        for i in range(run):
            assert spread[head * run + i] == (head // copies) * run + i
    gathered = origin.gather(spread)
    assert gathered.shape == (copies, runs * run)
    assert (gathered == entries).all()
    numbers = np.array(data.draw(st.permutations(range(runs * run * copies))))
    assert sorted(origin.gather(numbers).ravel()) == sorted(numbers)


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name != "gemma3"])
def test_the_stream_is_written_by_two_matrices_of_a_layer_and_read_by_five(family: str) -> None:
    program = program_of(family)
    stream = residual_stream(program)
    layers = len(program.cache)
    matrices = [name for name in stream.writers if name.endswith("weight")]
    assert matrices == [
        f"layers.{i}.{part}.weight" for i in range(layers) for part in ("output", "down")
    ]
    assert stream.tables == ("embedding.weight",)
    assert stream.width == program.weights["embedding.weight"].shape[1]
    read = {
        f"layers.{i}.{part}.weight": f"layers.{i}.{norm}.weight"
        for i in range(layers)
        for norm, parts in (("attention_norm", "query key value"), ("mlp_norm", "gate up"))
        for part in parts.split()
    }
    head = "embedding.weight" if stream.tied else HEAD
    assert stream.readers == tuple(
        StreamReader(*each) for each in {**read, head: "output_norm.weight"}.items()
    )
    assert stream.tied == (family in ("llama3", "qwen2"))
    assert {"embedding", "layers.0.attention_residual", "wanted"} <= set(stream.values)
    assert not {"output_norm", "layers.0.query", "layers.0.attention"} & set(stream.values)


def test_biases_of_writers_are_part_of_the_stream() -> None:
    assert "layers.1.down.bias" in residual_stream(program_of("llama_bias")).writers
    assert "layers.1.value.bias" not in residual_stream(program_of("llama_bias")).writers


def test_norms_after_a_product_keep_the_stream_from_being_rotated() -> None:
    with pytest.raises(
        UnsupportedModelError,
        match="layers.0.post_attention_norm stands after a product and before the sum",
    ):
        residual_stream(program_of("gemma3"))


def test_untying_gives_the_head_a_weight_of_its_own() -> None:
    program = program_of("llama3")
    changed = untied(program)
    check(changed)
    assert changed.ops[-1].weights == (HEAD,)
    assert changed.weights[HEAD].shape == program.weights["embedding.weight"].shape
    assert changed.ops[:-1] == program.ops[:-1]
    assert not residual_stream(changed).tied
    assert linear_groups(changed)[-1].origin is not None
    assert untied(changed) is changed


def built(middle: Callable[[Builder, str], str]) -> Program:
    """An embedding of width 4, `middle`, and a norm and a head."""
    b = Builder()
    x = b.op("embed", "x", (), (b.weight("table", 8, 4),))
    y = b.op("rows", "wanted", (middle(b, x),))
    normed = b.op("rmsnorm", "normed", (y,), (b.weight("gain", 4),), epsilon=1e-5)
    return b.finish(b.op("logits", "logits", (normed,), (b.weight("head", 8, 4),)))


def linear(b: Builder, x: str, output: str, weight: str) -> str:
    return b.op("linear", output, (x,), (b.weight(weight, 4, b.width(x)),))


def attend(b: Builder, query: str, key: str, value: str) -> str:
    return b.op(
        "attend",
        "mixed",
        (query, key, value),
        layer=0,
        heads=2,
        kv_heads=2,
        head_dim=2,
        scale=1.0,
        window=0,
    )


def test_a_matrix_may_read_the_stream_as_it_is_and_write_it() -> None:
    stream = residual_stream(built(lambda b, x: b.op("add", "sum", (x, linear(b, x, "y", "m")))))
    assert stream.writers == ("m",)
    assert StreamReader("m", None) in stream.readers


def test_what_works_on_single_dimensions_of_the_stream_is_refused() -> None:
    for middle in (
        lambda b, x: b.op("add", "sum", (x, b.op("swiglu", "g", (x, x)))),
        lambda b, x: b.op("add", "sum", (x, attend(b, x, x, x))),
        lambda b, x: b.op("add", "sum", (x, b.op("swiglu", "g", (linear(b, x, "y", "m"), x)))),
    ):
        with pytest.raises(UnsupportedModelError, match="works on its single dimensions"):
            residual_stream(built(middle))


def test_a_norm_of_parts_of_the_stream_is_refused() -> None:
    def middle(b: Builder, x: str) -> str:
        normed = b.op("rmsnorm", "parts", (x,), (b.weight("g", 2),), epsilon=1e-5)
        return b.op("add", "sum", (x, linear(b, normed, "y", "m")))

    program = built(middle)
    with pytest.raises(UnsupportedModelError, match="not of all 4 dimensions"):
        residual_stream(program)
    assert "not of all 4 dimensions" in groups_of(program)["parts"].reason


def test_a_weight_used_twice_is_neither_scaled_nor_rotated() -> None:
    def middle(b: Builder, x: str) -> str:
        y = b.op("add", "sum", (x, linear(b, x, "y", "m")))
        return b.op("add", "again", (y, linear(b, y, "z", "m")))

    program = built(middle)
    with pytest.raises(UnsupportedModelError, match="m is used by more than one operation"):
        residual_stream(program)
    assert groups_of(program)["x"].origin is None


def normed(b: Builder, x: str) -> str:
    return b.op("rmsnorm", "n", (x,), (b.weight("g", 4),), epsilon=1e-5)


# What makes the value that the matrix m reads, and why no scale of it can be moved there.
UNSCALABLE: dict[str, Callable[[Builder, str], str]] = {
    "made by add, which takes up no scale": lambda b, x: b.op("add", "sum", (x, x)),
    "made by swiglu, not by a linear operation": lambda b, x: b.op(
        "swiglu", "outer", (x, b.op("swiglu", "inner", (x, x)))
    ),
    "up is read more than once": lambda b, x: (lambda up: b.op("swiglu", "gated", (up, up)))(
        linear(b, x, "up", "matrix")
    ),
}


@pytest.mark.parametrize("reason", UNSCALABLE)
def test_a_value_whose_scale_has_nowhere_to_go_says_why(reason: str) -> None:
    program = built(lambda b, x: linear(b, UNSCALABLE[reason](b, x), "y", "m"))
    group = next(group for group in linear_groups(program) if group.weights == ("m",))
    assert group.origin is None
    assert reason in group.reason


def test_a_norm_whose_output_is_also_added_takes_up_no_scale() -> None:
    def middle(b: Builder, x: str) -> str:
        value = normed(b, x)
        return b.op("add", "sum", (value, linear(b, value, "y", "m")))

    assert "n is read by add as well" in groups_of(built(middle))["n"].reason


def test_a_value_that_is_also_a_key_takes_up_no_scale() -> None:
    def middle(b: Builder, x: str) -> str:
        query, value = linear(b, x, "q", "query"), linear(b, x, "v", "value")
        return linear(b, attend(b, query, value, value), "y", "m")

    assert "v is read more than once" in groups_of(built(middle))["mixed"].reason


def test_a_matrix_with_a_fixed_scale_of_its_input_is_neither_scaled_nor_rotated() -> None:
    program = program_of("llama")
    fixed = replace(
        program,
        ops=tuple(
            replace(op, attributes={"input_scale": 0.1}) if op.output.endswith("gate") else op
            for op in program.ops
        ),
    )
    with pytest.raises(UnsupportedModelError, match="layers.0.gate.weight has scales or columns"):
        residual_stream(fixed)
    assert "gate.weight has scales" in groups_of(fixed)["layers.0.mlp_norm"].reason
    assert groups_of(fixed)["layers.0.attention_norm"].origin is not None
