"""Which operations of a Program a lean backend runs as one, and so which values it ever stores.

`fuse` is a pure rewrite: every operation of the Program lands in one stage (a norm in that of each
product that reads through it), in an order that keeps each value defined before it is read.
`plan/memory.py` lays out the values that stages write; `backends/native.py` turns each stage into
one native stage. An operation that fits no pattern becomes a stage of its own, so that any checked
Program runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from farthing.core import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.models.program import Op, Program


@dataclass(frozen=True)
class Source:
    """What a product reads: a value, through an RMSNorm where `gain` names a weight.

    `input_scale` is the one scale of int8 activations; None: each group of inputs has its own.
    """

    value: str
    gain: str | None = None
    epsilon: float = 0.0
    input_scale: float | None = None


@dataclass(frozen=True)
class Product:
    """One matrix product: the weight, its bias if any."""

    weight: str
    bias: str | None = None


@dataclass(frozen=True)
class HeadProduct:
    """A product whose outputs are heads, normalised each where `gain`, rotated where `rope`."""

    product: Product
    gain: str | None = None
    epsilon: float = 0.0
    rope: tuple[float, ...] | None = None


@dataclass(frozen=True)
class EmbedStage:
    """output = table row of the token * factor."""

    ops: tuple[Op, ...]
    table: str
    factor: float
    output: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        return ()


@dataclass(frozen=True)
class LinearStage:
    """output = product of the source (+ residual)."""

    ops: tuple[Op, ...]
    source: Source
    product: Product
    output: str
    residual: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        residual = () if self.residual is None else (self.residual,)
        return (self.source.value, *residual)


@dataclass(frozen=True)
class GateStage:
    """output = activation(gate product) * up product; `activation` is swiglu or geglu."""

    ops: tuple[Op, ...]
    source: Source
    gate: Product
    up: Product
    activation: str
    output: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        return (self.source.value,)


@dataclass(frozen=True)
class HeadsStage:
    """output = query heads; keys and values go straight into the cache of `layer`."""

    ops: tuple[Op, ...]
    source: Source
    query: HeadProduct
    key: HeadProduct
    value: HeadProduct
    layer: int
    output: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        return (self.source.value,)


@dataclass(frozen=True)
class AttendStage:
    """output = attention; `key` and `value` are None where a HeadsStage has stored them."""

    ops: tuple[Op, ...]
    query: str
    key: str | None
    value: str | None
    output: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        return tuple(name for name in (self.query, self.key, self.value) if name is not None)


@dataclass(frozen=True)
class RowStage:
    """One operation on single rows, or `norm_add`: output = first input + rmsnorm(second)."""

    ops: tuple[Op, ...]
    kind: str
    inputs: tuple[str, ...]
    output: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored values it reads."""
        return self.inputs


Stage = EmbedStage | LinearStage | GateStage | HeadsStage | AttendStage | RowStage


def stage_weights(stage: Stage) -> Iterable[str]:
    """The weights a stage reads, each once, in the order of its operations."""
    return dict.fromkeys(name for op in stage.ops for name in op.weights)


def fuse(program: Program) -> tuple[Stage, ...]:
    """The stages of `program`, in execution order."""
    return _Fusion(program).stages()


def require_stored(program: Program, stages: tuple[Stage, ...], names: Iterable[str]) -> None:
    """Raises `RequestError`, saying what to take instead, for a value that no stage stores."""
    stored = {stage.output for stage in stages}
    for name in names:
        if name not in program.values:
            raise RequestError(f"the model computes no value called {name!r:.100}")
        if name in stored:
            continue
        around = [stage for stage in stages if name in (op.output for op in stage.ops)]
        sources = dict.fromkeys(source for stage in around for source in stage.reads)
        results = dict.fromkeys(stage.output for stage in around)
        raise RequestError(
            f"the value {name} is never stored: it is computed from {', '.join(sources)} on the "
            f"way to {', '.join(results)}; take one of these"
        )


def head_source(stages: tuple[Stage, ...]) -> Source | None:
    """How the head reads the wanted rows, which is what makes a hidden state of any token's row.

    None where something else than a norm stands between the two.
    """
    rows = [stage for stage in stages if isinstance(stage, RowStage) and stage.kind == "rows"]
    heads = [each for each in stages if isinstance(each, LinearStage) and _is_head(each)]
    if [head.source.value for head in heads] == [stage.output for stage in rows]:
        return heads[0].source if heads else None
    return None


def _is_head(stage: LinearStage) -> bool:
    return any(op.kind == "logits" for op in stage.ops)


class _Fusion:
    """Patterns are sought from the last operation of each back along values used only once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._producer = {op.output: op for op in program.ops}
        self._uses = Counter(name for op in program.ops for name in op.inputs)
        self._uses[program.output] += 1

    def stages(self) -> tuple[Stage, ...]:
        found: dict[str, Stage] = {}  # by the output of the last operation covered
        covered: set[str] = set()  # outputs of operations that some stage covers
        for op in reversed(self._program.ops):
            if op.output in covered:
                continue
            for stage in self._match(op, covered):
                found[stage.ops[-1].output] = stage
                covered.update(inner.output for inner in stage.ops)
        ordered = [found[op.output] for op in self._program.ops if op.output in found]
        return tuple(self._with_norms(ordered))

    def _match(self, op: Op, covered: set[str]) -> list[Stage]:
        if op.kind == "attend":
            heads = self._heads(op)
            if heads is not None:
                return [AttendStage((op,), heads.output, None, None, op.output), heads]
            query, key, value = op.inputs
            return [AttendStage((op,), query, key, value, op.output)]
        if op.kind in ("swiglu", "geglu"):
            gate, up = (self._only(name, "linear") for name in op.inputs)
            if gate is not None and up is not None and _source(gate) == _source(up):
                source = _source(gate)
                ops = (gate, up, op)
                return [GateStage(ops, source, _product(gate), _product(up), op.kind, op.output)]
        if op.kind == "add":
            residual, other = op.inputs
            linear = self._only(other, "linear")
            if linear is not None and residual != other:
                source = _source(linear)
                return [LinearStage((linear, op), source, _product(linear), op.output, residual)]
            norm = self._only(other, "rmsnorm")
            if norm is not None and self._is_whole(norm) and residual != other:
                return [RowStage((norm, op), "norm_add", (residual, norm.inputs[0]), op.output)]
        if op.kind == "scale":
            embed = self._only(op.inputs[0], "embed")
            if embed is not None:
                factor = op.attributes["factor"]
                return [EmbedStage((embed, op), embed.weights[0], factor, op.output)]
        if op.kind == "embed":
            return [EmbedStage((op,), op.weights[0], 1.0, op.output)]
        if op.kind in ("linear", "logits"):
            return [LinearStage((op,), _source(op), _product(op), op.output)]
        return [RowStage((op,), op.kind, op.inputs, op.output)]

    def _heads(self, attend: Op) -> HeadsStage | None:
        """The stage that makes an attend's query, key and value, where one pattern fits all."""
        head_dim = attend.attributes["head_dim"]
        products: list[HeadProduct] = []
        ops: list[Op] = []
        linears: list[Op] = []
        for name in attend.inputs:
            rope = self._only(name, "rope")
            if rope is not None and rope.attributes["head_dim"] != head_dim:
                return None
            normed = name if rope is None else rope.inputs[0]
            norm = self._only(normed, "rmsnorm")
            if norm is not None and self._program.weights[norm.weights[0]].shape != (head_dim,):
                return None
            linear = self._only(normed if norm is None else norm.inputs[0], "linear")
            if linear is None:
                return None
            linears.append(linear)
            ops.extend(op for op in (linear, norm, rope) if op is not None)
            products.append(
                HeadProduct(
                    _product(linear),
                    None if norm is None else norm.weights[0],
                    0.0 if norm is None else norm.attributes["epsilon"],
                    None if rope is None else rope.attributes["frequencies"],
                )
            )
        if len({_source(linear) for linear in linears}) > 1:
            return None
        order = {op.output: index for index, op in enumerate(self._program.ops)}
        ops.sort(key=lambda op: order[op.output])
        source = _source(linears[0])
        query, key, value = products
        layer = attend.attributes["layer"]
        return HeadsStage(tuple(ops), source, query, key, value, layer, attend.inputs[0])

    def _with_norms(self, stages: list[Stage]) -> Iterable[Stage]:
        """Folds each whole-width RMSNorm into its readers, where all of them are products."""
        readers: dict[str, list[Stage]] = {}
        for stage in stages:
            for name in stage.reads:
                readers.setdefault(name, []).append(stage)
        folded: dict[str, Op] = {}
        for stage in stages:
            if not isinstance(stage, RowStage) or stage.kind != "rmsnorm":
                continue
            norm = stage.ops[0]
            if not self._is_whole(norm):
                continue
            if all(
                isinstance(reader, LinearStage | GateStage | HeadsStage)
                and reader.source.value == norm.output
                and getattr(reader, "residual", None) != norm.output
                for reader in readers.get(norm.output, [])
            ):
                folded[norm.output] = norm
        for stage in stages:
            if isinstance(stage, RowStage) and stage.output in folded:
                continue
            if isinstance(stage, LinearStage | GateStage | HeadsStage):
                folded_norm = folded.get(stage.source.value)
                if folded_norm is not None:
                    yield _read_through(stage, folded_norm)
                    continue
            yield stage

    def _only(self, name: str, kind: str) -> Op | None:
        """The operation of `kind` that makes `name`, where nothing else reads the value."""
        op = self._producer.get(name)
        if op is None or op.kind != kind or self._uses[name] != 1:
            return None
        return op

    def _is_whole(self, norm: Op) -> bool:
        width = self._program.values[norm.output].width
        return self._program.weights[norm.weights[0]].shape == (width,)


def _source(linear: Op) -> Source:
    return Source(linear.inputs[0], input_scale=linear.attributes.get("input_scale"))


def _product(linear: Op) -> Product:
    bias = linear.weights[1] if len(linear.weights) > 1 else None
    return Product(linear.weights[0], bias)


def _read_through(
    stage: LinearStage | GateStage | HeadsStage, norm: Op
) -> LinearStage | GateStage | HeadsStage:
    source = replace(
        stage.source,
        value=norm.inputs[0],
        gain=norm.weights[0],
        epsilon=norm.attributes["epsilon"],
    )
    return replace(stage, ops=(norm, *stage.ops), source=source)
