"""A Program in sections that can be run one after another, each in the memory of its own weights.

Between two layers the residual stream is all that later operations read of earlier ones. There a
Program can be cut: what flows through is kept for every token, and is what the next section's
embedding holds, a row for each token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor, UnsupportedModelError
from farthing.models.program import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from farthing.models.load import Model
    from farthing.models.program import Op, Program

_STREAM = "section.stream"


@dataclass(frozen=True)
class Section:
    """Consecutive operations: they read nothing from before but `enters`, and what comes after
    them, but for the head, reads nothing of theirs but `leaves`.
    """

    enters: str
    ops: tuple[Op, ...]
    leaves: str

    @property
    def values(self) -> tuple[str, ...]:
        """All values that exist within it, in order."""
        return (self.enters, *(op.output for op in self.ops))


def sections(program: Program) -> tuple[Section, ...]:
    """The sections between the embedding and the wanted rows, with attention in each: layers.

    Raises `UnsupportedModelError` for a Program in which more than one value reaches the head.
    """
    end = next(index for index, op in enumerate(program.ops) if op.kind == "rows")
    last_read = {name: index for index, op in enumerate(program.ops) for name in op.inputs}
    enters = program.ops[0].output
    width = program.values[enters].width
    found: list[Section] = []
    ops: list[Op] = []
    live = {enters}
    for index, op in enumerate(program.ops[1:end], 1):
        ops.append(op)
        live = {name for name in (*live, op.output) if last_read.get(name, 0) > index}
        if live == {op.output} and program.values[op.output].width == width:
            found.append(Section(enters, tuple(ops), op.output))
            enters, ops = op.output, []
    if ops or not found:
        raise UnsupportedModelError(
            "calibration runs a model layer by layer, and this one's layers pass on more than one "
            "value: quantise it without calibration"
        )
    return tuple(_with_attention(found))


def joined(parts: Sequence[Section]) -> Section:
    """Sections that follow each other, as one."""
    ops = tuple(op for part in parts for op in part.ops)
    return Section(parts[0].enters, ops, parts[-1].leaves)


def float_bytes(program: Program, section: Section) -> int:
    """What a section's weights take in float32."""
    names = {name for op in section.ops for name in op.weights}
    return sum(4 * prod(program.weights[name].shape) for name in names)


def section_model(model: Model, section: Section, stream: NDArray[np.float32]) -> Model:
    """The section as a model of its own, whose token ids are rows of `stream` (T, width).

    Its values have the names that they have in the whole; what it says of wanted rows means
    nothing.
    """
    program = _section_program(model.program, section, len(stream))
    entering = StoredTensor(_STREAM, "F32", stream.shape, stream.reshape(-1).view(np.uint8))
    return replace(
        model,
        program=program,
        tensors=_WithStream(model.tensors, entering),
        formats=MappingProxyType({**model.formats, _STREAM: "F32"}),
    )


def _with_attention(found: Sequence[Section]) -> Iterator[Section]:
    """Parts without attention go to what stands before them, or after them at the beginning."""
    gathered: list[Section] = []
    for part in found:
        attends = any(op.kind == "attend" for op in part.ops)
        if attends and any(op.kind == "attend" for each in gathered for op in each.ops):
            yield joined(gathered)
            gathered = []
        gathered.append(part)
    yield joined(gathered)


def _section_program(program: Program, section: Section, tokens: int) -> Program:
    builder = Builder()
    width = program.values[section.enters].width
    table = builder.weight(_STREAM, tokens, width)
    builder.op("embed", section.enters, (), (table,))
    layers = count()
    for op in section.ops:
        for name in op.weights:
            builder.weight(name, *program.weights[name].shape)
        attributes = dict(op.attributes)
        if op.kind == "attend":
            attributes["layer"] = next(layers)
        builder.op(op.kind, op.output, op.inputs, op.weights, **attributes)
    wanted = builder.op("rows", "section.wanted", (section.leaves,))
    # A Program ends in logits: here in those of the stream, for a row that nobody looks at.
    return builder.finish(builder.op("logits", "section.logits", (wanted,), (table,)))


class _WithStream(Mapping[str, StoredTensor]):
    """A model's weights, and what enters the section."""

    def __init__(self, tensors: Mapping[str, StoredTensor], stream: StoredTensor) -> None:
        self._tensors, self._stream = tensors, stream

    def __getitem__(self, name: str) -> StoredTensor:
        return self._stream if name == _STREAM else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self._tensors, _STREAM)

    def __len__(self) -> int:
        return len(self._tensors) + 1
