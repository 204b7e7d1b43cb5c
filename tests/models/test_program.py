from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from farthing.core import UnsupportedModelError
from farthing.models.program import OPS, Builder, Op, Program, Value, check

ATTEND: dict[str, Any] = {
    "layer": 0,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 4,
    "scale": 0.5,
    "window": 0,
}


def started() -> Builder:
    """A Builder with x (8 wide), q (8), k (4), v (4) and r, the wanted rows of x."""
    b = Builder()
    b.op("embed", "x", (), (b.weight("table", 10, 8),))
    b.op("linear", "q", ("x",), (b.weight("wq", 8, 8),))
    b.op("linear", "k", ("x",), (b.weight("wk", 4, 8),))
    b.op("linear", "v", ("x",), (b.weight("wv", 4, 8),))
    b.op("rows", "r", ("x",))
    return b


def finished() -> Program:
    b = started()
    b.op("attend", "a", ("q", "k", "v"), **ATTEND)
    b.op("rows", "ra", ("a",))
    return b.finish(b.op("logits", "y", ("ra",), ("table",)))


def test_a_program_knows_its_vocabulary_and_its_cache() -> None:
    program = finished()
    assert program.vocabulary_size == 10
    assert [(c.kv_heads, c.head_dim, c.window) for c in program.cache] == [(1, 4, 0)]


def test_values_after_rows_are_wanted_rows() -> None:
    values = finished().values
    assert values["y"].wanted
    assert values["ra"].wanted
    assert not values["a"].wanted


def test_a_builder_tells_a_values_width() -> None:
    assert started().width("k") == 4


@pytest.mark.parametrize(
    ("kind", "inputs", "weights", "attributes", "says"),
    [
        ("columns", ("x",), (), {"columns": ()}, "columns must ascend"),
        ("columns", ("x",), (), {"columns": (1, 8)}, "columns must ascend"),
        ("zero_columns", ("x",), (), {"columns": (-1, 2)}, "columns must ascend"),
        ("zero_columns", ("x",), (), {"columns": (2, 2)}, "columns must ascend"),
        ("linear", ("x",), ("wq",), {"input_scale": 0.0}, "scale"),
        ("linear", ("x",), ("wq",), {"input_scale": 1}, "attributes"),
        ("linear", ("x",), ("wq",), {"epsilon": 1.0}, "attributes"),
        ("rope", ("x",), (), {"head_dim": 4}, "attributes"),
        ("softmax", ("x",), (), {}, "no such kind"),
        ("add", ("x",), (), {}, "1 inputs"),
        ("linear", ("x",), (), {}, "0 weights"),
        ("rmsnorm", ("x",), ("gain",), {}, "attributes"),
        ("rmsnorm", ("x",), ("gain",), {"epsilon": 1}, "attributes"),
        ("scale", ("x",), (), {"factor": 1.0, "other": 2.0}, "attributes"),
        ("add", ("x", "nothing"), (), {}, "nothing is called nothing"),
        ("logits", ("r",), ("nowhere",), {}, "nothing is called nowhere"),
        ("add", ("x", "k"), (), {}, "widths differ"),
        ("swiglu", ("x", "k"), (), {}, "widths differ"),
        ("add", ("x", "r"), (), {}, "mixes"),
        ("linear", ("k",), ("wq",), {}, "takes 8 inputs"),
        ("linear", ("x",), ("gain",), {}, "must be a matrix"),
        ("linear", ("x",), ("wq", "gain"), {}, "bias must have 8"),
        ("rmsnorm", ("x",), ("gain",), {"epsilon": 1e-5}, "no multiple of 3"),
        ("rmsnorm", ("x",), ("wq",), {"epsilon": 1e-5}, "must be a vector"),
        ("embed", (), ("gain",), {}, "must be a matrix"),
        ("rope", ("x",), (), {"head_dim": 3, "frequencies": (1.0,)}, "whole heads"),
        ("rope", ("x",), (), {"head_dim": 4, "frequencies": (1.0,) * 3}, "cannot rotate 6"),
        ("rope", ("x",), (), {"head_dim": 4, "frequencies": ()}, "cannot rotate 0"),
        ("attend", ("q", "v", "v"), (), {**ATTEND, "kv_heads": 2}, "wide"),
        ("attend", ("q", "k", "x"), (), ATTEND, "wide"),
        ("attend", ("q", "k", "v"), (), {**ATTEND, "heads": 3, "kv_heads": 2}, "do not group"),
        ("attend", ("q", "k", "v"), (), {**ATTEND, "kv_heads": 0}, "do not group"),
    ],
)
def test_an_operation_that_breaks_its_spec_is_refused(
    kind: str,
    inputs: tuple[str, ...],
    weights: tuple[str, ...],
    attributes: dict[str, Any],
    says: str,
) -> None:
    b = started()
    b.weight("gain", 3)
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        b.op(kind, "new", inputs, weights, **attributes)
    assert f"{kind} -> new" in str(caught.value)


def test_every_kind_of_operation_has_a_function_of_its_name_in_the_oracle() -> None:
    from farthing.backends import torch as oracle

    for kind in OPS:
        assert callable(getattr(oracle, kind)), kind


def test_a_value_is_assigned_once() -> None:
    with pytest.raises(UnsupportedModelError, match="x is assigned twice"):
        started().op("rows", "x", ("q",))


def test_a_weight_has_one_shape() -> None:
    with pytest.raises(UnsupportedModelError, match="wq is used as"):
        started().weight("wq", 8, 4)


def test_a_program_ends_in_wanted_rows() -> None:
    with pytest.raises(UnsupportedModelError, match="must end in logits"):
        started().finish("q")


def test_layers_count_from_zero() -> None:
    b = started()
    b.op("attend", "a", ("q", "k", "v"), **{**ATTEND, "layer": 1})
    b.op("rows", "ra", ("a",))
    with pytest.raises(UnsupportedModelError, match="must count 0, 1, 2"):
        b.finish(b.op("logits", "y", ("ra",), ("table",)))


def test_the_checker_sees_a_wrong_width_that_no_builder_made() -> None:
    program = finished()
    values = {**program.values, "q": Value("q", 9)}
    with pytest.raises(UnsupportedModelError, match="q is recorded with another shape"):
        check(replace(program, values=MappingProxyType(values)))


def test_the_checker_sees_a_second_assignment_that_no_builder_made() -> None:
    program = finished()
    twice = (*program.ops[:2], program.ops[1], *program.ops[2:])
    with pytest.raises(UnsupportedModelError, match="q is assigned twice"):
        check(replace(program, ops=twice))


def test_the_checker_sees_a_use_before_the_definition() -> None:
    program = finished()
    first, second, *rest = program.ops
    with pytest.raises(UnsupportedModelError, match="nothing is called x"):
        check(replace(program, ops=(second, first, *rest)))


def test_the_checker_sees_an_unknown_kind() -> None:
    program = finished()
    odd = Op("convolve", ("x",), (), "odd", MappingProxyType({}))
    with pytest.raises(UnsupportedModelError, match="no such kind"):
        check(replace(program, ops=(*program.ops, odd)))
