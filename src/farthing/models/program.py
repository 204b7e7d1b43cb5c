"""The Program: the flat list of LLM-sized operations that an architecture builds once.

Values are named, assigned once, and hold float32 activations of shape (tokens, width), where the
token count is symbolic; after `rows` it is the number of wanted rows. Weights are referred to by
name. `OPS` states what every kind of operation takes and gives; `check` holds a Program against it
before any backend sees it. What an operation *means* is defined by the plain function of the same
name in `backends/torch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from farthing.core import UnsupportedModelError


@dataclass(frozen=True)
class Value:
    """A named activation: `width` float32 numbers a token (or a wanted row, where `wanted`)."""

    name: str
    width: int
    wanted: bool = False


@dataclass(frozen=True)
class Weight:
    """A parameter the Program reads: (outputs, inputs) for a matrix, (length,) for a vector."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One operation. `attributes` are plain numbers, strings and tuples of numbers."""

    kind: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps per token: a key and a value of head_dim for each of kv_heads.

    `window` is the number of latest positions, the token's own included, that are attended to;
    0 means all of them.
    """

    kv_heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class Program:
    """A checked model graph. `output` names the logits value; `cache[i]` belongs to layer i."""

    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    weights: Mapping[str, Weight]
    cache: tuple[CacheLayer, ...]
    output: str

    @property
    def vocabulary_size(self) -> int:
        """The number of logits a wanted row has."""
        return self.values[self.output].width


_SMALLEST, _LARGEST = 2.0**-126, 2.0**126

Widths = tuple[int, ...]
Shapes = tuple[tuple[int, ...], ...]
Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class OpSpec:
    """What a kind takes: counts of inputs and weights, attribute types, and its rule.

    `optional` are attributes that an operation may leave out.
    `rule(widths, shapes, attributes)` returns the output's width, or raises `ValueError` saying
    what does not match.
    """

    inputs: int
    weights: tuple[int, ...]
    attributes: Mapping[str, type]
    rule: Callable[[Widths, Shapes, Attributes], int]
    optional: Mapping[str, type] = field(default_factory=dict)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _embed(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    _require(len(shapes[0]) == 2, "the embedding must be a matrix")
    return shapes[0][1]


def _same(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    _require(len(set(widths)) == 1, f"widths differ: {widths}")
    return widths[0]


def _rmsnorm(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    _require(len(shapes[0]) == 1, "the gain must be a vector")
    _require(widths[0] % shapes[0][0] == 0, f"width {widths[0]} is no multiple of {shapes[0][0]}")
    return widths[0]


def _linear(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    _require(len(shapes[0]) == 2, "the weight must be a matrix")
    outputs, inputs = shapes[0]
    _require(inputs == widths[0], f"the weight takes {inputs} inputs, the value has {widths[0]}")
    if len(shapes) == 2:
        _require(shapes[1] == (outputs,), f"the bias must have {outputs} entries, not {shapes[1]}")
    scale = a.get("input_scale", 1.0)
    _require(_SMALLEST <= scale <= _LARGEST, f"no input has the scale {scale}")
    return outputs


def _rope(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    rotary = 2 * len(a["frequencies"])
    _require(widths[0] % a["head_dim"] == 0, "the width must be whole heads")
    _require(0 < rotary <= a["head_dim"], f"cannot rotate {rotary} of {a['head_dim']} dimensions")
    return widths[0]


def _attend(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    heads, kv_heads, head_dim = a["heads"], a["kv_heads"], a["head_dim"]
    _require(kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads do not group by {kv_heads}")
    wanted = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    _require(widths == wanted, f"query, key and value are {widths} wide, not {wanted}")
    return int(heads * head_dim)


def _some_columns(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    columns = a["columns"]
    ascending = all(first < second for first, second in pairwise((-1, *columns, widths[0])))
    _require(ascending and len(columns) > 0, f"columns must ascend from 0 below {widths[0]}")
    return len(columns)


def _zero_columns(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    _some_columns(widths, shapes, a)
    return widths[0]


def _spread(widths: Widths, shapes: Shapes, a: Attributes) -> int:
    columns, width = a["columns"], a["width"]
    _require(len(columns) == widths[0], f"{len(columns)} columns for {widths[0]} numbers")
    ascending = all(first < second for first, second in pairwise((-1, *columns, width)))
    _require(ascending, f"columns must ascend from 0 below {width}")
    return int(width)


_INPUT_SCALE: Mapping[str, type] = MappingProxyType({"input_scale": float})

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        # row token_id of the table
        "embed": OpSpec(0, (1,), {}, _embed),
        # x * factor
        "scale": OpSpec(1, (0,), {"factor": float}, _same),
        # x / sqrt(mean(x^2) + epsilon) * gain, over each run of len(gain) dimensions
        "rmsnorm": OpSpec(1, (1,), {"epsilon": float}, _rmsnorm),
        # x W^T (+ bias); where there is an `input_scale`, x counts as whole multiples of it within
        # +-127 of them, the nearest, halves to even
        "linear": OpSpec(1, (1, 2), {}, _linear, _INPUT_SCALE),
        # each head's dimensions (i, i + rotary/2) rotated by position * frequencies[i], float64
        # angles; dimensions past 2 len(frequencies) pass unchanged
        "rope": OpSpec(1, (0,), {"head_dim": int, "frequencies": tuple}, _rope),
        # softmax(scale * q k^T) v over the cached positions, causal, `window` latest (0: all);
        # this token's k and v enter the cache of `layer` first
        "attend": OpSpec(
            3,
            (0,),
            {
                "layer": int,
                "heads": int,
                "kv_heads": int,
                "head_dim": int,
                "scale": float,
                "window": int,
            },
            _attend,
        ),
        # silu(gate) * up
        "swiglu": OpSpec(2, (0,), {}, _same),
        # gelu(gate, tanh approximation) * up
        "geglu": OpSpec(2, (0,), {}, _same),
        "add": OpSpec(2, (0,), {}, _same),
        # x[:, columns]
        "columns": OpSpec(1, (0,), {"columns": tuple}, _some_columns),
        # x with zeros in `columns`
        "zero_columns": OpSpec(1, (0,), {"columns": tuple}, _zero_columns),
        # keeps only the step's wanted rows
        "rows": OpSpec(1, (0,), {}, _same),
        # x W^T over wanted rows: the vocabulary's scores
        "logits": OpSpec(1, (1,), {}, _linear, _INPUT_SCALE),
        # `width` numbers: those of x in `columns`, -inf elsewhere
        "spread": OpSpec(1, (0,), {"columns": tuple, "width": int}, _spread),
    }
)


class Builder:
    """Builds a Program: each call appends one operation and returns its output's name.

    An architecture file declares weights as it uses them; shapes are checked on the way, and
    `finish` checks the whole.
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._values: dict[str, Value] = {}
        self._weights: dict[str, Weight] = {}
        self._cache: dict[int, CacheLayer] = {}

    def weight(self, name: str, *shape: int) -> str:
        """Declares the weight `name`; declaring it again with another shape is an error."""
        known = self._weights.setdefault(name, Weight(name, shape))
        if known.shape != shape:
            raise UnsupportedModelError(f"weight {name} is used as {shape} and as {known.shape}")
        return name

    def width(self, value: str) -> int:
        """How many numbers a token of the value `value` has."""
        return self._values[value].width

    def op(
        self,
        kind: str,
        output: str,
        inputs: tuple[str, ...] = (),
        weights: tuple[str, ...] = (),
        **attributes: Any,
    ) -> str:
        """Appends one operation of `kind` whose result is called `output`."""
        op = Op(kind, inputs, weights, output, MappingProxyType(attributes))
        value = _infer(op, self._values, self._weights)
        if output in self._values:
            raise UnsupportedModelError(f"value {output} is assigned twice")
        self._values[output] = value
        self._ops.append(op)
        if kind == "attend":
            layer = CacheLayer(attributes["kv_heads"], attributes["head_dim"], attributes["window"])
            self._cache[attributes["layer"]] = layer
        return output

    def finish(self, output: str) -> Program:
        """The checked Program whose result is the value `output`."""
        layers = tuple(self._cache[index] for index in sorted(self._cache))
        program = Program(
            tuple(self._ops),
            MappingProxyType(self._values),
            MappingProxyType(self._weights),
            layers,
            output,
        )
        check(program)
        return program


def check(program: Program) -> None:
    """Holds a Program against `OPS`; raises `UnsupportedModelError` naming the first fault."""
    values: dict[str, Value] = {}
    layers: list[int] = []
    for op in program.ops:
        value = _infer(op, values, program.weights)
        if op.output in values:
            raise UnsupportedModelError(f"value {op.output} is assigned twice")
        if program.values.get(op.output) != value:
            raise UnsupportedModelError(f"value {op.output} is recorded with another shape")
        values[op.output] = value
        if op.kind == "attend":
            layers.append(op.attributes["layer"])
    if layers != list(range(len(program.cache))):
        raise UnsupportedModelError(f"attention layers must count 0, 1, 2, ...: {layers}")
    if program.output not in values or not values[program.output].wanted:
        raise UnsupportedModelError("a Program must end in logits of the wanted rows")


def _infer(op: Op, values: Mapping[str, Value], weights: Mapping[str, Weight]) -> Value:
    """The value that `op` makes; raises `UnsupportedModelError` where it breaks its spec."""
    where = f"operation {op.kind} -> {op.output}"
    spec = OPS.get(op.kind)
    if spec is None:
        raise UnsupportedModelError(f"{where}: no such kind; known are {', '.join(OPS)}")
    if len(op.inputs) != spec.inputs or len(op.weights) not in spec.weights:
        raise UnsupportedModelError(f"{where}: {len(op.inputs)} inputs, {len(op.weights)} weights")
    missing = [name for name in op.inputs if name not in values]
    missing += [name for name in op.weights if name not in weights]
    if missing:
        raise UnsupportedModelError(f"{where}: nothing is called {missing[0]}")
    given = {name: type(value) for name, value in op.attributes.items()}
    left_out = {name: each for name, each in spec.optional.items() if name not in given}
    wanted_types = {**spec.attributes, **spec.optional}
    if {**given, **left_out} != wanted_types:
        raise UnsupportedModelError(f"{where}: attributes {given}, wanted {wanted_types}")
    inputs = [values[name] for name in op.inputs]
    if len({value.wanted for value in inputs}) > 1:
        raise UnsupportedModelError(f"{where}: mixes values of all tokens with wanted rows")
    shapes = tuple(weights[name].shape for name in op.weights)
    try:
        width = spec.rule(tuple(value.width for value in inputs), shapes, op.attributes)
    except ValueError as error:
        raise UnsupportedModelError(f"{where}: {error}") from None
    wanted = op.kind in ("rows", "logits") or any(value.wanted for value in inputs)
    return Value(op.output, width, wanted)
