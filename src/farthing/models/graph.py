"""Questions about a Program: what reads a value, where its scale could go, what the residual is.

Everything here looks at operations and shapes alone; no weight is read. Methods that move numbers
from activations into weights ask it where that leaves the model's function as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import UnsupportedModelError
from farthing.models.program import Weight, check

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from farthing.models.program import Op, Program

HEAD = "head.weight"
"""What a head that is not the embedding is called."""


@dataclass(frozen=True)
class Origin:
    """What a value's K numbers come from: weights whose first dimension, D, is theirs.

    Dividing entry d of that dimension, in all of `weights`, divides the numbers that come from it.
    `kind` is "gain" (of a norm), "up" (through a gate) or "value" (through attention). D is in runs
    of `run` entries; each run makes `copies` runs of the value, one after another: more than one
    where query heads share a value head.
    """

    kind: str
    weights: tuple[str, ...]
    run: int
    copies: int = 1

    def spread(self, entries: NDArray[Any]) -> NDArray[Any]:
        """(D,) -> (K,): each number of the value gets what its origin has."""
        return np.repeat(entries.reshape(-1, self.run), self.copies, axis=0).reshape(-1)

    def gather(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """(K,) -> (`copies`, D): the numbers that come from each entry."""
        runs = numbers.reshape(-1, self.copies, self.run)
        return runs.swapaxes(0, 1).reshape(self.copies, -1)


@dataclass(frozen=True)
class LinearGroup:
    """The linear operations, and a head, that read one value.

    `weights` are their matrices, in order. `origin` is where a scale of the value can be moved;
    where it is None, `reason` says why it cannot.
    """

    value: str
    width: int
    weights: tuple[str, ...]
    origin: Origin | None
    reason: str = ""


@dataclass(frozen=True)
class StreamReader:
    """A matrix whose inputs are the residual stream, through the norm of `gain` if there is one."""

    weight: str
    gain: str | None


@dataclass(frozen=True)
class ResidualStream:
    """The values that are one running sum over the layers, and everything that touches it.

    `values` has them in order. `tables` are embeddings whose rows enter it; `writers` matrices and
    biases (their first dimension is the stream's); `readers` matrices with their gains, the head
    among them. `tied`: the head is the embedding.
    """

    values: tuple[str, ...]
    width: int
    tables: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[StreamReader, ...]
    tied: bool


def linear_groups(program: Program) -> tuple[LinearGroup, ...]:
    """The groups of linear operations that share their input, in execution order."""
    return _Graph(program).groups()


def residual_stream(program: Program) -> ResidualStream:
    """What starts at the embedding and ends at the head.

    Raises `UnsupportedModelError` saying which operation keeps it from being rotated: one that is
    neither a sum, a matrix product nor a norm over the whole width before a product.
    """
    return _Graph(program).residual_stream()


def untied(program: Program) -> Program:
    """The Program with a head of its own, called `HEAD`, where its head is the embedding."""
    head = next(op for op in program.ops if op.kind == "logits")
    embeddings = {op.weights[0] for op in program.ops if op.kind == "embed"}
    if head.weights[0] not in embeddings:
        return program
    own = replace(head, weights=(HEAD,))
    shape = program.weights[head.weights[0]].shape
    changed = replace(
        program,
        ops=tuple(own if op is head else op for op in program.ops),
        weights=MappingProxyType({**program.weights, HEAD: Weight(HEAD, shape)}),
    )
    check(changed)
    return changed


class _Graph:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._producer = {op.output: op for op in program.ops}
        self._readers: dict[str, list[Op]] = defaultdict(list)
        for op in program.ops:
            for name in op.inputs:
                self._readers[name].append(op)
        self._uses = Counter(name for op in program.ops for name in op.weights)

    def groups(self) -> tuple[LinearGroup, ...]:
        by_value: dict[str, list[Op]] = defaultdict(list)
        for op in self._program.ops:
            if op.kind in ("linear", "logits"):
                by_value[op.inputs[0]].append(op)
        return tuple(self._group(value, ops) for value, ops in by_value.items())

    def _group(self, value: str, ops: list[Op]) -> LinearGroup:
        width = self._program.values[value].width
        weights = tuple(dict.fromkeys(op.weights[0] for op in ops))
        try:
            self._need_plain(ops)
            origin = self._origin(value, weights)
        except UnsupportedModelError as error:
            return LinearGroup(value, width, weights, None, str(error))
        return LinearGroup(value, width, weights, origin)

    def _origin(self, value: str, weights: tuple[str, ...]) -> Origin:
        others = [op for op in self._readers[value] if op.kind not in ("linear", "logits")]
        if others:
            raise UnsupportedModelError(f"{value} is read by {others[0].kind} as well")
        self._need_single_use(*weights)
        made = self._producer[value]
        if made.kind == "rmsnorm":
            self._need_whole(made)
            self._need_single_use(made.weights[0])
            return Origin("gain", made.weights, self._program.values[value].width)
        if made.kind in ("swiglu", "geglu"):
            up = self._scalable(made.inputs[1], made)
            return Origin("up", up.weights, self._program.values[value].width)
        if made.kind == "attend":
            linear = self._scalable(made.inputs[2], made)
            copies = made.attributes["heads"] // made.attributes["kv_heads"]
            return Origin("value", linear.weights, made.attributes["head_dim"], copies)
        raise UnsupportedModelError(f"{value} is made by {made.kind}, which takes up no scale")

    def _scalable(self, name: str, reader: Op) -> Op:
        """The linear operation that makes `name` for this one input of `reader` alone."""
        linear = self._producer[name]
        if linear.kind != "linear":
            raise UnsupportedModelError(
                f"{name} is made by {linear.kind}, not by a linear operation of its own"
            )
        if [op.output for op in self._readers[name]] != [reader.output]:
            raise UnsupportedModelError(f"{name} is read more than once")
        self._need_single_use(*linear.weights)
        return linear

    def _need_plain(self, products: list[Op]) -> None:
        """A product may hold what calibration has fixed for its input as it now is."""
        for op in products:
            if op.attributes or len(op.weights) > 2:
                raise UnsupportedModelError(
                    f"{op.weights[0]} has scales or columns that were fixed for its input as it is"
                )

    def _need_single_use(self, *weights: str) -> None:
        for name in weights:
            if self._uses[name] > 1:
                raise UnsupportedModelError(f"{name} is used by more than one operation")

    def _need_whole(self, norm: Op) -> None:
        width = self._program.values[norm.output].width
        if self._program.weights[norm.weights[0]].shape != (width,):
            raise UnsupportedModelError(
                f"the norm {norm.output} is of parts of its value, not of all {width} dimensions"
            )

    def residual_stream(self) -> ResidualStream:
        values = self._stream_values()
        tables: dict[str, None] = {}
        writers: dict[str, None] = {}
        readers: dict[StreamReader, None] = {}
        for op in self._program.ops:
            if op.output in values:
                if op.kind == "embed":
                    tables[op.weights[0]] = None
                elif op.kind == "linear":
                    writers.update(dict.fromkeys(op.weights))
                elif op.kind not in ("add", "scale", "rows"):
                    raise _cannot_rotate(op)
            if any(name in values for name in op.inputs):
                for reader in self._read_by(op):
                    readers[reader] = None
        head = [op.weights[0] for op in self._program.ops if op.kind == "logits"]
        tied = bool(set(head) & set(tables))
        self._need_stream_weights(tables, writers, readers, tied)
        width = self._program.values[values[0]].width
        return ResidualStream(values, width, tuple(tables), tuple(writers), tuple(readers), tied)

    def _stream_values(self) -> tuple[str, ...]:
        """The embedding, and what sums, scalings and choices of rows connect with it."""
        found = {op.output for op in self._program.ops if op.kind == "embed"}
        size = 0
        while size != len(found):
            size = len(found)
            for op in self._program.ops:
                touched = {op.output, *op.inputs}
                if op.kind in ("add", "scale", "rows") and touched & found:
                    found |= touched
        return tuple(op.output for op in self._program.ops if op.output in found)

    def _read_by(self, op: Op) -> list[StreamReader]:
        """What of `op`, which reads the stream, has inputs to be rotated."""
        if op.kind in ("add", "scale", "rows"):
            return []
        if op.kind in ("linear", "logits"):
            self._need_plain([op])
            return [StreamReader(op.weights[0], None)]
        if op.kind != "rmsnorm":
            raise _cannot_rotate(op)
        self._need_whole(op)
        products = self._readers[op.output]
        for reader in products:
            if reader.kind not in ("linear", "logits"):
                raise _cannot_rotate(reader)
        self._need_plain(products)
        return [StreamReader(product.weights[0], op.weights[0]) for product in products]

    def _need_stream_weights(
        self,
        tables: Mapping[str, None],
        writers: Mapping[str, None],
        readers: Mapping[StreamReader, None],
        tied: bool,
    ) -> None:
        """Each weight of the stream must be used once, but for the two uses of a tied head."""
        for name in (*writers, *(reader.weight for reader in readers), *tables):
            if self._uses[name] > 1 + (tied and name in tables):
                raise UnsupportedModelError(f"{name} is used by more than one operation")
        gains = {reader.gain for reader in readers if reader.gain is not None}
        self._need_single_use(*sorted(gains))


def _cannot_rotate(op: Op) -> UnsupportedModelError:
    if op.kind == "rmsnorm":
        return UnsupportedModelError(
            f"the residual stream cannot be rotated: the norm {op.output} stands after a product "
            "and before the sum, and its gain weighs single dimensions of the stream"
        )
    return UnsupportedModelError(
        f"the residual stream cannot be rotated: {op.kind} -> {op.output} works on its single "
        "dimensions"
    )
